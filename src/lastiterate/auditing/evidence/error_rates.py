"""Upper bounds on error rates from counted errors, the assumption-free epsilon, and the distribution of errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, bdtrik, betainc, betainccinv, betaln, gammaln, ndtri, xlog1py, xlogy

from lastiterate.common.errors import BadArgument
from lastiterate.common.types import FloatArray, Floats, IntArray
from lastiterate.privacy.mixtures.solve import invert

RateBound: TypeAlias = Callable[[ArrayLike, int, float], FloatArray]

CORRECTION_RATIO = 1.25  # ratio of neighbouring ranks: a finer grid costs confidence, a coarser one accuracy
_TIE = 1e-9  # epsilon added for each standard deviation of distance, to break ties
_FURTHEST = 8.0  # the largest normal quantile: rates closer than 1e-15 to 0 or 1 are cut off
_OUTWARDS = 1e-12  # relative increase of a rate, more than the error of the root finder


def upper_bound(errors: ArrayLike, models: int, error: float) -> FloatArray:
    """Return Clopper and Pearson's upper bound on a rate. It is wrong with probability at most ``error``."""
    count = np.asarray(errors, dtype=np.float64)
    all_wrong = count >= models
    return np.where(all_wrong, 1.0, betainccinv(count + 1.0, np.where(all_wrong, 1.0, models - count), error))[()]


def anytime_bound(errors: ArrayLike, models: int, error: float) -> FloatArray:
    """Return an upper bound on a rate that holds for all numbers of models at once, with probability 1 - ``error``.

    The evidence against a rate p is the mixture of the likelihood ratios of r to p over the rates r below p, with the
    weights of Jeffreys' prior. It is a supermartingale that begins at 1. The bound is the rate p at which the evidence
    reaches 1 / error (docs/method.md).
    """
    if not 0.0 < error <= 0.5:
        raise BadArgument("error", f"must be above 0 and at most 0.5, got {error!r}")
    counts, index = np.unique(np.asarray(errors, dtype=np.float64), return_inverse=True)
    bounds = np.ones(counts.size)
    some = counts < models
    if np.any(some):
        bounds[some] = _crossing(counts[some], models, error)
    return bounds[index].reshape(np.shape(errors))[()]


def _crossing(count: FloatArray, models: int, error: float) -> FloatArray:
    right = models - count
    constant = betaln(count + 0.5, right + 0.5) - betaln(0.5, 0.5)

    def evidence(log_rate: Floats) -> tuple[Floats, Floats]:
        """Return the logarithm of the evidence, and its derivative by the logarithm of the rate."""
        rate = np.minimum(np.exp(log_rate), 1.0 - 1e-16)
        below = betainc(0.5, 0.5, rate)
        logarithm = (
            constant
            + np.log(betainc(count + 0.5, right + 0.5, rate))
            - np.log(below)
            - count * log_rate
            - right * np.log1p(-rate)
        )
        density = np.sqrt(rate / (1.0 - rate)) / np.pi  # of the prior, for the logarithm of the rate
        slope = (models * rate - count) / (1.0 - rate) - density / below * (1.0 - np.exp(-np.maximum(logarithm, 0.0)))
        return logarithm, slope

    # Clopper and Pearson's bound, for one look, is below this bound, by Markov's inequality.
    low = np.log(upper_bound(count, models, error))
    goal = np.full(count.size, -np.log(error))
    found = np.exp(invert(evidence, goal, np.minimum(low + 0.2, 0.5 * low), low, np.zeros(count.size)))
    return np.asarray(np.minimum(found * (1.0 + _OUTWARDS), 1.0))


def bound_on_rates(choice: str, validity: str = "fixed") -> RateBound:
    """Return the function that turns numbers of errors into upper bounds on rates."""
    if choice == "corrected":
        return simultaneous_bound
    return anytime_bound if validity == "anytime" else upper_bound


def simultaneous_bound(errors: ArrayLike, models: int, error: float) -> FloatArray:
    """Return upper bounds on the error rates of all thresholds at once. All hold with probability 1 - ``error``.

    A threshold with at most k errors lies beyond the (k+1)-th most extreme score, whose tail probability is distributed
    as Beta(k+1, n-k). The ranks k are fixed in advance and share the error. Counts are rounded up to the next rank.
    """
    grid = ranks(models, CORRECTION_RATIO)
    bounds = np.append(upper_bound(grid, models, error / grid.size), 1.0)
    return bounds[np.searchsorted(grid, errors)]


def ranks(models: int, ratio: float) -> IntArray:
    """Return a grid of error counts below ``models``: 0, 1, 2 and so on, later in steps of the factor ``ratio``.

    The upper half of the grid is the mirror image of the lower half.
    """
    steps = [0]
    while steps[-1] <= models // 2:
        steps.append(max(steps[-1] + 1, int(np.ceil(steps[-1] * ratio))))
    ends = np.array(steps[:-1])
    return np.unique(np.concatenate((ends, models - ends[1:])))


def epsilon_of(fpr: float | FloatArray, fnr: float | FloatArray, delta: float) -> FloatArray:
    """Return the least epsilon >= 0 at which (epsilon, delta)-DP allows these two error rates."""
    with np.errstate(divide="ignore"):
        forward = np.log(np.maximum(1.0 - fnr - delta, 0.0)) - np.log(fpr)
        backward = np.log(np.maximum(1.0 - fpr - delta, 0.0)) - np.log(fnr)
    least: FloatArray = np.maximum(np.maximum(forward, backward), 0.0)
    return least


@dataclass(frozen=True)
class AssumptionFree:
    """The rule that uses only the definition of (epsilon, delta)-DP."""

    def epsilon(self, fpr: float, fnr: float, delta: float) -> float:
        """Return a lower bound on epsilon, from upper bounds on the false positive and false negative rates."""
        return float(epsilon_of(fpr, fnr, delta))

    def noise_multiplier(self, fpr: float, fnr: float) -> float | None:
        """Return None: this rule does not estimate noise."""
        return None

    def merits(self, fpr: FloatArray, fnr: FloatArray, delta: float) -> FloatArray:
        """Return a merit for each row of upper bounds on the error rates: the mean of the epsilons that they
        imply, plus a small term that breaks ties.
        """
        epsilons = epsilon_of(fpr[:, :, None], fnr[:, None, :], delta)
        overlap = sum(np.clip(ndtri(rate), -_FURTHEST, _FURTHEST).mean(axis=1) for rate in (fpr, fnr))
        return np.asarray(epsilons.mean(axis=(1, 2)) - _TIE * overlap)


# Error counts: the binomial distribution of the number of errors, at one threshold and jointly at two.

_LEFT_OUT = 1e-13  # probability left out at either end


@dataclass(frozen=True, eq=False)
class ErrorCounts:
    """The distribution of the number of errors among ``models`` models. ``counts`` are the possible numbers."""

    models: int
    rate: float
    counts: IntArray

    @classmethod
    def of(cls, models: int, rate: float) -> ErrorCounts:
        """Return the distribution at this error rate, without counts that are extremely unlikely."""
        rate = min(max(rate, 0.0), 1.0)
        inside = min(max(rate, 1e-15), 1.0 - 1e-15)
        low, high = (float(bdtrik(end, float(models), inside)) for end in (_LEFT_OUT, 1.0 - _LEFT_OUT))
        first = 0 if np.isnan(low) else max(int(low) - 1, 0)
        last = models if np.isnan(high) else min(int(np.ceil(high)) + 1, models)
        return cls(models, rate, np.arange(first, last + 1))

    @property
    def masses(self) -> FloatArray:
        """The probability of each of the ``counts``."""
        return _binomial(self.counts, self.models, self.rate)

    @property
    def at_most(self) -> FloatArray:
        """The probability of fewer errors than ``counts[0]``, then the probabilities of at most each of ``counts``."""
        fewer = np.concatenate((self.counts[:1] - 1, self.counts))
        return np.where(fewer < 0, 0.0, bdtr(np.maximum(fewer, 0), self.models, self.rate))


def both(fewer: ErrorCounts, more: ErrorCounts) -> FloatArray:
    """Return joint probabilities of error counts at two thresholds. A model that is wrong at the first threshold is
    wrong at both.
    """
    left = more.models - fewer.counts[:, None]
    rest = max(1.0 - fewer.rate, 1e-300)
    share = min(max((more.rate - fewer.rate) / rest, 0.0), 1.0)
    added = more.counts[None, :] - fewer.counts[:, None]
    possible = (added >= 0) & (added <= left)
    given = np.where(possible, _binomial(np.where(possible, added, 0), np.maximum(left, 0), share), 0.0)
    return np.asarray(fewer.masses[:, None] * given)


def _binomial(count: IntArray, models: int | IntArray, rate: float) -> FloatArray:
    ways = gammaln(np.add(models, 1.0)) - gammaln(count + 1.0) - gammaln(np.subtract(models, count) + 1.0)
    return np.asarray(np.exp(ways + xlogy(count, rate) + xlog1py(np.subtract(models, count), -rate)))
