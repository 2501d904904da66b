"""What is asked of a counterexample: its numbers, and the run that they mean."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from lastiterate.optimizer import SGD
from lastiterate.privacy.analyses.calibrate import calibrate
from lastiterate.privacy.analyses.composition import composition
from lastiterate.run import DPSGD, require_basic
from lastiterate.values import integer, number

if TYPE_CHECKING:
    from lastiterate.auditing.engines.engine import Engine

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
    if not isinstance(sgd, SGD) or not sgd.is_memoryless or not isinstance(sgd.learning_rate, float):
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
