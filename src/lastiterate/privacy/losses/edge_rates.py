"""Error rates where nearly all of the loss lies at its edge: little noise, or a rare canary.

The total loss is at least its edge, sum_t log(1 - q_t), and with little noise hardly more unless the canary was used.
The best threshold then is so close to the edge that no line resolves it. Two closed forms enclose the rate there.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from lastiterate.arrays import FloatArray
from lastiterate.privacy.losses.loss_cumulant import LossCumulant


def fnr_bounds(cumulant: LossCumulant, fpr: float) -> tuple[float, float]:
    """A lower and an upper bound on the smallest false negative rate, P over Q.

    From below: the run has the canary in none of the sampled batches with probability exp(edge), and then there are
    only the steps that have it for sure, one Gaussian mechanism. From above: the test that says "in" if any sampled
    step exceeds a threshold of its own. That holds for a group too, of which only one example is then looked for.
    """
    if cumulant.mirrored:
        return 0.0, 1.0 - fpr
    sampled = cumulant.rates < 1.0
    counts, rates, sigmas = cumulant.counts[sampled], cumulant.rates[sampled], cumulant.sigmas[sampled]
    mu = math.sqrt(float(np.sum(cumulant.counts[~sampled] / cumulant.sigmas[~sampled] ** 2))) * cumulant.group
    unseen = 1.0 - fpr if mu == 0.0 else float(ndtr(-ndtri(fpr) - mu))
    lower = math.exp(float(counts @ np.log1p(-rates)) * cumulant.group) * unseen
    upper = _of_tests_step_by_step(counts, rates, 1.0 / sigmas, fpr) if counts.size else 1.0 - fpr
    return min(lower, upper), min(upper, 1.0 - fpr)


def _of_tests_step_by_step(counts: FloatArray, rates: FloatArray, slopes: FloatArray, fpr: float) -> float:
    """The false negative rate where any step alone decides for "in", all of them at the same likelihood ratio."""
    log_odds = np.log(rates) - np.log1p(-rates)
    goal, widest = math.log1p(-fpr), float(np.max(slopes * (0.5 * slopes + 40.0) + np.abs(log_odds)))
    low, high = -widest, widest  # of the logarithm of the likelihood ratio
    for _ in range(100):
        middle = 0.5 * (low + high)
        thresholds = 0.5 * slopes + (middle - log_odds) / slopes
        enough = float(counts @ log_ndtr(thresholds)) >= goal
        low, high = (low, middle) if enough else (middle, high)
    thresholds = 0.5 * slopes + (high - log_odds) / slopes
    accepted = np.logaddexp(np.log1p(-rates) + log_ndtr(thresholds), np.log(rates) + log_ndtr(thresholds - slopes))
    return math.exp(min(float(counts @ accepted), 0.0))
