"""The paper's upper bound on the quadratic regulariser with alpha = 1/2: its rounding of a support of 2^T points.

Not needed to know epsilon, which `last_iterate` computes without rounding; it tells how much of the paper's ratio is
rounding. The sum of 2^-(i-1) Bernoulli(q) has the draws as its binary digits, so that its distribution function
follows from comparing digits, first to last, and nothing is enumerated.

The paper does not say whether it rounded the finished sum once or after adding each step, which would round up more.
We follow its words, which speak of the support of the sum: once.
"""

from __future__ import annotations

import math

import numpy as np

from lastiterate.arrays import BoolArray, FloatArray
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.pairs import pair_of

LEAST = 0.0005  # smaller values of the sum are rounded up to it, zero among them
BASE = 1.05  # and then all to the next integer power of it
_DIGITS = 64  # a float of at least 2^-11 has no binary digit beyond


def rounded_support(steps: int, sample_rate: float, noise_multiplier: float) -> PrivacyCurve:
    """The paper's bound for ``steps`` steps with weights 1, 1/2, 1/4, ...: never below the exact curve."""
    law = rounded_law(steps, sample_rate, noise_multiplier)
    return PrivacyCurve(pair_of(law), "rounded_support", is_guarantee=False)


def rounded_law(steps: int, sample_rate: float, noise_multiplier: float) -> Law:
    """The law of the rounded sum."""
    first = math.ceil(math.log(LEAST, BASE))
    last = math.ceil(math.log(2.0, BASE))
    values = BASE ** np.arange(first, last + 1.0)
    at_most, above = _tails(values, steps, sample_rate)
    # Differences of the smaller tail lose nothing that matters against it.
    chances = np.where(at_most < 0.5, np.diff(at_most, prepend=0.0), -np.diff(above, prepend=1.0))
    taken = chances > 0.0
    noise = noise_multiplier * math.sqrt((1.0 - 0.25**steps) / 0.75)
    none = np.empty(0)
    return Law(noise, 0.0, none, none, none, ((values[taken], chances[taken]),))


def _tails(values: FloatArray, steps: int, rate: float) -> tuple[FloatArray, FloatArray]:
    """The chances that the sum is at most, and above, each of some values that are at least 2^-11."""
    later = (1.0 - rate) ** max(steps - _DIGITS, 0)  # where all digits agree, the later ones must be zero
    at_most, above = np.full(values.size, later), np.full(values.size, 1.0 - later)
    for digit in reversed(_digits(values, min(steps, _DIGITS))):
        at_most = np.where(digit, 1.0 - rate + rate * at_most, (1.0 - rate) * at_most)
        above = np.where(digit, rate * above, rate + (1.0 - rate) * above)
    never = values >= 2.0
    return np.where(never, 1.0, at_most), np.where(never, 0.0, above)


def _digits(values: FloatArray, count: int) -> list[BoolArray]:
    """The first binary digits of numbers below 2: that of 1, of 1/2, ..."""
    digits = []
    rest = values
    for _ in range(count):
        digit = rest >= 1.0
        digits.append(digit)
        rest = 2.0 * (rest - digit)
    return digits
