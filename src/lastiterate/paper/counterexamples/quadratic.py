"""A linear loss with a quadratic regulariser: every step forgets a share alpha of the model.

With r(m) = alpha / (2 eta) ||m||^2, step t has the weight (1 - alpha)^(T - t) in the last iterate. The noise is
forgotten like the signal, but not in the same proportion. For alpha between 0 (the heuristic) and 1 (a single step),
the last iterate can leak more than for 0 and for 1. The paper's upper bound for alpha = 1/2 is `rounded_support`.
"""

import math
from dataclasses import dataclass

import numpy as np

from lastiterate.attacks.attack import Armed, BringsProblem, Facts, Words
from lastiterate.attacks.released_iterates import LinearScore, noise_unit
from lastiterate.common.types import FloatArray, Row, Track
from lastiterate.common.validation import number
from lastiterate.compare_analyses import Answer
from lastiterate.formatting import spell
from lastiterate.paper.counterexamples import setting as shared
from lastiterate.paper.counterexamples.setting import Case, Probe, Setting, last_iterate_scores, require_plain, required
from lastiterate.privacy.analyses.last_iterate import last_iterate
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.pairs import pair_of
from lastiterate.run import DPSGD

TAKES = ("alpha", "worst")
DEFAULTS = Setting(steps=3, sample_rate=0.1, noise_multiplier=1.0, delta=1e-6, models=100_000)  # the paper's
_CURVE = np.linspace(0.0, 1.0, 41)


@dataclass(frozen=True)
class Regularised(BringsProblem):
    """A canary with a constant gradient, no other data, and the regulariser alpha / (2 eta) ||m||^2."""

    alpha: float

    def __post_init__(self) -> None:
        number("alpha", self.alpha, 0.0, 1.0)

    def arm(self, run: DPSGD, problem: object, facts: Facts) -> Armed:
        import jax.numpy as jnp

        from lastiterate.training import GradientCanary, Problem

        rate = require_plain(run)
        strength = self.alpha / rate
        start = np.zeros(1, np.float32)
        setting = Problem(start, regulariser=lambda model, step: 0.5 * strength * jnp.sum(jnp.square(model)))
        canary = GradientCanary(np.array([run.clip_norm], np.float32))
        return Armed(setting, canary, LinearScore(np.ones(1), 0.0, rate * noise_unit(self.seen(run))))

    def words(self, facts: Facts) -> Words:
        return Words(f"quadratic regulariser, alpha {spell(self.alpha)}", "standard deviations of the noise")

    def seen(self, run: DPSGD) -> DPSGD:
        """Return the run with the step weights that result from the regulariser."""
        ago = np.arange(run.steps - 1, -1, -1, dtype=np.float64)
        return run.replace(optimizer=None, weights=(1.0 - self.alpha) ** ago)


def find_epsilon(setting: Setting, run: DPSGD, alpha: float, name: str) -> Case:
    """Return the exact epsilon of the last iterate, and the lower bound that an attack on it finds."""
    attack = Regularised(alpha)
    seen = attack.seen(run)
    scores = last_iterate_scores(setting, run, attack, name)
    found = shared.lower_bound(setting, scores, "last-iterate", "a-priori", seen)
    exact = Answer(last_iterate(seen).epsilon(setting.delta))
    return Case("", exact, found, "last-iterate family with the regulariser's weights")


def probe(setting: Setting, track: Track = iter) -> Probe:
    """Compute epsilon for many values of alpha, and audit the requested alpha."""
    run = setting.run(required("steps", setting.steps), required("noise_multiplier", setting.noise_multiplier))
    alphas = sorted({*_CURVE.tolist(), setting.alpha})
    rows: list[Row] = [
        {"alpha": alpha, "epsilon": last_iterate(Regularised(alpha).seen(run)).epsilon(setting.delta)}
        for alpha in track(alphas)
    ]
    case = find_epsilon(setting, run, setting.alpha, "quadratic")
    return Probe("quadratic", setting, run, (case,), rows)


# Rounded support: the paper's upper bound for alpha = 1/2.

LEAST = 0.0005  # smaller values of the sum, including zero, are rounded up to this
BASE = 1.05  # then all values are rounded up to the next integer power of this
_DIGITS = 64  # a float64 of at least 2^-11 has no binary digits beyond these


def rounded_support(steps: int, sample_rate: float, noise_multiplier: float) -> PrivacyCurve:
    """Return the paper's upper bound on the privacy curve of ``steps`` steps with weights 1, 1/2, 1/4, ...

    The difference from `last_iterate`, which does not round, is the effect of the paper's rounding. The paper does not
    say whether it rounds after each step, which would round up more. We round the finished sum once.
    """
    law = rounded_law(steps, sample_rate, noise_multiplier)
    return PrivacyCurve(pair_of(law), "rounded_support", is_guarantee=False)


def rounded_law(steps: int, sample_rate: float, noise_multiplier: float) -> Law:
    """Return the distribution of the rounded sum."""
    values = BASE ** np.arange(math.ceil(math.log(LEAST, BASE)), math.ceil(math.log(2.0, BASE)) + 1.0)
    at_most, above = _tails(values, steps, sample_rate)
    # Differences of the smaller tail lose no relevant precision.
    chances = np.where(at_most < 0.5, np.diff(at_most, prepend=0.0), -np.diff(above, prepend=1.0))
    taken = chances > 0.0
    noise = noise_multiplier * math.sqrt((1.0 - 0.25**steps) / 0.75)
    return Law(noise, 0.0, blocks=((values[taken], chances[taken]),))


def _tails(values: FloatArray, steps: int, rate: float) -> tuple[FloatArray, FloatArray]:
    """Return the probabilities that the sum is at most, and above, each value. Values must be at least 2^-11.

    The draws are the binary digits of the sum of 2^-(i-1) Bernoulli(q). Comparing digits, first to last, gives the
    distribution function without enumeration.
    """
    later = (1.0 - rate) ** max(steps - _DIGITS, 0)  # if all digits agree, the later draws must be zero
    at_most, above = np.full(values.size, later), np.full(values.size, 1.0 - later)
    digits, rest = [], values  # the digits of 1, of 1/2, ... of values below 2
    for _ in range(min(steps, _DIGITS)):
        digits.append(rest >= 1.0)
        rest = 2.0 * (rest - digits[-1])
    for digit in reversed(digits):
        at_most = np.where(digit, 1.0 - rate + rate * at_most, (1.0 - rate) * at_most)
        above = np.where(digit, rate * above, rate + (1.0 - rate) * above)
    never = values >= 2.0
    return np.where(never, 1.0, at_most), np.where(never, 0.0, above)
