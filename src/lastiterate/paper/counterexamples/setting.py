"""What is asked of a counterexample: its numbers, and the run that they mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from lastiterate.common.validation import integer, number
from lastiterate.compare_analyses import Answer, ask
from lastiterate.optimizer import SGD, is_sgd
from lastiterate.privacy.analyses.calibrate import calibrate
from lastiterate.privacy.analyses.composition import composition
from lastiterate.run import DPSGD, require_basic

if TYPE_CHECKING:
    from lastiterate.attacks.attack import Attack
    from lastiterate.auditing.engines.engine import Engine
    from lastiterate.common.types import FloatArray, Row
    from lastiterate.run import DPSGD

Encoding = Literal["one-bit", "linear"]  # of the malicious data set: what is kept of a step
Given = TypeVar("Given", int, float)
STANDARD = 8.0  # by composition, where no noise is given


@dataclass(frozen=True)
class Setting:
    """A counterexample's numbers, and how its audit is made.

    Args:
        steps: T. None: the example chooses the most telling one.
        sample_rate: q.
        noise_multiplier: sigma. None: what makes the standard epsilon 8.
        delta: of (epsilon, delta)-DP.
        models: how many to train with the canary, and as many without.
        confidence: of empirical epsilons.
        seed: of all randomness.
        store: a folder for the scores, one file an audit; what is found there is not trained again. None: none is kept.
        engine: "local", "ray", or an engine object.
        alpha: ``quadratic`` only: the regulariser's strength, times the learning rate.
        growth: ``shift`` only: the factor v by which coordinates grow at every step.
        encoding: ``malicious`` only: "one-bit" or "linear". None: both.
    """

    steps: int | None
    sample_rate: float
    noise_multiplier: float | None
    delta: float
    models: int
    confidence: float = 0.95
    seed: int = 0
    store: Path | None = None
    engine: str | Engine = "local"
    alpha: float = 0.5
    growth: float = 10.0
    encoding: Encoding | None = None

    def __post_init__(self) -> None:
        for name in ("delta", "confidence"):
            number(name, getattr(self, name), 0.0, 1.0, open_low=True, open_high=True)
        integer("models", self.models)
        integer("seed", self.seed, 0, 2**63 - 1)

    def run(self, steps: int, noise_multiplier: float) -> DPSGD:
        """The run that is trained: plain SGD."""
        return DPSGD(steps, self.sample_rate, noise_multiplier, optimizer=SGD(1.0))

    def calibrated_run(self) -> DPSGD:
        """The run with the noise that was given, or with what makes its standard epsilon 8."""
        steps = required("steps", self.steps)
        if self.noise_multiplier is not None:
            return self.run(steps, self.noise_multiplier)
        try:
            return calibrate(self.run(steps, 1.0), epsilon=STANDARD, delta=self.delta, analysis=composition)
        except ValueError as error:
            raise ValueError(
                f"noise_multiplier must be given for sample_rate {self.sample_rate!r} and {steps} steps: the "
                f"default is for a standard epsilon of {STANDARD:g}, and {error}"
            ) from None


def require_plain(run: DPSGD) -> float:
    """The learning rate of a run of plain SGD with Poisson sampling, which is all that the counterexamples know."""
    require_basic(run, "counterexamples")
    sgd = run.optimizer
    if not is_sgd(sgd) or not sgd.is_memoryless or not isinstance(sgd.learning_rate, float):
        raise ValueError(
            f"optimizer must be lastiterate.SGD with one learning rate and nothing else, got {run.optimizer}"
        )
    if not run.amplifies:
        raise ValueError(f"sampling must be 'poisson' or 'full' for a counterexample, got {run.sampling!r}")
    for name in ("sample_rate", "noise_multiplier"):
        number(name, getattr(run, name))
    return sgd.learning_rate


def required(name: str, value: Given | None) -> Given:
    """A number of the setting that the example cannot choose."""
    if value is None:
        raise ValueError(f"{name} must be given for this counterexample, got None")
    return value


# What was found in a counterexample: predictions, exact epsilons, and what an attack on its last iterates shows.

_FROM_BELOW = Answer(None, "the method bounds epsilon from below only")
_PREDICTED = ("last_iterate", "max_over_steps", "composition")


@dataclass(frozen=True)
class Case:
    """One variant of a counterexample.

    Attributes:
        label: which one; empty where there is only one.
        exact: the epsilon of its last iterate.
        empirical: what the attack found: at least this, with the setting's confidence.
        method: by which it was found, in plain words.
        at_most: an upper bound on the exact epsilon, with the same confidence, or why there is none.
        by_composition: what the composition family makes of the same scores, where the method is another.
        exact_lower: the exact epsilon lies between this and ``exact``; None: the two are one number to a reader.
    """

    label: str
    exact: Answer
    empirical: float
    method: str
    at_most: Answer = _FROM_BELOW
    by_composition: float | None = None
    exact_lower: float | None = None


@dataclass(frozen=True, eq=False)
class Probe:
    """A counterexample, analysed and run.

    Attributes:
        name: of the counterexample.
        setting: what was asked, complete.
        run: what was trained.
        predictions: what the analyses say of the run, which know nothing of the counterexample.
        cases: its variants, the most telling one last.
        rows: the numbers of the picture.
        fields: of its own, as plain values.
    """

    name: str
    setting: Setting
    run: DPSGD
    predictions: dict[str, Answer]
    cases: tuple[Case, ...]
    rows: list[Row]
    fields: Row = field(default_factory=dict)


def predict(run: DPSGD, delta: float) -> dict[str, Answer]:
    """What a user would be told of the run."""
    return {name: ask(run, name, lambda curve: curve.epsilon(delta)) for name in _PREDICTED}


def last_iterate_scores(setting: Setting, run: DPSGD, attack: Attack, name: str) -> tuple[FloatArray, FloatArray]:
    """Train models with the canary and without it, and score their last iterates, in this order."""
    from lastiterate.auditing.experiments.choose import Given, experiment_on
    from lastiterate.auditing.run_audit import collected

    experiment = experiment_on(None, Given(run, attack, setting.models, setting.seed, data=name))
    file = None if setting.store is None else setting.store / f"{name}-{experiment.identity().digest()}.sqlite"
    with collected(experiment, store=file, engine=setting.engine) as store:
        trials = store.scores()
    return trials.scores[trials.present], trials.scores[~trials.present]


def known(answer: Answer) -> float:
    """The value of an answer that sentences and pictures cannot do without."""
    if answer.value is None:
        raise ValueError(f"this counterexample has no numbers to show: {answer.reason}")
    return answer.value
