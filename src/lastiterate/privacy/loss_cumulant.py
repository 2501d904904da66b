"""The cumulant generating function of the privacy loss when every iterate is released.

One step of DP-SGD is a Gaussian with or without a shift that happens with probability q. With t ~ N(0, 1) the noise, in
its own units, and a = 1 / sigma, the loss is  L(t) = log(1 - q + q exp(a t - a^2 / 2)),  and

    M(s) = log E exp(s L),        K(z) = sum_t M_t(1 + z)  (P over Q, "remove"),      K(z) = sum_t M_t(-z)  (Q over P, "add").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import expit

from lastiterate.privacy.contour import Complex, Unreliable
from lastiterate.privacy.law import distinct
from lastiterate.run import DPSGD
from lastiterate.values import Array

_NEGLIGIBLE = 38.0  # terms below exp(-_NEGLIGIBLE) of the largest are left out
_WIDE = 9.0  # standard deviations of t that matter
_STEEP = 4.0  # above this a = 1 / sigma the bend of L is too sharp for a uniform grid
_PANEL_NODES = 16
_MOST_NODES = 200_000
_LARGEST_SHIFT = 1e9  # of t under a tilt, beyond which t - shift loses its digits
_CHUNK = 200_000  # complex numbers in memory at once


@dataclass(frozen=True, eq=False)
class LossCumulant:
    """K(z) for one direction of a run's steps: ``counts[j]`` steps have rate ``rates[j]`` and noise ``sigmas[j]``."""

    counts: Array
    rates: Array
    sigmas: Array
    remove: bool

    def other_direction(self) -> LossCumulant:
        return LossCumulant(self.counts, self.rates, self.sigmas, not self.remove)

    def real(self, theta: float) -> tuple[float, float, float]:
        """K, K' and K'' at a real point."""
        order, sign = (1.0 + theta, 1.0) if self.remove else (-theta, -1.0)
        sums = np.zeros(3)
        for count, rate, sigma in self._groups():
            sums += count * np.array(_moments(rate, sigma, order))
        return float(sums[0]), sign * float(sums[1]), float(sums[2])

    def along(self, theta: float, u: Array) -> Complex:
        """K(theta + iu), for increasing u."""
        order = 1.0 + theta + 1j * u if self.remove else -theta - 1j * u
        result = np.zeros(u.size, dtype=np.complex128)
        for count, rate, sigma in self._groups():
            result += count * _log_moment(rate, sigma, order)
        return result

    def largest_loss(self) -> float:
        """What the loss cannot exceed: bounded in the direction "add", where each step costs at most -log(1 - q)."""
        if self.remove or np.any(self.rates == 1.0):
            return math.inf
        return -float(np.sum(self.counts * np.log1p(-self.rates)))

    def recurrence(self) -> float:
        """A frequency beyond which a characteristic function that is small stays so.

        With little noise the loss clusters around multiples of about 1 / (2 sigma^2), and until the clusters' own
        width is resolved it comes back at the frequencies that fit them.
        """
        steep = 1.0 / self.sigmas[(self.sigmas < 0.5) & (self.rates < 1.0)]
        return float(np.max(8.0 * math.pi / steep**2, initial=0.0))

    def work(self, theta: float, frequency: float) -> float:
        """How many exponentials `along` takes for one node at this frequency."""
        order = 1.0 + theta if self.remove else -theta
        return float(sum(_nodes(rate, sigma, order, frequency)[0].size for _, rate, sigma in self._groups() if rate < 1.0))

    def _groups(self) -> list[tuple[float, float, float]]:
        return list(zip(self.counts.tolist(), self.rates.tolist(), self.sigmas.tolist(), strict=True))


def loss_cumulant(run: DPSGD) -> LossCumulant:
    """The direction "remove" of a run with Poisson (or no) sampling; steps that never see the canary are left out."""
    rates, sigmas, counts = distinct(np.asarray(run.sample_rate), np.asarray(run.noise_multiplier), run.steps)
    seen = rates > 0.0
    return LossCumulant(counts[seen], rates[seen], sigmas[seen], remove=True)


def _moments(rate: float, sigma: float, order: float) -> tuple[float, float, float]:
    """M(s) and the mean and variance of L under the tilt exp(s L), at a real s."""
    if rate == 1.0:
        return 0.5 * order * (order - 1.0) / sigma**2, (order - 0.5) / sigma**2, 1.0 / sigma**2
    t, log_weight, loss = _nodes(rate, sigma, order, 0.0)
    exponent = log_weight + order * loss
    top = float(exponent.max())
    mass = np.exp(exponent - top)
    total = float(mass.sum())
    mean = float(mass @ loss) / total
    variance = float(mass @ (loss - mean) ** 2) / total
    largest = float(np.max(np.abs(order * loss)))
    if largest < 0.5:  # M is small, and counted once for each step: keep its relative accuracy (E e^L = 1)
        rise = np.expm1(order * loss) - order * np.expm1(loss)
        return math.log1p(float(np.exp(log_weight) @ rise)), mean, variance
    return math.log(total) + top, mean, variance


def _log_moment(rate: float, sigma: float, order: Complex) -> Complex:
    """M(s) for orders of one real part, sorted by the size of their imaginary part."""
    if rate == 1.0:
        return 0.5 * order * (order - 1.0) / sigma**2
    real, u = float(order[0].real), order.imag
    value, mean, _ = _moments(rate, sigma, real)
    result = value + 1j * mean * u
    start = 0
    while start < order.size:
        # The faster the integrand oscillates, the finer its grid: blocks of at most double frequency share one.
        fastest = max(2.0 * abs(u[start]), abs(u[min(start + 16, order.size - 1)]))
        stop = start + int(np.searchsorted(np.abs(u[start:]), fastest, side="right"))
        t, log_weight, loss = _nodes(rate, sigma, real, abs(float(u[stop - 1])))
        exponent = log_weight + real * loss
        mass = np.exp(exponent - exponent.max())
        mass /= mass.sum()
        width = max(1, _CHUNK // t.size)
        for part in range(start, stop, width):
            piece = slice(part, min(part + width, stop))
            # The tilted loss about its mean has the characteristic function 1 + x + iy, both small where u is.
            phase = np.multiply.outer(u[piece], loss - mean)
            x, y = -2.0 * np.square(np.sin(0.5 * phase)) @ mass, np.sin(phase) @ mass
            result[piece] += 0.5 * np.log1p(2.0 * x + x * x + y * y) + 1j * np.arctan2(y, 1.0 + x)
        start = stop
    return result


def _nodes(rate: float, sigma: float, order: float, frequency: float) -> tuple[Array, Array, Array]:
    """Nodes t, log-weights of N(0, 1) and losses for the integral of exp((order + i frequency) L)."""
    steepness = 1.0 / sigma
    if not max(abs(order), 1.0) * steepness < _LARGEST_SHIFT:
        raise Unreliable
    nodes, weights = [], []
    for low, high in _windows(rate, steepness, order):
        turning = frequency * steepness * float(_share(np.float64(high), rate, steepness))  # radians a unit of t, at most
        if steepness <= _STEEP:
            # Against L a negative order makes the integrand narrower than the Gaussian, at most so much:
            narrowing = math.sqrt(1.0 + 0.25 * max(-order, 0.0) * steepness**2 * min(1.0, 4.0 * rate))
            count = math.ceil((high - low) * (turning + narrowing * _bandwidth(steepness)) / (2.0 * math.pi)) + 2
            t, step = np.linspace(low, high, count, retstep=True)
            weight = np.full(count, step)
        else:
            t, weight = _panels(low, high, _bend(rate, steepness), steepness, turning)
        nodes.append(t)
        weights.append(weight)
    t = np.concatenate(nodes)
    if t.size > _MOST_NODES:
        raise Unreliable
    log_weight = np.log(np.concatenate(weights)) - 0.5 * t * t - 0.5 * math.log(2.0 * math.pi)
    return t, log_weight, _loss(t, rate, steepness)


def _loss(t: Array, rate: float, steepness: float) -> Array:
    exponent = steepness * t - 0.5 * steepness**2
    small = np.log1p(rate * np.expm1(np.minimum(exponent, 1.0)))
    return np.where(exponent < 1.0, small, np.logaddexp(math.log1p(-rate), math.log(rate) + exponent))


def _share(t: Array, rate: float, steepness: float) -> Array:
    """The canary's share in the density at t; L' is ``steepness`` times it."""
    return expit(steepness * (t - _bend(rate, steepness)))


def _bend(rate: float, steepness: float) -> float:
    """Where L turns from constant to linear."""
    return 0.5 * steepness + math.log((1.0 - rate) / rate) / steepness


def _bandwidth(steepness: float) -> float:
    """Frequencies the grid must resolve beside the oscillation: the Gaussian's own, or those of the bend of L.

    L is analytic only within pi / steepness of the real axis, where exp(s L) has a branch point; the trapezoid rule's
    error is exp(-2 pi / step times that), times what the integrand grows to on the way.
    """
    strip = math.pi / steepness
    gaussian = math.sqrt(2.0 * _NEGLIGIBLE)
    return gaussian if gaussian < strip else _NEGLIGIBLE / strip + 0.5 * strip


def _windows(rate: float, steepness: float, order: float) -> list[tuple[float, float]]:
    """Where exp(order L) under N(0, 1) is not negligible: around one maximum, or around two far apart."""
    left, right = _maxima(rate, steepness, order)
    if right - left < 1000.0:
        return [_trimmed(rate, steepness, order, left, right)]
    at = np.array([left, right])
    height = order * _loss(at, rate, steepness) - 0.5 * at * at
    kept = at[height > height.max() - 2.0 * _NEGLIGIBLE]
    return [_trimmed(rate, steepness, order, float(peak), float(peak)) for peak in kept]


def _maxima(rate: float, steepness: float, order: float) -> tuple[float, float]:
    """The outermost maxima of order L - t^2 / 2: where t = order L'(t), by iteration from either end."""
    bend = _bend(rate, steepness)

    def pulled(t: float) -> float:
        return order * steepness / (1.0 + math.exp(min(steepness * (bend - t), 700.0)))

    if order <= 0.0:
        low, high = order * steepness, 0.0
        while high - low > 0.01:
            middle = 0.5 * (low + high)
            low, high = (middle, high) if middle < pulled(middle) else (low, middle)
        return low, low
    ends = []
    for t in (0.0, order * steepness):
        for _ in range(100):
            before, t = t, pulled(t)
            if abs(t - before) < 0.5:
                break
        ends.append(t)
    return ends[0], ends[1]


def _trimmed(rate: float, steepness: float, order: float, left: float, right: float) -> tuple[float, float]:
    """The part of a neighbourhood of two maxima that counts."""
    low, high = left - 2.0 * _WIDE, right + 2.0 * _WIDE
    grid = np.linspace(low, high, 121 + int(2.0 * (right - left)))
    exponent = order * _loss(grid, rate, steepness) - 0.5 * grid * grid
    kept = np.flatnonzero(exponent > exponent.max() - _NEGLIGIBLE)
    step = grid[1] - grid[0]
    return float(grid[kept[0]] - step), float(grid[kept[-1]] + step)


@lru_cache(maxsize=1)
def _legendre() -> tuple[Array, Array]:
    return np.polynomial.legendre.leggauss(_PANEL_NODES)  # type: ignore[no-any-return]


def _panels(low: float, high: float, bend: float, steepness: float, turning: float) -> tuple[Array, Array]:
    """Gauss-Legendre panels: narrow where L bends, elsewhere as wide as Gaussian and oscillation allow."""
    widest = min(1.0, 6.0 / (turning + 1e-300))
    near = 40.0 / steepness
    cuts = [low, *(cut for cut in (bend - near, bend + near) if low < cut < high), high]
    edges = [np.array([low])]
    for left, right in zip(cuts[:-1], cuts[1:], strict=True):
        bent = abs(0.5 * (left + right) - bend) < near
        count = math.ceil((right - left) / (min(widest, 1.5 / steepness) if bent else widest))
        if count * _PANEL_NODES > _MOST_NODES:
            raise Unreliable
        edges.append(np.linspace(left, right, count + 1)[1:])
    ends = np.concatenate(edges)
    node, weight = _legendre()
    half, middle = 0.5 * np.diff(ends), 0.5 * (ends[1:] + ends[:-1])
    return (middle[:, None] + half[:, None] * node).ravel(), (half[:, None] * weight).ravel()
