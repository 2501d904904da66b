"""Two distributions on the same finitely many points, such as two binomials.

By the lemma of Neyman and Pearson the best tests are the sets of points with the largest likelihood ratios, and there
are no more such sets than points. So epsilon is the largest of finitely many values, and nothing has to be solved.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import logsumexp

from lastiterate.arrays import FloatArray, Floats
from lastiterate.privacy.mixtures.pairs import RELATIVE_ERROR, larger_delta, smaller_delta
from lastiterate.privacy.mixtures.rows import each


@dataclass(frozen=True, eq=False)
class DiscretePair:
    """P (canary in) and Q (out) by the logarithms of their probabilities, -inf where a point does not occur."""

    log_p: FloatArray
    log_q: FloatArray

    def epsilon(self, log_delta: Floats) -> Floats:
        return each(lambda value: max(_epsilon(*self._remove, value), _epsilon(*self._add, value)), log_delta)

    def log_delta(self, epsilon: Floats) -> Floats:
        p, q = self.log_p, self.log_q
        return each(lambda value: max(_log_delta(p, q, value), _log_delta(q, p, value)), epsilon)

    def fnr(self, fpr: Floats) -> Floats:
        # Between two sets, the test that tosses a coin for the points in which they differ.
        accepted, rejected = self._remove[1], self._remove[0]
        rates: Floats = np.interp(fpr, np.append(0.0, np.exp(accepted)), np.append(1.0, 1.0 - np.exp(rejected)))
        return rates

    def bracket(self, log_delta: Floats) -> tuple[Floats, Floats]:
        lower, upper = self.epsilon(larger_delta(log_delta)), self.epsilon(smaller_delta(log_delta))
        error = RELATIVE_ERROR * np.maximum(1.0, np.where(np.isinf(lower), 0.0, upper))
        return lower - error, upper + error

    @cached_property
    def _remove(self) -> tuple[FloatArray, FloatArray]:
        return _best_sets(self.log_p, self.log_q)

    @cached_property
    def _add(self) -> tuple[FloatArray, FloatArray]:
        return _best_sets(self.log_q, self.log_p)


def _best_sets(log_p: FloatArray, log_q: FloatArray) -> tuple[FloatArray, FloatArray]:
    """log P and log Q of the sets of points with the largest likelihood ratio, the smallest set first."""
    occurs = np.maximum(log_p, log_q) > -np.inf
    order = np.argsort(log_q[occurs] - log_p[occurs], kind="stable")
    p, q = (np.logaddexp.accumulate(log[occurs][order]) for log in (log_p, log_q))
    return p, q


def _epsilon(log_p: FloatArray, log_q: FloatArray, log_delta: float) -> float:
    """The least epsilon >= 0 with P(set) <= e^epsilon Q(set) + delta for all of the sets."""
    matters = log_p > log_delta
    p, q = log_p[matters], log_q[matters]
    if not p.size:
        return 0.0
    return max(0.0, float(np.max(p + np.log1p(-np.exp(log_delta - p)) - q)))


def _log_delta(log_p: FloatArray, log_q: FloatArray, epsilon: float) -> float:
    """log of the sum of P - e^epsilon Q over the points at which it is positive."""
    gains = log_p > epsilon + log_q
    if not gains.any():
        return -np.inf
    p, q = log_p[gains], log_q[gains]
    return float(logsumexp(p + np.log1p(-np.exp(epsilon + q - p))))
