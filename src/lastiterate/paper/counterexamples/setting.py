"""Settings, runs and results that the counterexamples share."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from lastiterate.common.errors import BadArgument
from lastiterate.common.types import FloatArray, Row
from lastiterate.common.validation import integer, number
from lastiterate.compare_analyses import Answer, ask
from lastiterate.optimizer import SGD
from lastiterate.privacy.analyses.calibrate import calibrate
from lastiterate.privacy.analyses.composition import composition
from lastiterate.run import DPSGD
from lastiterate.supported_runs import Support, require_supported

if TYPE_CHECKING:
    from lastiterate.attacks.attack import Attack
    from lastiterate.auditing.engines.engine import Engine

Encoding = Literal["one-bit", "linear"]  # how the malicious data set stores a step
Given = TypeVar("Given", int, float)
STANDARD = 8.0  # epsilon by composition, from which the noise is computed if it is not given


@dataclass(frozen=True)
class Setting:
    """The numbers of a counterexample, and the settings of its audit."""

    steps: int | None  # None only for ``zeroing``, which then chooses a number of steps at which the heuristic is low
    sample_rate: float
    noise_multiplier: float | None  # None means the noise for a standard epsilon of 8
    delta: float
    models: int  # number of models with the canary, and of models without it
    confidence: float = 0.95
    seed: int = 0
    store: Path | None = None  # a folder for the scores, one file per audit; stored models are not trained again
    engine: str | Engine = "local"
    alpha: float = 0.5  # ``quadratic`` only: the regulariser's strength, times the learning rate
    growth: float = 10.0  # ``shift`` only: the factor v by which coordinates grow at every step
    encoding: Encoding | None = None  # ``malicious`` only; None means both encodings

    def __post_init__(self) -> None:
        for name in ("delta", "confidence"):
            number(name, getattr(self, name), 0.0, 1.0, open_low=True, open_high=True)
        integer("models", self.models)
        integer("seed", self.seed, 0, 2**63 - 1)

    def run(self, steps: int, noise_multiplier: float) -> DPSGD:
        return DPSGD(steps, self.sample_rate, noise_multiplier, optimizer=SGD(1.0))

    def calibrated_run(self) -> DPSGD:
        """Return the run with the given noise, or else with the noise for a standard epsilon of 8."""
        steps = required("steps", self.steps)
        if self.noise_multiplier is not None:
            return self.run(steps, self.noise_multiplier)
        try:
            return calibrate(self.run(steps, 1.0), epsilon=STANDARD, delta=self.delta, analysis=composition)
        except ValueError as error:
            raise BadArgument(
                "noise_multiplier",
                f"must be given for sample_rate {self.sample_rate!r} and {steps} steps: there is no "
                f"default, because a standard epsilon of {STANDARD:g} cannot be reached ({error})",
            ) from None


def require_plain(run: DPSGD) -> float:
    """Return the learning rate of a run of plain SGD with Poisson or full sampling. Raise for any other run."""
    sgd = require_supported(run, Support("counterexamples", frozenset())).optimizer
    assert sgd is not None
    return float(sgd.learning_rate)


def required(name: str, value: Given | None) -> Given:
    """Return the value of a field. Raise if it is None."""
    if value is None:
        raise ValueError(f"{name} must be given for this counterexample, got None")
    return value


# Results: predictions, exact epsilons, and lower bounds from attacks on last iterates.

_FROM_BELOW = Answer(None, "the method gives only a lower bound on epsilon")
_PREDICTED = ("last_iterate", "max_over_steps", "composition")


@dataclass(frozen=True)
class Case:
    """One variant of a counterexample."""

    label: str  # empty if there is only one variant
    exact: Answer  # epsilon of the last iterate
    empirical: float  # the lower bound that the attack found, with the setting's confidence
    method: str  # name of the method behind ``empirical``
    at_most: Answer = _FROM_BELOW  # an upper bound on ``exact``, with the same confidence
    by_composition: float | None = None  # lower bound by the composition family, if ``method`` is another one
    exact_lower: float | None = None  # numerical lower bound on ``exact``; None if one number can be shown for both


@dataclass(frozen=True, eq=False)
class Probe:
    """The analysis and audit of a counterexample."""

    name: str
    setting: Setting
    run: DPSGD
    cases: tuple[Case, ...]  # the strongest variant is the last
    rows: list[Row]  # the numbers of the picture
    fields: Row = field(default_factory=dict)  # further results

    @cached_property
    def predictions(self) -> dict[str, Answer]:
        """Epsilons of the run by the usual analyses, which ignore the regulariser and data of the counterexample."""
        return {name: ask(self.run, name, lambda curve: curve.epsilon(self.setting.delta)) for name in _PREDICTED}


def last_iterate_scores(setting: Setting, run: DPSGD, attack: Attack, name: str) -> tuple[FloatArray, FloatArray]:
    """Train models with and without the canary. Return the scores of both groups of last iterates, in this order."""
    from lastiterate.auditing.experiments.choose import Given, experiment_on
    from lastiterate.auditing.run_audit import collected

    experiment = experiment_on(None, Given(run, attack, setting.models, setting.seed, data=name))
    file = None if setting.store is None else setting.store / f"{name}-{experiment.identity().digest()}.sqlite"
    with collected(experiment, store=file, engine=setting.engine) as store:
        trials = store.scores()
    return trials.scores[trials.present], trials.scores[~trials.present]


def lower_bound(
    setting: Setting, scores: tuple[FloatArray, FloatArray], method: str, threshold: float | str, run: DPSGD
) -> float:
    """Return a lower bound on epsilon, computed from scores with the canary and scores without it."""
    from lastiterate.auditing.evidence.estimate import estimate

    return estimate(*scores, setting.delta, setting.confidence, method, threshold, run).epsilon


def known(answer: Answer) -> float:
    """Return the value of an answer. Raise if the answer has no value."""
    if answer.value is None:
        raise ValueError(f"this counterexample has no numbers to show: {answer.reason}")
    return answer.value
