"""Numbers of errors before they are counted: binomial, at one threshold and at two of them at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr, bdtrik, gammaln, xlog1py, xlogy

from lastiterate.arrays import FloatArray, IntArray

_LEFT_OUT = 1e-13  # of the probability, at either end


@dataclass(frozen=True, eq=False)
class ErrorCounts:
    """How many of so many models are called wrongly: the numbers that occur, and how probable each is."""

    models: int
    rate: float
    counts: IntArray

    @classmethod
    def of(cls, models: int, rate: float) -> ErrorCounts:
        """The law at this rate of errors."""
        rate = min(max(rate, 0.0), 1.0)
        inside = min(max(rate, 1e-15), 1.0 - 1e-15)
        low, high = (float(bdtrik(end, float(models), inside)) for end in (_LEFT_OUT, 1.0 - _LEFT_OUT))
        first = 0 if np.isnan(low) else max(int(low) - 1, 0)
        last = models if np.isnan(high) else min(int(np.ceil(high)) + 1, models)
        return cls(models, rate, np.arange(first, last + 1))

    @property
    def masses(self) -> FloatArray:
        """The probability of each of the numbers."""
        return _binomial(self.counts, self.models, self.rate)

    @property
    def at_most(self) -> FloatArray:
        """The probability of less than the first of the numbers, and of at most each of them."""
        fewer = np.concatenate((self.counts[:1] - 1, self.counts))
        return np.where(fewer < 0, 0.0, bdtr(np.maximum(fewer, 0), self.models, self.rate))


def both(fewer: ErrorCounts, more: ErrorCounts) -> FloatArray:
    """The probability of each number of errors at the threshold that makes fewer, with each at the other: a matrix.

    Whoever is wrong at the first is wrong at the second, too.
    """
    left = more.models - fewer.counts[:, None]
    rest = max(1.0 - fewer.rate, 1e-300)
    share = min(max((more.rate - fewer.rate) / rest, 0.0), 1.0)
    added = more.counts[None, :] - fewer.counts[:, None]
    possible = (added >= 0) & (added <= left)
    given = np.where(possible, _binomial(np.where(possible, added, 0), np.maximum(left, 0), share), 0.0)
    joint: FloatArray = fewer.masses[:, None] * given
    return joint


def _binomial(count: IntArray, models: int | IntArray, rate: float) -> FloatArray:
    """The probability of so many errors."""
    ways = gammaln(np.add(models, 1.0)) - gammaln(count + 1.0) - gammaln(np.subtract(models, count) + 1.0)
    mass: FloatArray = np.exp(ways + xlogy(count, rate) + xlog1py(np.subtract(models, count), -rate))
    return mass
