"""Settings, runs and results that the counterexamples share."""

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

Encoding = Literal["one-bit", "linear"]  # of a step, in the malicious data set
Given = TypeVar("Given", int, float)
STANDARD = 8.0  # epsilon by composition if no noise is given


@dataclass(frozen=True)
class Setting:
    """The numbers of a counterexample, and the settings of its audit.

    Args:
        steps: T. None: ``zeroing`` only, which then chooses a number of steps at which the heuristic is low.
        sample_rate: q.
        noise_multiplier: sigma. None: the noise for a standard epsilon of 8.
        delta: of (epsilon, delta)-DP.
        models: number of models with the canary, and as many without.
        confidence: of empirical epsilons.
        seed: of all randomness.
        store: a folder for the scores, one file per audit. Stored models are not trained again. None: no store.
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
        """Return the run to train: plain SGD."""
        return DPSGD(steps, self.sample_rate, noise_multiplier, optimizer=SGD(1.0))

    def calibrated_run(self) -> DPSGD:
        """Return the run with the given noise, or else with the noise for a standard epsilon of 8."""
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
    """Return the learning rate of a run of plain SGD with Poisson or full sampling. Raise for any other run."""
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
    """Return a number of the setting that the example cannot choose. Raise if the number is None."""
    if value is None:
        raise ValueError(f"{name} must be given for this counterexample, got None")
    return value


# Results: predictions, exact epsilons, and lower bounds from attacks on last iterates.

_FROM_BELOW = Answer(None, "the method bounds epsilon from below only")
_PREDICTED = ("last_iterate", "max_over_steps", "composition")


@dataclass(frozen=True)
class Case:
    """One variant of a counterexample.

    Attributes:
        label: name of the variant; empty if there is only one.
        exact: exact epsilon of the last iterate.
        empirical: the lower bound that the attack found, with the setting's confidence.
        method: method of the lower bound, in plain words.
        at_most: an upper bound on the exact epsilon, with the same confidence, or the reason for having none.
        by_composition: lower bound by the composition family from the same scores, if the method is another.
        exact_lower: the exact epsilon lies between this and ``exact``. None: the two are too close to show both.
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
    """The analysis and audit of a counterexample.

    Attributes:
        name: name of the counterexample.
        setting: the complete setting.
        run: the trained run.
        predictions: epsilons by the analyses, which know the run but not the counterexample.
        cases: the variants, the strongest one last.
        rows: the numbers of the picture.
        fields: further results of this counterexample, as plain values.
    """

    name: str
    setting: Setting
    run: DPSGD
    predictions: dict[str, Answer]
    cases: tuple[Case, ...]
    rows: list[Row]
    fields: Row = field(default_factory=dict)


def predict(run: DPSGD, delta: float) -> dict[str, Answer]:
    """Return the predictions that a user would get for the run."""
    return {name: ask(run, name, lambda curve: curve.epsilon(delta)) for name in _PREDICTED}


def last_iterate_scores(setting: Setting, run: DPSGD, attack: Attack, name: str) -> tuple[FloatArray, FloatArray]:
    """Train models with the canary and without it, and return the scores of their last iterates in this order."""
    from lastiterate.auditing.experiments.choose import Given, experiment_on
    from lastiterate.auditing.run_audit import collected

    experiment = experiment_on(None, Given(run, attack, setting.models, setting.seed, data=name))
    file = None if setting.store is None else setting.store / f"{name}-{experiment.identity().digest()}.sqlite"
    with collected(experiment, store=file, engine=setting.engine) as store:
        trials = store.scores()
    return trials.scores[trials.present], trials.scores[~trials.present]


def known(answer: Answer) -> float:
    """Return the value of an answer that sentences and pictures need. Raise if there is none."""
    if answer.value is None:
        raise ValueError(f"this counterexample has no numbers to show: {answer.reason}")
    return answer.value
