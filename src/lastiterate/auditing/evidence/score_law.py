"""What the linear analysis says about scores: signal * S / s + N(0, spread^2) with the canary, N alone without it.

S is how much of the canary is in the last iterate and s the standard deviation of its noise. Where one example replaces
another, "without it" is the mirror image, -signal * S / s + N(0, spread^2).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from lastiterate.arrays import FloatArray
from lastiterate.privacy.mixtures.distribution import density, probability_below
from lastiterate.privacy.mixtures.law import Law, law_of
from lastiterate.run import DPSGD, LINEAR, require_basic


def score_below(run: DPSGD, scores: FloatArray, *, spread: float = 1.0, signal: float = 1.0) -> FloatArray:
    """The probability that a model with the canary has a smaller score than each of these."""
    return probability_below(_law(run, spread, signal), scores)


def false_alarms(run: DPSGD, scores: FloatArray, *, spread: float = 1.0, signal: float = 1.0) -> FloatArray:
    """The probability that a model without the canary has a larger score than each of these."""
    if run.neighbours == "replace":
        return score_below(run, -scores, spread=spread, signal=signal)
    rates: FloatArray = ndtr(-scores / spread)
    return rates


def score_density(run: DPSGD, scores: FloatArray, *, spread: float = 1.0, signal: float = 1.0) -> FloatArray:
    """The density of the score of a model with the canary."""
    return density(_law(run, spread, signal), scores)


def density_without(run: DPSGD, scores: FloatArray, *, spread: float = 1.0, signal: float = 1.0) -> FloatArray:
    """The density of the score of a model without it."""
    if run.neighbours == "replace":
        return score_density(run, -scores, spread=spread, signal=signal)
    values: FloatArray = np.exp(-0.5 * np.square(scores / spread)) / (spread * math.sqrt(2.0 * math.pi))
    return values


def _law(run: DPSGD, spread: float, signal: float) -> Law:
    law = law_of(require_basic(run, "linear scores", knows=LINEAR))
    return law.scaled(signal / law.noise, spread)
