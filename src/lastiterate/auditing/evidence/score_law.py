"""What the linear analysis says about scores: signal * S / s + N(0, spread^2) with the canary, N alone without it.

S is how much of the canary is in the last iterate and s the standard deviation of its noise.
"""

from __future__ import annotations

from lastiterate.arrays import FloatArray
from lastiterate.privacy.mixtures.distribution import density, probability_below
from lastiterate.privacy.mixtures.law import Law, law_of
from lastiterate.run import DPSGD, require_basic


def score_below(run: DPSGD, scores: FloatArray, *, spread: float = 1.0, signal: float = 1.0) -> FloatArray:
    """The probability that a model with the canary has a smaller score than each of these."""
    return probability_below(_law(run, spread, signal), scores)


def score_density(run: DPSGD, scores: FloatArray, *, spread: float = 1.0, signal: float = 1.0) -> FloatArray:
    """The density of the score of a model with the canary."""
    return density(_law(run, spread, signal), scores)


def _law(run: DPSGD, spread: float, signal: float) -> Law:
    law = law_of(require_basic(run, "attacks"))
    return law.scaled(signal / law.noise, spread)
