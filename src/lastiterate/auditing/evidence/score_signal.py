"""How strong the signal of an attack is, and whether it is so much weaker than expected that the attack failed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from enum import Enum

import numpy as np
from scipy.special import ndtr, ndtri

from lastiterate.attacks.attack import ExpectedScores, LikelihoodRatio
from lastiterate.auditing.design import Design, OneModel
from lastiterate.common.types import FloatArray
from lastiterate.formatting import spell
from lastiterate.privacy.analyses.composition import composition
from lastiterate.privacy.analyses.no_amplification import no_amplification
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures.distributions import density, probability_below
from lastiterate.privacy.mixtures.law import Law, law_of
from lastiterate.run import DPSGD, LINEAR, require_basic

_LEAST_SHARE = 0.1  # of the expected signal: an attack that has less, of that we are sure, failed
_SURE = 0.99
_CONFIDENCE = 0.95  # of the lower bound on the signal by which a verdict is judged
_LARGE = 1e100


def signal_of(scores_in: FloatArray, scores_out: FloatArray) -> float:
    """d': the distance of the means in standard deviations; 0 where that is not defined."""
    found = _defined_signal(scores_in, scores_out)
    return 0.0 if found is None else found


def is_defined(scores_in: FloatArray, scores_out: FloatArray) -> bool:
    """Whether the scores have a d'."""
    return _defined_signal(scores_in, scores_out) is not None


def expected_signal(run: DPSGD, signal: float = 1.0, spread: float = 1.0) -> float:
    """The d' of scores signal * S / s + N(0, spread^2) against N(0, spread^2), as the linear analysis expects them.

    Where one example replaces another, against the mirror image of the first.
    """
    mean, variance = _shift(run)
    return signal * mean / math.sqrt(spread**2 + signal**2 * variance)


def _shift(run: DPSGD) -> tuple[float, float]:
    """The mean distance of the two worlds, and half the sum of their variances without noise, in units of the noise."""
    law = law_of(require_basic(run, "linear scores", knows=LINEAR))
    worlds = 2.0 if run.neighbours == "replace" else 1.0  # in which an example is used
    return float(worlds * law.mean / law.noise), float(0.5 * worlds * law.variance / law.noise**2)


def signal_bound(scores_in: FloatArray, scores_out: FloatArray, models: int | None = None) -> float | None:
    """The lower end of a one-sided 95% confidence interval of d'; None: too few scores, or all are equal.

    ``models``: for this number of scores a world with the same d'. Infinite scores count as the largest finite ones.
    """
    finite = np.concatenate((scores_in, scores_out))
    finite = finite[np.isfinite(finite)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    found = _defined_signal(np.clip(scores_in, low, high), np.clip(scores_out, low, high))
    if found is None:
        return math.inf if _is_separated(scores_in, scores_out) else None
    sizes = (models, models) if models is not None else (len(scores_in), len(scores_out))
    return found - float(ndtri(_CONFIDENCE)) * _standard_error(found, sizes)


def _is_separated(scores_in: FloatArray, scores_out: FloatArray) -> bool:
    """Whether all scores are equal within a world, and larger with the canary."""
    return min(len(scores_in), len(scores_out)) > 1 and bool(scores_in.min() > scores_out.max())


def share_of(run: DPSGD, signal: float, spread: float) -> float:
    """The share of the canary with which linear scores of this spread have the signal d', at most 1."""
    mean, variance = _shift(run)
    left = mean**2 - signal**2 * variance
    return 1.0 if left <= (signal * spread) ** 2 else signal * spread / math.sqrt(left)


def spread_of(run: DPSGD, signal: float) -> float:
    """The spread of linear scores that show all of the canary and have the signal d', at least 1."""
    mean, variance = _shift(run)
    return math.sqrt(max((mean / signal) ** 2 - variance, 1.0))


def failure_of(scores_in: FloatArray, scores_out: FloatArray, expected: float | None) -> str | None:
    """Why these scores tell nothing about the training: the attack failed. None: nothing says that it did."""
    if len({*np.unique(scores_in), *np.unique(scores_out)}) == 1:
        return "The attack failed, which says nothing about the training: all scores are equal."
    found = _defined_signal(scores_in, scores_out)
    if found is None or expected is None:
        return None
    most = found + float(ndtri(_SURE)) * _standard_error(found, (len(scores_in), len(scores_out)))
    if most >= _LEAST_SHARE * expected:
        return None
    return (
        f"The attack failed, which says nothing about the training: its signal d' is {spell(found, 3)}, with 99% "
        f"confidence below {spell(most, 3)}, where {spell(expected, 3)} was expected."
    )


def _standard_error(signal: float, sizes: tuple[int, int]) -> float:
    """The standard error of d' (Hedges and Olkin 1985)."""
    return math.sqrt(1.0 / sizes[0] + 1.0 / sizes[1] + signal**2 / (2.0 * sum(sizes)))


def standardised(value: float, scores: FloatArray) -> float:
    """Return the distance of a value from the mean of the scores in standard deviations; 0 if they have none."""
    largest = max(np.abs(scores).max(), abs(value))
    if not np.isfinite(largest):
        return 0.0
    power = _rescaling(largest)
    scaled = np.ldexp(scores, power)
    spread = float(np.std(scaled))
    return float((np.ldexp(value, power) - np.mean(scaled)) / spread) if spread > 0.0 else 0.0


def _rescaling(largest: float) -> int:
    """Return the power of two by which scores are multiplied so that their squares stay in the range of floats."""
    return -int(np.frexp(largest)[1]) if largest > _LARGE or 0.0 < largest < 1.0 / _LARGE else 0


def _defined_signal(scores_in: FloatArray, scores_out: FloatArray) -> float | None:
    if min(len(scores_in), len(scores_out)) < 2:
        return None
    largest = max(np.abs(scores_in).max(), np.abs(scores_out).max())
    if not np.isfinite(largest):
        return None
    power = _rescaling(largest)
    scores_in, scores_out = np.ldexp(scores_in, power), np.ldexp(scores_out, power)
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("ignore")
        spread = np.sqrt(0.5 * (scores_in.var(ddof=1) + scores_out.var(ddof=1)))
        distance = scores_in.mean() - scores_out.mean()
    if not np.isfinite(distance) or not np.isfinite(spread) or not spread > 0.0:
        return None
    return float(distance / spread)


# What the linear analysis says about scores: signal * S / s + N(0, spread^2) with the canary, N alone without it.
#
# S is how much of the canary is in the last iterate and s the standard deviation of its noise. Where one example
# replaces another, "without it" is the mirror image, -signal * S / s + N(0, spread^2).


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


# What the scores of an audit are about: which methods apply to them follows from it.


class Kind(Enum):
    """Last (or all released) iterates of many models, all iterates of many models, or many canaries of one model."""

    LAST_ITERATE = "last iterate"
    ALL_ITERATES = "all iterates"
    ONE_MODEL = "one model"


def kind_of(design: Design, expected: ExpectedScores) -> Kind:
    """The kind of an audit's scores."""
    if isinstance(design, OneModel):
        return Kind.ONE_MODEL
    return Kind.ALL_ITERATES if sees_every_step(expected) else Kind.LAST_ITERATE


def sees_every_step(expected: ExpectedScores) -> bool:
    """Whether the attack sees all iterates, whatever the run releases."""
    return isinstance(expected, LikelihoodRatio) and not expected.released


# What no attack on a run may exceed.


def guarantee_of(run: DPSGD) -> Callable[[DPSGD], PrivacyCurve]:
    """The analysis that no attack on this run may exceed."""
    return composition if run.amplifies else no_amplification
