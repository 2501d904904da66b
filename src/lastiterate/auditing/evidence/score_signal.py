"""The signal d' of an attack, the distribution of its scores by the linear analysis, and the kinds of scores.

Scores under the linear analysis are signal * S / s + N(0, spread^2) with the canary and N(0, spread^2) without it. S is
the amount of the canary in the last iterate, and s the standard deviation of its noise. If one example replaces
another, scores without the canary are the mirror image, -signal * S / s + N(0, spread^2).
"""

import math
import warnings
from collections.abc import Callable
from enum import Enum

import numpy as np
from scipy.special import ndtr, ndtri

from lastiterate.attacks.attack import ExpectedScores, LikelihoodRatio, LinearScores
from lastiterate.auditing.design import Design, OneModel
from lastiterate.common.types import FloatArray
from lastiterate.formatting import spell
from lastiterate.labels import ANALYSES
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures.distributions import density, probability_below
from lastiterate.privacy.mixtures.law import Law, law_of
from lastiterate.run import DPSGD
from lastiterate.supported_runs import COMBINATIONS, LINEAR, Support, require_supported

_LEAST_SHARE = 0.1  # an attack failed if its signal is below this share of the expected signal (confidence _SURE)
_SURE = 0.99
_CONFIDENCE = 0.95  # confidence of the lower bound on the signal, for the strength of a verdict
_LARGE = 1e100
IDEAL = LinearScores()  # the scores of a perfect attack: all of the canary, and noise


def signal_of(scores_in: FloatArray, scores_out: FloatArray) -> float:
    """Return d', the distance of the means in standard deviations. Return 0 if d' is not defined."""
    return defined_signal(scores_in, scores_out) or 0.0


_LINEAR_SCORES = Support("linear scores", LINEAR | COMBINATIONS)


def expected_signal(run: DPSGD, signal: float = 1.0, spread: float = 1.0) -> float:
    """Return the d' of scores under the linear analysis."""
    mean, variance = _shift(run)
    return signal * mean / math.sqrt(spread**2 + signal**2 * variance)


def _shift(run: DPSGD) -> tuple[float, float]:
    """Return the distance of the two means, and the mean of the two variances without noise, in units of noise."""
    law = law_of(require_supported(run, _LINEAR_SCORES))
    worlds = 2.0 if run.is_mirrored else 1.0  # number of worlds in which an example moves the scores
    return float(worlds * law.mean / law.noise), float(0.5 * worlds * law.variance / law.noise**2)


def signal_bound(scores_in: FloatArray, scores_out: FloatArray, models: int | None = None) -> float | None:
    """Return a 95% lower confidence bound on d', or None if there are too few scores or all are equal.

    If ``models`` is given, compute the bound as if there were this number of scores per world. Infinite scores are
    replaced by finite ones. The bound is infinite if scores are constant in each world and larger with the canary.
    """
    finite = np.concatenate((scores_in, scores_out))
    finite = finite[np.isfinite(finite)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    found = defined_signal(np.clip(scores_in, low, high), np.clip(scores_out, low, high))
    if found is None:
        is_separated = min(len(scores_in), len(scores_out)) > 1 and scores_in.min() > scores_out.max()
        return math.inf if is_separated else None
    sizes = (models, models) if models is not None else (len(scores_in), len(scores_out))
    return found - float(ndtri(_CONFIDENCE)) * _standard_error(found, sizes)


def share_of(run: DPSGD, signal: float, spread: float) -> float:
    """Return the share of the canary (at most 1) that linear scores of this spread show, if ``signal`` is d'."""
    mean, variance = _shift(run)
    left = mean**2 - signal**2 * variance
    return 1.0 if left <= (signal * spread) ** 2 else signal * spread / math.sqrt(left)


def spread_of(run: DPSGD, signal: float) -> float:
    """Return the spread (at least 1) of linear scores that show all of the canary, if ``signal`` is d'."""
    mean, variance = _shift(run)
    return math.sqrt(max((mean / signal) ** 2 - variance, 1.0))


def failure_of(scores_in: FloatArray, scores_out: FloatArray, expected: float | None) -> str | None:
    """Return a sentence if the scores show that the attack failed, else None. ``expected`` is the expected d'."""
    if len({*np.unique(scores_in), *np.unique(scores_out)}) == 1:
        return "The attack failed, so there is no evidence about training: all scores are equal."
    found = defined_signal(scores_in, scores_out)
    if found is None or expected is None:
        return None
    most = found + float(ndtri(_SURE)) * _standard_error(found, (len(scores_in), len(scores_out)))
    if most >= _LEAST_SHARE * expected:
        return None
    return (
        f"The attack failed, so there is no evidence about training: its signal d' is {spell(found, 3)} (below "
        f"{spell(most, 3)} with 99% confidence), but {spell(expected, 3)} was expected."
    )


def _standard_error(signal: float, sizes: tuple[int, int]) -> float:
    """Return the standard error of d' (Hedges and Olkin 1985)."""
    return math.sqrt(1.0 / sizes[0] + 1.0 / sizes[1] + signal**2 / (2.0 * sum(sizes)))


def standardised(value: float, scores: FloatArray) -> float:
    """Return the distance of a value from the mean of the scores in standard deviations, or 0 if all are equal."""
    largest = max(np.abs(scores).max(), abs(value))
    if not np.isfinite(largest):
        return 0.0
    power = _rescaling(largest)
    scaled = np.ldexp(scores, power)
    spread = float(np.std(scaled))
    return float((np.ldexp(value, power) - np.mean(scaled)) / spread) if spread > 0.0 else 0.0


def _rescaling(largest: float) -> int:
    # The power of two by which scores are multiplied so that their squares stay in the range of floats.
    return -int(np.frexp(largest)[1]) if largest > _LARGE or 0.0 < largest < 1.0 / _LARGE else 0


def defined_signal(scores_in: FloatArray, scores_out: FloatArray) -> float | None:
    """Return d', or None if it is not defined for these scores."""
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


# Score distribution: probabilities and densities of scores by the linear analysis.


def score_below(run: DPSGD, at: FloatArray, scores: LinearScores = IDEAL) -> FloatArray:
    """Return the probability that a model with the canary has a score below each of ``at``."""
    return probability_below(_law(run, scores), at)


def false_alarms(run: DPSGD, at: FloatArray, scores: LinearScores = IDEAL) -> FloatArray:
    """Return the probability that a model without the canary has a score above each of ``at``."""
    return score_below(run, -at, scores) if run.is_mirrored else np.asarray(ndtr(-at / scores.spread))


def linear_rates(run: DPSGD, thresholds: FloatArray, scores: LinearScores) -> tuple[FloatArray, FloatArray]:
    """Return the false positive and the false negative rate of linear scores at each threshold."""
    return false_alarms(run, thresholds, scores), score_below(run, thresholds, scores)


def score_densities(run: DPSGD, at: FloatArray, scores: LinearScores) -> tuple[FloatArray, FloatArray]:
    """Return the densities of the score of a model without the canary, and of a model with the canary."""
    law, spread = _law(run, scores), scores.spread
    if run.is_mirrored:
        return density(law, -at), density(law, at)
    without = np.exp(-0.5 * np.square(at / spread)) / (spread * math.sqrt(2.0 * math.pi))
    return np.asarray(without), density(law, at)


def _law(run: DPSGD, scores: LinearScores) -> Law:
    law = law_of(require_supported(run, _LINEAR_SCORES))
    return law.scaled(scores.signal / law.noise, scores.spread)


# Kinds of scores: the kind decides which estimation methods apply.


class Kind(Enum):
    """The kind of scores: of the last (or released) iterates, of all iterates, or of many canaries in one model."""

    LAST_ITERATE = "last iterate"
    ALL_ITERATES = "all iterates"
    ONE_MODEL = "one model"


def kind_of(design: Design, expected: ExpectedScores) -> Kind:
    """Return the kind of an audit's scores."""
    if isinstance(design, OneModel):
        return Kind.ONE_MODEL
    return Kind.ALL_ITERATES if sees_every_step(expected) else Kind.LAST_ITERATE


def sees_every_step(expected: ExpectedScores) -> bool:
    """Return whether the attack sees all iterates, even if the run does not release them."""
    return isinstance(expected, LikelihoodRatio) and not expected.released


def guarantee_of(run: DPSGD) -> Callable[[DPSGD], PrivacyCurve]:
    """Return the analysis whose guarantee no attack on this run may exceed."""
    return ANALYSES[run.guarantee].curve
