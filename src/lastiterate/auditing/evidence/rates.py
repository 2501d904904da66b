"""From counted errors to upper bounds on error rates, and from these to epsilon without further assumptions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainccinv, ndtri

from lastiterate.arrays import FloatArray, IntArray

CORRECTION_RATIO = 1.25  # of neighbouring ranks: finer costs confidence, coarser rounds counts up by more
_TIE = 1e-9  # of epsilon, for a distance of one standard deviation
_FURTHEST = 8.0  # standard deviations


def upper_bound(errors: ArrayLike, models: int, error: float) -> FloatArray:
    """Clopper and Pearson's upper bound on a rate, wrong with probability ``error`` at most."""
    count = np.asarray(errors, dtype=np.float64)
    all_wrong = count >= models
    return np.where(all_wrong, 1.0, betainccinv(count + 1.0, np.where(all_wrong, 1.0, models - count), error))[()]


def simultaneous_bound(errors: ArrayLike, models: int, error: float) -> FloatArray:
    """Upper bounds on the error rates of all thresholds at once, all of them right but with probability ``error``.

    Take false positives. Let X be the score of the (k+1)-th largest of n models. A threshold with at most k false
    positives lies above X, so its rate is at most the chance that a new score exceeds X. Scores are a decreasing
    function of uniform numbers; a new one exceeds X only if its number is smaller than X's, which is the (k+1)-th
    smallest of n and so has the law Beta(k+1, n-k); with ties it may have to be smaller still. So Clopper and Pearson's
    bound for k errors, a quantile of that law, holds for every threshold with at most k errors together. It is used for
    ranks k that are fixed before the scores are seen, with an equal share of ``error`` each, and a count is rounded up
    to the next rank. False negatives are the same from below.
    """
    grid = ranks(models, CORRECTION_RATIO)
    bounds = np.append(upper_bound(grid, models, error / grid.size), 1.0)
    return bounds[np.searchsorted(grid, errors)]


def ranks(models: int, ratio: float) -> IntArray:
    """Numbers of errors, out of so many models, that stand for all others.

    They are 0, 1, 2 and so on, soon each ``ratio`` times the one before, up to half of the models. From there on they
    get as much denser again towards all models, which is not among them: a rate that is 1 shows nothing.
    """
    steps = [0]
    while steps[-1] <= models // 2:
        steps.append(max(steps[-1] + 1, int(np.ceil(steps[-1] * ratio))))
    ends = np.array(steps[:-1])
    return np.unique(np.concatenate((ends, models - ends[1:])))


def epsilon_of(fpr: float | FloatArray, fnr: float | FloatArray, delta: float) -> FloatArray:
    """The least epsilon >= 0 at which (epsilon, delta)-DP allows these two error rates."""
    with np.errstate(divide="ignore"):
        forward = np.log(np.maximum(1.0 - fnr - delta, 0.0)) - np.log(fpr)
        backward = np.log(np.maximum(1.0 - fpr - delta, 0.0)) - np.log(fnr)
    least: FloatArray = np.maximum(np.maximum(forward, backward), 0.0)
    return least


@dataclass(frozen=True)
class AssumptionFree:
    """The definition of (epsilon, delta)-DP, and nothing else."""

    def epsilon(self, fpr: float, fnr: float, delta: float) -> float:
        """The lower bound that upper bounds on the two rates imply."""
        return float(epsilon_of(fpr, fnr, delta))

    def noise_multiplier(self, fpr: float, fnr: float) -> float | None:
        """None: no noise is assumed."""
        return None

    def merits(self, fpr: FloatArray, fnr: FloatArray, delta: float) -> FloatArray:
        """How good each row of possible upper bounds is: the mean epsilon, and where that is equal, the distance.

        That is between two normal distributions with these rates.
        """
        epsilons = epsilon_of(fpr[:, :, None], fnr[:, None, :], delta)
        overlap = sum(np.clip(ndtri(rate), -_FURTHEST, _FURTHEST).mean(axis=1) for rate in (fpr, fnr))
        merits: FloatArray = epsilons.mean(axis=(1, 2)) - _TIE * overlap
        return merits
