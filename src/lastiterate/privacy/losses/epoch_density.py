"""The density of log M, where M is the mean of k independent log-normal variables Y = exp(a x - a^2 / 2), x ~ N(0, 1).

If each example is in one random batch of an epoch of k batches (balls in bins), the privacy loss of the epoch is log M,
with a = 1 / sigma. The density is found by doubling. For parts of k and m terms, and d = log(sum of the m / sum of the
k terms),

    density of log M (w) = integral over all d of A(log of the mean of the k terms) B(log of the mean of the m terms).

All terms of this integral are positive, so the relative error is small in both tails. The logarithm of a density is
stored in Chebyshev panels. A panel is halved until its last coefficients vanish.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.polynomial import chebyshev
from scipy.special import log_ndtr, ndtri_exp

from lastiterate.common.types import FloatArray
from lastiterate.privacy.mixtures.fourier import Unreliable
from lastiterate.privacy.mixtures.solve import HALF_LOG_TAU

_DEGREE = 16  # number of nodes of a panel
_LAST = 3  # number of last coefficients that must vanish
_VANISHED = 1e-11  # size of a coefficient that does not matter, in the log of a density
_PANEL = 2.0  # width of the first panels, in standard deviations
_WIDEST = 2.5  # largest width of a panel in w; the integrand has singularities at a distance of about 1
_RATIO, _TAIL = 3.0, 3.0  # largest ratio of the ends of a panel, if they are at least so many widths above 0
_MOST_SPLITS = 6
_MOST_PANELS = 250
_PIECES, _LOCAL_DEGREE = 16, 7  # a panel is evaluated by local polynomials on this number of pieces
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(14)
_NEAR_NODES, _NEAR_WEIGHTS = np.polynomial.legendre.leggauss(20)
_CHECK_NODES, _CHECK_WEIGHTS = np.polynomial.legendre.leggauss(24)
_NOTHING = -1e4  # log of a density outside of its range
_NEGLIGIBLE = 34.0  # log of (largest term / a term that is left out)
_CLEAR = 1.4  # largest distance of whole panels from the point at which both parts are equal, in log
_ACCURATE = 0.75  # share of the depth to which densities are resolved
_MARGIN = 60.0  # panels are kept if the log density is at most this far below the depth
_SPARE = 8.6  # standard deviations by which the range extends beyond the second moment of M

_CHEBYSHEV = -np.cos(np.pi * (np.arange(_DEGREE) + 0.5) / _DEGREE)
_TO_COEFFICIENTS = np.linalg.inv(chebyshev.chebvander(_CHEBYSHEV, _DEGREE - 1))


def _local_polynomials() -> FloatArray:
    """Return the matrix from values at the nodes of a panel to coefficients [power and piece] of local polynomials."""
    places = -np.cos(np.pi * (np.arange(_LOCAL_DEGREE + 1) + 0.5) / (_LOCAL_DEGREE + 1))
    to_powers = np.linalg.inv(np.vander(places, increasing=True))
    middles = (2.0 * np.arange(_PIECES) + 1.0) / _PIECES - 1.0
    pieces = [
        to_powers @ chebyshev.chebvander(middle + places / _PIECES, _DEGREE - 1) @ _TO_COEFFICIENTS
        for middle in middles.tolist()
    ]
    return np.transpose(pieces, (1, 0, 2)).reshape(-1, _DEGREE)


_TO_PIECES = _local_polynomials()


@dataclass(frozen=True, eq=False)
class EpochDensity:
    """The log of the density of w = log M, M the mean of ``terms`` terms, at the nodes [panel, node] of panels in w.

    ``error`` is the largest relative deviation of E 1, E M and the second moment of M - 1 from their exact values,
    before the first two are corrected.
    """

    terms: int
    scores: FloatArray  # rough standard scores of the ends
    ends: FloatArray
    values: FloatArray
    error: float = 0.0

    def __call__(self, w: FloatArray) -> FloatArray:
        low, high = self.ends[0], self.ends[-1]
        inside = np.clip(w, low, high)
        panel = np.searchsorted(self.ends[1:-1], inside)
        place = (inside - self.ends[panel]) * self._pieces_per_width[panel]
        piece = np.clip(place.astype(np.int64), 0, _PIECES - 1)
        place = 2.0 * (place - piece) - 1.0
        piece += panel * _PIECES
        result: FloatArray = self._local[-1][piece]
        for coefficients in self._local[-2::-1]:
            result *= place
            result += coefficients[piece]
        for outside, slope, end in ((w < low, self._slopes[0], low), (w > high, self._slopes[1], high)):
            if outside.any():
                result[outside] += slope * (w[outside] - end)
        return result

    @cached_property
    def _local(self) -> FloatArray:
        """Coefficients of the local polynomials, indexed by [power, piece]."""
        powers = (self.values @ _TO_PIECES.T).reshape(-1, _LOCAL_DEGREE + 1, _PIECES)
        return np.ascontiguousarray(powers.transpose(1, 0, 2)).reshape(_LOCAL_DEGREE + 1, -1)

    @cached_property
    def _slopes(self) -> tuple[float, float]:
        """Slopes at both ends. Beyond them the log density is linear."""
        powers = np.arange(_LOCAL_DEGREE + 1.0)
        left, right = self._local[:, 0] * np.where(powers % 2 == 0, -1.0, 1.0), self._local[:, -1]
        per_width = 2.0 * self._pieces_per_width[[0, -1]]
        return max(float(powers @ left * per_width[0]), 0.0), min(float(powers @ right * per_width[1]), 0.0)

    @cached_property
    def _pieces_per_width(self) -> FloatArray:
        return _PIECES / np.diff(self.ends)

    def places(self, nodes: FloatArray) -> FloatArray:
        """Return the w of nodes in [-1, 1] of every panel."""
        middle = 0.5 * (self.ends[1:] + self.ends[:-1])
        return middle[:, None] + 0.5 * np.diff(self.ends)[:, None] * nodes

    @cached_property
    def quadrature(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """w, log density and weight at the nodes [panel, node] of a quadrature in w."""
        w = self.places(_NODES)
        return w, self(w), 0.5 * np.diff(self.ends)[:, None] * _WEIGHTS

    @cached_property
    def middles(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """w and log density in the middle of each panel, and more than its growth within the panel."""
        w = self.places(np.zeros(1))[:, 0]
        log_density = self(w)
        return w, log_density, self.quadrature[1].max(axis=1) - log_density + 6.0


def _part(first: EpochDensity, second: EpochDensity, w: FloatArray, ratio: float = 1.0) -> FloatArray:
    """Return the log of the part of the density at w in which (sum of the first / sum of the second terms) < ratio."""
    terms, more = first.terms, second.terms
    total = terms + more
    # Means near 1 are kept as mean - 1, others as they are: relative accuracy counts for both.
    power, log = (np.expm1, np.log1p) if min(first.ends[0], second.ends[0]) > -1.0 else (np.exp, np.log)
    lowest = np.finfo(float).tiny if log is np.log else -1.0
    mean = total * power(w)
    limit = w + math.log(total / terms * ratio / (1.0 + ratio))  # of the first part
    whole = np.searchsorted(first.ends[1:] + 0.5 * np.minimum(np.diff(first.ends), _CLEAR), limit, side="right")
    with np.errstate(divide="ignore", invalid="ignore"):
        # Whole panels of the first part: its nodes serve all w.
        middle, log_density, growth = first.middles
        other = log(np.maximum((mean[:, None] - terms * power(middle)) / more, lowest))
        sizes = np.where(np.arange(middle.size) < whole[:, None], log_density + second(other), -np.inf)
        largest = np.maximum(sizes.max(axis=1), first(limit) + second(w + math.log(total / more / (1.0 + ratio))))
        rows, panels = np.nonzero(sizes + growth > largest[:, None] - _NEGLIGIBLE)
        middle, log_density, weight = first.quadrature
        other = log((mean[rows, None] - terms * power(middle)[panels]) / more)
        logs = log_density[panels] + second(other) - other + (w[rows, None] + math.log(total / more))
        # The rest, from the limit on: a panel in d.
        longest = np.log1p((1.0 + ratio) * np.expm1(np.maximum(limit - first.ends[whole], 0.0)))
    near = np.flatnonzero(longest > 0.0)
    half = 0.5 * longest[near][:, None]
    d = half * (_NEAR_NODES + 1.0) - math.log(ratio)
    of_first = w[near, None] - np.log1p((terms * np.expm1(d) + (terms - more)) / total)
    of_second = w[near, None] - np.log1p((more * np.expm1(-d) + (more - terms)) / total)
    logs_near = first(of_first) + second(of_second)
    top = np.full(w.size, 2.0 * _NOTHING)
    np.maximum.at(top, rows, logs.max(axis=1, initial=-np.inf))
    top[near] = np.maximum(top[near], logs_near.max(axis=1, initial=-np.inf))
    sums = np.bincount(rows, (np.exp(logs - top[rows, None]) * weight[panels]).sum(axis=1), w.size).astype(np.float64)
    sums[near] += (np.exp(logs_near - top[near, None]) * (half * _NEAR_WEIGHTS)).sum(axis=1)
    with np.errstate(divide="ignore"):
        found: FloatArray = np.maximum(top + np.log(sums), _NOTHING)
    return found


def _combined(first: EpochDensity, second: EpochDensity, w: FloatArray, ratio: float) -> FloatArray:
    if first is second:
        return _part(first, first, w) + math.log(2.0)
    found: FloatArray = np.logaddexp(_part(first, second, w, 1.0 / ratio), _part(second, first, w, ratio))
    return found


def _ends(slope: float, terms: int, scores: FloatArray) -> FloatArray:
    """Return increasing w at these standard scores, roughly.

    Above 0, w is the largest of a normal body and of one large term. Below 0, w is a line to a score of -10 of a normal
    body, or of the geometric mean, which is smaller than the mean.
    """
    width, half_square = _width(slope, terms), 0.5 * slope * slope
    if terms == 1:
        return width * scores - 0.5 * width * width
    above = np.maximum(np.append(scores, 0.0), 0.0)
    x = -ndtri_exp(log_ndtr(-above) - math.log(terms))
    above = np.maximum(width * above - 0.5 * width * width, np.log1p(np.expm1(slope * x - half_square) / terms))
    low = max(-10.0 * width - 0.5 * width * width, -10.0 * slope / math.sqrt(terms) - half_square)
    found: FloatArray = above[:-1] + np.minimum(scores, 0.0) * (0.1 * (above[-1] - low))
    return found


def _width(slope: float, terms: int) -> float:
    return math.sqrt(math.log1p(math.expm1(slope * slope) / terms))


def _first_scores(slope: float, terms: int, depth: float, known: FloatArray) -> FloatArray:
    """Return scores of the first ends of panels, among them those of a density of fewer terms."""
    highest = math.sqrt(2.0 * depth)
    scores = np.arange(-highest, highest + slope + _PANEL, _PANEL)
    scores = np.unique(np.round(np.append(scores, known), 9))
    for _ in range(_MOST_SPLITS):
        ends = _ends(slope, terms, scores)
        in_tail = ends[:-1] > _TAIL * _width(slope, terms)
        wide = (np.diff(ends) > _WIDEST) | (in_tail & (ends[1:] > _RATIO * ends[:-1]))
        scores = np.sort(np.append(scores, 0.5 * (scores[1:] + scores[:-1])[wide]))
    return scores


def _panels(
    slope: float,
    terms: int,
    depth: float,
    log_density: Callable[[FloatArray], FloatArray],
    known: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return scores and w of the ends of panels, and values at their nodes. Panels are halved until they are smooth."""
    scores = _first_scores(slope, terms, depth, known)
    lows, highs = scores[:-1], scores[1:]
    done: list[tuple[FloatArray, FloatArray, FloatArray]] = []
    peak, panels = -math.inf, 0
    for splits in range(_MOST_SPLITS + 1):
        panels += lows.size
        if panels > _MOST_PANELS:
            raise Unreliable
        low, high = _ends(slope, terms, lows), _ends(slope, terms, highs)
        w = 0.5 * (low + high)[:, None] + 0.5 * (high - low)[:, None] * _CHEBYSHEV
        values = log_density(w.ravel()).reshape(-1, _DEGREE)
        largest = (values + np.maximum(w, 0.0)).max(axis=1)  # with the canary or without it, whichever is larger
        peak = max(peak, float(largest.max()))
        last = np.abs(values @ _TO_COEFFICIENTS[-_LAST:].T).max(axis=1)
        smooth = (last <= _VANISHED) | (largest < peak - _ACCURATE * depth) | (splits == _MOST_SPLITS)
        done.append((lows[smooth], highs[smooth], values[smooth]))
        lows, highs = lows[~smooth], highs[~smooth]
        if not lows.size:
            break
        middle = 0.5 * (lows + highs)
        lows, highs = np.concatenate((lows, middle)), np.concatenate((middle, highs))
    lows, highs, values = (np.concatenate(column) for column in zip(*done, strict=True))
    order = np.argsort(lows)
    kept = np.flatnonzero(values[order].max(axis=1) > peak - depth - _MARGIN)
    order = order[kept[0] : kept[-1] + 1]
    scores = np.append(lows[order], highs[order[-1]])
    return scores, _ends(slope, terms, scores), values[order]


def _needed(density: EpochDensity) -> FloatArray:
    """Return the scores of ends of panels without those between two panels that one polynomial replaces."""
    lows, highs = density.ends[:-2:2], density.ends[2::2]
    w = 0.5 * (lows + highs)[:, None] + 0.5 * (highs - lows)[:, None] * _CHEBYSHEV
    last = np.abs(density(w) @ _TO_COEFFICIENTS[-_LAST:].T).max(axis=1)
    found: FloatArray = np.delete(density.scores, 2 * np.flatnonzero(last < 0.1 * _VANISHED) + 1)
    return found


def _corrected(density: EpochDensity, slope: float) -> EpochDensity:
    """Return the density with E 1 = 1 and E M = 1, so that errors do not grow with the number of terms."""
    variance = math.expm1(slope * slope) / density.terms
    excess = np.expm1(density.places(_CHECK_NODES))
    mass = np.exp(density(density.places(_CHECK_NODES))) * (0.5 * np.diff(density.ends)[:, None] * _CHECK_WEIGHTS)
    of_one, of_mean = float(mass.sum()) - 1.0, float((mass * excess).sum()) / math.sqrt(variance)
    of_square = float((mass * excess * excess).sum()) / variance - 1.0
    error = max(density.error, abs(of_one), abs(of_mean), abs(of_square))
    score = np.minimum(np.expm1(density.places(_CHEBYSHEV)) / math.sqrt(variance), 3.0)
    values = density.values - np.log1p(of_one + of_mean * score)
    return EpochDensity(density.terms, density.scores, density.ends, values, error)


@lru_cache(maxsize=64)
def epoch_density(sigma: float, terms: int, depth: float = 72.0) -> EpochDensity:
    """Return the density of log M without the canary. Its tails reach probabilities of about exp(-``depth``)."""
    slope = 1.0 / sigma
    depth = max(depth, 0.5 * (slope + _SPARE) ** 2)

    def normal(w: FloatArray) -> FloatArray:
        return -0.5 * np.square(w * sigma + 0.5 * slope) + math.log(sigma) - HALF_LOG_TAU

    one = EpochDensity(1, *_panels(slope, 1, depth, normal, np.empty(0)))
    result = one
    for bit in bin(terms)[3:]:
        for other in (None, one) if bit == "1" else (None,):
            result = _sum(result, other or result, slope, depth)
    return result


def _sum(first: EpochDensity, second: EpochDensity, slope: float, depth: float) -> EpochDensity:
    terms = first.terms + second.terms
    # Beyond this ratio, a single term is smooth on the scale of the sum of the others. Below it, the sum is smooth.
    ratio = min(1.0, 2.0 * math.sqrt(math.expm1(slope * slope) / first.terms) / slope)
    found = _panels(slope, terms, depth, lambda w: _combined(first, second, w, ratio), _needed(first))
    return _corrected(EpochDensity(terms, *found, first.error), slope)
