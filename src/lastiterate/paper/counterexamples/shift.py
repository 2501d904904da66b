"""The paper's pathological regulariser: the last iterate reveals every step, each in its own coordinate.

At every step, the regulariser multiplies coordinate i by the growth v and moves it to coordinate i + 1. The first
coordinate becomes zero, and the canary and the noise of the next step are added to it. In the last iterate of T steps
and T coordinates, coordinate i times v^(1-i) is

    A_(T-i+1) + N(0, sigma_i^2),    sigma_i^2 = sigma^2 (1 + v^-2 + ... + v^-2(i-1)),

where A_t is 1 if the canary was in batch t, and else 0 (the paper's index T - i is off by one). Every noise draw ends
in one coordinate only, so the coordinates are independent. The last iterate is therefore as informative as all iterates
of a run with the noise sigma_i. Composition of that run is the exact epsilon for every v. As v grows, it tends to
composition of the plain run.

The last coordinate is about v^(T-1). Models are trained in float64, which can represent v = 2 with 1,000 steps and
v = 1e6 with 50 steps. A growth that would overflow is refused. Rounding errors are below 1e-13 standard deviations of a
coordinate's noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.attacks.attack import Armed, BringsProblem, Facts, Words
from lastiterate.attacks.released_iterates import telling_threshold, total_log_likelihood_ratio
from lastiterate.common.errors import BadArgument
from lastiterate.common.types import FloatArray, Row, Track, number_in
from lastiterate.common.validation import number
from lastiterate.compare_analyses import Answer
from lastiterate.formatting import spell
from lastiterate.paper.counterexamples import setting as shared
from lastiterate.paper.counterexamples.setting import Case, Probe, Setting, last_iterate_scores, require_plain, required
from lastiterate.privacy.analyses.composition import composition
from lastiterate.run import DPSGD

if TYPE_CHECKING:
    import jax


# Attack: canary, shifting regulariser and distinguisher.

LARGEST = 301.0  # maximum of log10(v^(T-1)): float64 allows 308; the rest is for the noise and the learning rate


@dataclass(frozen=True)
class Shift(BringsProblem):
    """A canary that pushes the first coordinate, no other data, and the shifting regulariser."""

    growth: float

    def __post_init__(self) -> None:
        number("growth", self.growth, 1.0)

    def arm(self, run: DPSGD, problem: object, facts: Facts) -> Armed:
        import jax.numpy as jnp

        from lastiterate.training import GradientCanary, Problem

        self.check(run.steps)
        rate = require_plain(run)

        def gradient(model: jax.Array, step: jax.Array) -> jax.Array:
            moved = jnp.concatenate((jnp.zeros(1, model.dtype), self.growth * model[:-1]))
            return (model - moved) / rate

        canary = np.zeros(run.steps)
        canary[0] = run.clip_norm
        setting = Problem(np.zeros(run.steps), regulariser_gradient=gradient)
        return Armed(setting, GradientCanary(canary), ShiftScore(self, run), double=True)

    def words(self, facts: Facts) -> Words:
        return Words(f"shifting regulariser, growth {spell(self.growth)}", "nats of the log-likelihood ratio")

    def seen(self, run: DPSGD) -> DPSGD:
        """Return a run whose iterates together reveal what the last iterate reveals. Its steps are in reverse order."""
        return run.replace(noise_multiplier=run.noise_multiplier * noise_factors(self.growth, run.steps))

    def check(self, steps: int) -> None:
        """Raise if float64 would overflow with this growth."""
        if not self.fits(steps):
            most = 10.0 ** (LARGEST / (steps - 1))
            unit = 10.0 ** (np.floor(np.log10(most)) - 3.0)  # rounds down, so that the stated growth is allowed
            raise BadArgument(
                "growth",
                f"must be at most {spell(np.floor(most / unit) * unit)} for {steps:,} steps, as "
                f"growth^(steps - 1) must stay in the range of floating-point numbers, got {self.growth!r}",
            )

    def fits(self, steps: int) -> bool:
        """Return whether float64 can represent the last coordinate."""
        return (steps - 1) * float(np.log10(self.growth)) <= LARGEST


@dataclass(frozen=True)
class ShiftScore:
    """The optimal distinguisher: the sum of the log-likelihood ratios of all coordinates."""

    attack: Shift
    run: DPSGD

    def __call__(self, parameters: object) -> FloatArray:
        return total_log_likelihood_ratio(self.attack.seen(self.run), self.observed(parameters))

    def observed(self, parameters: object) -> FloatArray:
        """Return the noisy sum of each step along the canary, in clipping norms. The last step comes first."""
        scale = self.attack.growth ** -np.arange(self.run.steps, dtype=np.float64)
        return -np.asarray(parameters, np.float64) * scale / (require_plain(self.run) * self.run.clip_norm)


def noise_factors(growth: float, steps: int) -> FloatArray:
    """Return sigma_i / sigma for each coordinate."""
    return np.sqrt(np.cumsum(growth ** (-2.0 * np.arange(steps))))


TAKES = ("growth",)
DEFAULTS = Setting(steps=50, sample_rate=0.1, noise_multiplier=None, delta=1e-5, models=100_000, growth=10.0)
_CURVE = (1.0, 1.05, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0)
_AUDITED = (1.5, 2.0, 3.0)  # audited with fewer models, besides the requested growth
_FEWER = 20_000
_TIGHT = 1e-4  # bounds closer than this, relative to epsilon, are shown as one number


def probe(setting: Setting, track: Track = iter) -> Probe:
    """Compute epsilon for several growths, and audit some of them. The requested growth gets the most models."""
    Shift(setting.growth).check(required("steps", setting.steps))
    run = setting.calibrated_run()
    growths = sorted({*_CURVE, setting.growth})
    rows = [_row(setting, run, Shift(growth)) for growth in track(growths)]
    row = rows[growths.index(setting.growth)]
    exact, lower = number_in(row, "exact"), number_in(row, "exact_lower")
    shown = None if is_one_number(lower, exact) else lower
    method = "composition family of the plain run"
    case = Case("", Answer(exact), number_in(row, "empirical"), method, exact_lower=shown)
    return Probe("shift", setting, run, (case,), rows)


def is_one_number(lower: float, upper: float) -> bool:
    """Return whether two bounds on epsilon are so close that one number can be shown instead of two."""
    return upper - lower < _TIGHT * upper


def _row(setting: Setting, run: DPSGD, attack: Shift) -> Row:
    """Return the exact epsilon of one growth and, for some growths, an audit.

    The true epsilon lies between ``exact_lower`` and ``exact``. Near growth 1 the two differ by a few per cent.
    """
    curve = composition(attack.seen(run))
    exact, (lower, _) = curve.epsilon(setting.delta), curve.bracket(setting.delta)
    models = setting.models
    if attack.growth != setting.growth:
        models = min(models, _FEWER) if attack.growth in _AUDITED and attack.fits(run.steps) else 0
    row: Row = {"growth": attack.growth, "exact": exact, "exact_lower": lower, "models": models}
    if not models:
        return {**row, "empirical": None, "empirical_reason": "no models were trained with this growth"}
    return {**row, "empirical": find_epsilon(replace(setting, models=models), run, attack)}


def find_epsilon(setting: Setting, run: DPSGD, attack: Shift) -> float:
    """Return the lower bound on epsilon that the attack finds.

    The bound uses the composition family of the plain run, which ignores the growth. Near growth 1 it is epsilon / 2.
    """
    scores = last_iterate_scores(setting, run, attack, "shift")
    return shared.lower_bound(setting, scores, "composition", telling_threshold(attack.seen(run)), run)
