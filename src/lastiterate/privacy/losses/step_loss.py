"""The privacy loss L(t) = log(1 - q + q exp(a t - a^2 / 2)) of one step, t ~ N(0, 1), and its exponential moments.

L is flat on the left and has slope a = 1 / sigma on the right. M(s) = log E exp(s L) is an integral over t of a smooth
function that oscillates with Im s: the grid must resolve that, or the result is silently wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from scipy.special import log_ndtr

from lastiterate.privacy.mixtures.contour import Complex, Unreliable
from lastiterate.values import Array

_NEGLIGIBLE = 38.0  # terms below exp(-_NEGLIGIBLE) of the largest are left out
_BAND = math.sqrt(2.0 * _NEGLIGIBLE)  # of frequencies in a standard Gaussian
_WIDE = 9.0  # standard deviations of t that matter
_STEEP = 4.0  # above this slope the bend of L is too sharp for a uniform grid
_FADE = 1.5  # in units of t: where losses are left out, over this length
_FADE_BAND = 60.0  # frequencies that fading adds, in units of 1 / _FADE
_PANEL_NODES = 16
_MOST_NODES = 200_000
_LARGEST_SHIFT = 1e9  # of t under a tilt, beyond which t - shift loses its digits
_CHUNK = 200_000  # numbers in memory at once


@dataclass(frozen=True)
class StepLoss:
    """The loss of one step, less what lies beyond a t that has log-probability ``log_left_out`` under P."""

    rate: float
    slope: float
    log_left_out: float = -math.inf
    fineness: float = 1.0

    def moments(self, order: float) -> tuple[float, float, float]:
        """M(s) and the mean and variance of L under the tilt exp(s L), at a real s."""
        if self.rate == 1.0:
            square = self.slope**2
            return 0.5 * order * (order - 1.0) * square, (order - 0.5) * square, square
        _, log_weight, loss = self._nodes(order, 0.0)
        exponent = log_weight + order * loss
        top = float(exponent.max())
        mass = np.exp(exponent - top)
        total = float(mass.sum())
        mean = float(mass @ loss) / total
        variance = float(mass @ (loss - mean) ** 2) / total
        if float(np.abs(order * loss).max()) < 0.5:
            # M is small, and counts once for each step: keep its relative accuracy, using E e^L = 1.
            rise = np.expm1(order * loss) - order * np.expm1(loss)
            return math.log1p(float(np.exp(log_weight) @ rise)), mean, variance
        return math.log(total) + top, mean, variance

    def log_moments(self, order: float, u: Array) -> Complex:
        """M(order + iu) for u of one sign and of increasing size."""
        if self.rate == 1.0:
            s: Complex = order + 1j * u
            return 0.5 * s * (s - 1.0) * self.slope**2
        value, mean, _ = self.moments(order)
        result: Complex = value + 1j * mean * u
        frequency = np.abs(u)
        start = 0
        while start < u.size:
            # The faster the integrand oscillates, the finer its grid: blocks of at most double frequency share one.
            fastest = max(2.0 * frequency[start], frequency[min(start + 16, u.size - 1)])
            stop = start + int(np.searchsorted(frequency[start:], fastest, side="right"))
            _, log_weight, loss = self._nodes(order, float(frequency[stop - 1]))
            exponent = log_weight + order * loss
            mass = np.exp(exponent - exponent.max())
            mass /= mass.sum()
            width = max(1, _CHUNK // loss.size)
            for part in range(start, stop, width):
                piece = slice(part, min(part + width, stop))
                # The tilted loss about its mean has the characteristic function 1 + x + iy, both small where u is.
                phase = np.multiply.outer(u[piece], loss - mean)
                x, y = -2.0 * np.square(np.sin(0.5 * phase)) @ mass, np.sin(phase) @ mass
                log_modulus = 0.5 * np.log1p(np.maximum(2.0 * x + x * x + y * y, -1.0 + 1e-15))
                result[piece] += log_modulus + 1j * np.arctan2(y, 1.0 + x)
            start = stop
        return result

    def work(self, order: float, frequency: float) -> int:
        """Nodes of the grid at this frequency."""
        return 0 if self.rate == 1.0 else int(self._nodes(order, frequency)[0].size)

    def loss(self, t: Array) -> Array:
        """L(t)."""
        exponent = self.slope * t - 0.5 * self.slope**2
        small = np.log1p(self.rate * np.expm1(np.minimum(exponent, 1.0)))
        large = np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + exponent)
        return np.where(exponent < 1.0, small, large)

    @cached_property
    def bend(self) -> float:
        """Where L turns from flat to steep."""
        return 0.5 * self.slope + math.log((1.0 - self.rate) / self.rate) / self.slope

    @cached_property
    def fades_from(self) -> float:
        """The t beyond which losses are left out."""
        if not math.isfinite(self.log_left_out):
            return math.inf
        low, high = 0.0, self.slope + 60.0
        for _ in range(50):
            t = 0.5 * (low + high)
            out, with_canary = math.log1p(-self.rate) + log_ndtr(-t), math.log(self.rate) + log_ndtr(self.slope - t)
            low, high = (t, high) if np.logaddexp(out, with_canary) > self.log_left_out else (low, t)
        return high

    def slope_at(self, t: float) -> float:
        """L'(t)."""
        return self.slope / (1.0 + math.exp(min(self.slope * (self.bend - t), 700.0)))

    def _nodes(self, order: float, frequency: float) -> tuple[Array, Array, Array]:
        """Nodes t, log-weights of N(0, 1) and losses for the integral of exp((order + i frequency) L)."""
        if not max(abs(order), 1.0) * self.slope < _LARGEST_SHIFT:
            raise Unreliable
        windows = self._windows(order)
        grids = [self._grid(low, high, order, frequency) for low, high in windows]
        t = np.concatenate([nodes for nodes, _ in grids])
        if t.size > _MOST_NODES:
            raise Unreliable
        weights = np.concatenate([weights for _, weights in grids])
        log_weight = np.log(weights) - 0.5 * t * t - 0.5 * math.log(2.0 * math.pi)
        if windows[-1][1] > self.fades_from:
            log_weight = log_weight + self._log_fading(t)
        return t, log_weight, self.loss(t)

    def _grid(self, low: float, high: float, order: float, frequency: float) -> tuple[Array, Array]:
        turning = frequency * self.slope_at(high)  # radians a unit of t, at most
        fading = _FADE_BAND / _FADE if high > self.fades_from else 0.0
        if self.slope > _STEEP:
            return _panels(low, high, self.bend, self.slope, (turning + fading) * self.fineness)
        # Against L a negative order makes the integrand narrower than the Gaussian, at most so much:
        narrowing = math.sqrt(1.0 + 0.25 * max(-order, 0.0) * self.slope**2 * min(1.0, 4.0 * self.rate))
        band = (turning + narrowing * _bandwidth(self.slope) + fading) * self.fineness
        count = math.ceil((high - low) * band / (2.0 * math.pi)) + 2
        t, step = np.linspace(low, high, count, retstep=True)
        return t, np.full(count, float(step))

    def _windows(self, order: float) -> list[tuple[float, float]]:
        """Where exp(order L) under N(0, 1) is not negligible: around one maximum, or around two far apart."""
        end = self.fades_from + _FADE
        left, right = (min(peak, end) for peak in self._maxima(order))
        if right - left < 1000.0:
            return [self._trimmed(order, left, right)]
        at = np.array([left, right])
        height = order * self.loss(at) - 0.5 * at * at
        kept = at[height > height.max() - 2.0 * _NEGLIGIBLE].tolist()
        return [self._trimmed(order, peak, peak) for peak in kept]

    def _maxima(self, order: float) -> tuple[float, float]:
        """The outermost maxima of order L - t^2 / 2: where t = order L'(t), by iteration from either end."""
        if order <= 0.0:
            low, high = order * self.slope, 0.0
            while high - low > 0.01:
                middle = 0.5 * (low + high)
                low, high = (middle, high) if middle < order * self.slope_at(middle) else (low, middle)
            return low, low
        ends = []
        for t in (0.0, order * self.slope):
            for _ in range(100):
                before, t = t, order * self.slope_at(t)
                if abs(t - before) < 0.5:
                    break
            ends.append(t)
        return ends[0], ends[1]

    def _trimmed(self, order: float, left: float, right: float) -> tuple[float, float]:
        """The part of a neighbourhood of two maxima that counts."""
        low, high = left - 2.0 * _WIDE, min(right + 2.0 * _WIDE, self.fades_from + _FADE)
        grid = np.linspace(low, high, 121 + int(2.0 * (right - left)))
        exponent = order * self.loss(grid) - 0.5 * grid * grid
        if high > self.fades_from:
            exponent = exponent + self._log_fading(grid)
        kept = np.flatnonzero(exponent > exponent.max() - _NEGLIGIBLE)
        step = grid[1] - grid[0]
        return float(grid[kept[0]] - step), min(float(grid[kept[-1]] + step), self.fades_from + _FADE)

    def _log_fading(self, t: Array) -> Array:
        """log of a smooth function that is 1 up to ``fades_from`` and 0 from _FADE beyond it."""
        x = np.clip((t - self.fades_from) / _FADE, 1e-6, 1.0 - 1e-6)
        inside = -np.logaddexp(0.0, 1.0 / (1.0 - x) - 1.0 / x)
        return np.where(x <= 1e-6, 0.0, inside)


def _bandwidth(slope: float) -> float:
    """Frequencies the grid must resolve beside the oscillation: the Gaussian's own, or those of the bend of L.

    L is analytic only within pi / slope of the real axis, where exp(s L) has a branch point; the trapezoid rule's
    error is exp(-2 pi / step times that), times what the integrand grows to on the way.
    """
    strip = math.pi / slope
    return _BAND if strip > _BAND else _NEGLIGIBLE / strip + 0.5 * strip


@lru_cache(maxsize=1)
def _legendre() -> tuple[Array, Array]:
    node, weight = np.polynomial.legendre.leggauss(_PANEL_NODES)
    return node, weight


def _panels(low: float, high: float, bend: float, slope: float, turning: float) -> tuple[Array, Array]:
    """Gauss-Legendre panels: narrow where L bends, elsewhere as wide as Gaussian and oscillation allow."""
    widest = min(1.0, 6.0 / (turning + 1e-300))
    near = 40.0 / slope
    cuts = [low, *(cut for cut in (bend - near, bend + near) if low < cut < high), high]
    edges = [np.array([low])]
    for left, right in pairwise(cuts):
        bent = abs(0.5 * (left + right) - bend) < near
        count = math.ceil((right - left) / (min(widest, 1.5 / slope) if bent else widest))
        if count * _PANEL_NODES > _MOST_NODES:
            raise Unreliable
        edges.append(np.linspace(left, right, count + 1)[1:])
    ends = np.concatenate(edges)
    node, weight = _legendre()
    half, middle = 0.5 * np.diff(ends), 0.5 * (ends[1:] + ends[:-1])
    return (middle[:, None] + half[:, None] * node).ravel(), (half[:, None] * weight).ravel()
