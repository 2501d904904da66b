"""Gaussian differential privacy: the smallest mu whose trade-off curve lies below that of a pair (Dong et al. 2022).

A Gaussian trade-off curve is symmetric in the two error rates. So it lies below the curve of P against Q exactly if it
lies below the curve of Q against P, and epsilon, which covers both directions, is all that is needed.

(epsilon, delta)-DP says that all error rates lie above the line 1 - fnr = delta + e^epsilon fpr. Several such lines
form a polygon below the trade-off curve. A Gaussian curve is convex. So it lies below the polygon everywhere if it lies
below its corners, and the largest mu of all corners is not too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtri, ndtri_exp

from lastiterate.common.types import FloatArray, Floats

EpsilonOf = Callable[[Floats], Floats]  # epsilon at log delta

_FIRST_LINES = 12
_MOST_LINES = 64
_SHARE_OF_ERROR = 1e-6  # the smallest delta tried, in units of the smallest error rate
_TOLERANCE = 1e-7  # relative to mu: a corner that exceeds the lower bound by less needs no further line
_NEAR = 1e-3  # distance of normal quantiles of delta below which no line is added
_HALVINGS = 200  # of the range of mu, until neighbouring floats are left
_ULPS = 4e-16


def gaussian_log_delta(mu: Floats, epsilon: Floats) -> Floats:
    """Return log delta of the Gaussian mechanism (Balle and Wang 2018)."""
    with np.errstate(all="ignore"):
        log_p, log_q = log_ndtr(0.5 * mu - epsilon / mu), epsilon + log_ndtr(-0.5 * mu - epsilon / mu)
        found: Floats = np.where(mu > 0.0, log_p + np.log1p(-np.exp(np.minimum(log_q - log_p, 0.0))), -np.inf)[()]
    return found


def mu_at(log_tpr: Floats, log_fnr: Floats, fpr: Floats) -> Floats:
    """Return the mu of the Gaussian mechanism with these error rates, from the smaller one of tpr and fnr."""
    quantile = np.where(log_tpr < log_fnr, ndtri_exp(log_tpr), -ndtri_exp(np.minimum(log_fnr, 0.0)))
    found: Floats = np.maximum(quantile - ndtri(fpr), 0.0)[()]
    return found


def find_mu(epsilon_of: EpsilonOf, smallest_error: float, most_lines: int = _MOST_LINES) -> float:
    """Return a mu that is not too small, if epsilons are not."""
    return _polygon(epsilon_of, smallest_error, most_lines).mu()


def find_mu_bracket(
    epsilon_of: EpsilonOf,
    bracket_of: Callable[[Floats], tuple[Floats, Floats]],
    smallest_error: float,
    most_lines: int = _MOST_LINES,
) -> tuple[float, float]:
    """Return (lower, upper) bounds on mu, by the bounds on epsilon at each line of the polygon."""
    polygon = _polygon(epsilon_of, smallest_error, most_lines).without_idle_lines()
    lower, upper = bracket_of(polygon.log_delta)
    most = _Polygon(polygon.log_delta, np.where(np.isnan(upper), np.inf, upper), smallest_error).mu()
    least = _Polygon(polygon.log_delta, np.asarray(lower), smallest_error).least(np.asarray(upper))
    return min(least, most), most


def _polygon(epsilon_of: EpsilonOf, smallest_error: float, most_lines: int) -> _Polygon:
    """Add lines where the polygon may be far below the curve, until its largest mu is close to a lower bound."""
    # Deltas at equal distances of the normal quantile: close to 0, and close to 1 for a run that reveals nearly all.
    quantiles = np.linspace(ndtri(_SHARE_OF_ERROR * smallest_error), -ndtri(smallest_error), _FIRST_LINES)
    polygon = _Polygon(np.empty(0), np.empty(0), smallest_error)
    while quantiles.size:
        polygon = polygon.with_lines(log_ndtr(quantiles), epsilon_of)
        quantiles = polygon.missing()[: max(most_lines - polygon.log_delta.size, 0)]
    return polygon


@dataclass(frozen=True, eq=False)
class _Polygon:
    """Lines 1 - fnr = delta + e^epsilon fpr, ordered by falling delta. Error rates are at least ``smallest_error``."""

    log_delta: FloatArray
    epsilon: FloatArray
    smallest_error: float

    def with_lines(self, log_delta: FloatArray, epsilon_of: EpsilonOf) -> _Polygon:
        all_deltas = np.append(self.log_delta, log_delta)
        epsilons = np.append(self.epsilon, np.asarray(epsilon_of(log_delta), np.float64))
        epsilons = np.where(np.isnan(epsilons), np.inf, epsilons)
        order = np.argsort(-all_deltas)
        return _Polygon(all_deltas[order], epsilons[order], self.smallest_error)

    def mu(self) -> float:
        """Return the largest mu of all corners."""
        return max(value for value, _, _ in self._corners())

    def without_idle_lines(self) -> _Polygon:
        """Return the lines that meet at the corners: the others lie below."""
        used = sorted({line for _, first, second in self._corners() for line in (first, second)})
        return _Polygon(self.log_delta[used], self.epsilon[used], self.smallest_error)

    def missing(self) -> FloatArray:
        """Return the quantiles of deltas at which a line may lower the largest mu."""
        quantiles, found = ndtri_exp(self.log_delta), []
        *inside, end = self._corners()
        enough = max(self.least(self.epsilon) * (1.0 + _TOLERANCE), end[0])
        for value, first, second in [end, *sorted(inside, reverse=True)]:
            if value >= enough and math.isfinite(value):
                gaps = [(first, second)] if first != second else [(first - 1, first), (first, first + 1)]
                gaps = [(a, b) for a, b in gaps if 0 <= a and b < quantiles.size]
                found += [0.5 * (quantiles[a] + quantiles[b]) for a, b in gaps if quantiles[a] - quantiles[b] > _NEAR]
        return np.array(list(dict.fromkeys(found)))

    def least(self, upper: FloatArray) -> float:
        """Return a lower bound on mu: the largest mu of a Gaussian mechanism with one of these epsilons at its delta.

        The curve touches its line with this delta at a false positive rate, the slope of delta along e^epsilon. If this
        rate may be below the smallest error, the line does not count. ``upper`` has upper bounds on the epsilons.
        """
        delta, factor = np.exp(self.log_delta), np.exp(np.minimum(self.epsilon, 700.0))
        above = np.exp(np.minimum(upper, 700.0))
        rate = -np.diff(delta) / np.maximum(above[1:] - factor[:-1], 1e-300)  # at most the rate of the first line
        counts = np.append(rate >= self.smallest_error, False) & (self.epsilon > 0.0) & np.isfinite(self.epsilon)
        return float(np.max(_mu_of(self.epsilon[counts], self.log_delta[counts]), initial=0.0))

    def _corners(self) -> list[tuple[float, int, int]]:
        delta, smallest = np.exp(self.log_delta), self.smallest_error
        kept: list[tuple[int, float]] = []  # a line, and the false positive rate below which it is the highest
        for line in range(delta.size):
            if not self.epsilon[line] < 700.0:
                continue
            below = 1.0
            while kept:
                before, since = kept[-1]
                rise = math.exp(self.epsilon[line]) - math.exp(self.epsilon[before])
                below = float(delta[before] - delta[line]) / rise if rise > 0.0 else math.inf
                if below < since:
                    break
                kept.pop()
                below = 1.0
            kept.append((line, below))
        if not kept:
            return [(math.inf, 0, 0)]
        # Beyond the point at which both error rates are the same, the polygon is mirrored.
        same, middle = max(((1.0 - delta[line]) / (1.0 + math.exp(self.epsilon[line])), line) for line, _ in kept)
        if same <= smallest:
            return [(self._mu_on(middle, same), middle, middle)]
        inside = [(line, since) for line, since in kept if smallest <= since]
        corners = [(self._mu_on(middle, same), middle, middle)]
        for (first, _), (second, rate) in zip(inside[:-1], inside[1:], strict=True):
            if rate <= same:
                corners.append((self._mu_on(first, rate), first, second))
        last = inside[-1][0]
        return [*corners, (self._mu_on(last, smallest), last, last)]

    def _mu_on(self, line: int, rate: float) -> float:
        seen = math.exp(self.log_delta[line]) + math.exp(self.epsilon[line]) * rate
        seen *= 1.0 + _ULPS * (1.0 + self.epsilon[line])
        if seen >= 1.0:
            return math.inf
        missed = -math.expm1(self.log_delta[line]) - math.exp(self.epsilon[line]) * rate - _ULPS
        return float(mu_at(np.log(seen), np.log(missed) if missed > 0.0 else np.float64(-np.inf), np.float64(rate)))


def _mu_of(epsilon: FloatArray, log_delta: FloatArray) -> FloatArray:
    """Return the mu of the Gaussian mechanisms with these epsilons at their deltas, not above the exact mu."""
    low, high = np.zeros_like(epsilon), np.full_like(epsilon, 1e3)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        enough = gaussian_log_delta(middle, epsilon) >= log_delta
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return low
