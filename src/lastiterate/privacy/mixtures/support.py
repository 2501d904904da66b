"""Kernel (a): S + N against N, summed over the support of S, as in the paper's Appendix A.

``noise`` is a number or an array, and each entry is a separate problem. ``points`` and ``log_mass``, the support of S
and its log-probabilities, have one more axis, the last. With x_s = (y - s) / noise and Mills' ratio M,

    P(>= y) - e^f Q(>= y) = sum over s of  p_s phi(x_s) (M(x_s) - M(x_0)).

All terms of the sum are positive: nothing cancels, however close P and Q are. The file also selects the points of a
binomial that matter near a threshold, and computes probabilities of intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import erfc, erfcx, gammaln, log_ndtr, xlog1py

from lastiterate.common.types import Floats
from lastiterate.privacy.mixtures.solve import SQRT_HALF, Side, beside_points, every, largest, pick, some

if TYPE_CHECKING:
    from lastiterate.common.types import Bools, FloatArray, Floats

_LOG_TWO = float(np.log(2.0))
_FAR = 30.0
_WHOLE = 1e-13


@dataclass(frozen=True)
class Support:
    """The pair for an S with these points, which must not be negative.

    Near a threshold, points of S that are negligible there may be missing.
    """

    noise: Floats
    points: FloatArray
    log_mass: FloatArray

    def remove(self, y: Floats) -> Side:
        """Return P over Q: the set is {>= y}, y >= 0."""
        x, x0 = (beside_points(y) - self.points) / beside_points(self.noise), y / self.noise
        top, density = _scaled(self.log_mass - 0.5 * x * x)
        mills0 = erfcx(SQRT_HALF * x0)
        if every(x[..., -1] > 0.0):
            tail_top, tail = top, np.vecdot(density, erfcx(SQRT_HALF * x) - mills0[..., None])
        else:  # tails of points above y are near one, where Mills' ratio would overflow
            right, left = np.maximum(x, 0.0), np.minimum(x, 0.0)
            tail_top, mass = _scaled(self.log_mass - 0.5 * right * right)
            mills = erfcx(SQRT_HALF * right) + (erfc(SQRT_HALF * left) - 1.0)
            tail = np.vecdot(mass, mills - mills0[..., None] * np.exp(-0.5 * left * left))
        total = np.add.reduce(density, -1)
        slope = np.vecdot(density, self.points) / (total * self.noise * self.noise)
        return Side(
            loss=np.log(total) + (top + 0.5 * x0 * x0),
            loss_slope=slope,
            log_delta=np.log(tail) + (tail_top - _LOG_TWO),
            log_delta_slope=-slope * total * mills0 * np.exp(top - tail_top) / tail,
        )

    def add(self, r: Floats) -> Side:
        """Return Q over P: the set is {<= y}, y = -r. As in `remove`, delta falls and the loss -f rises along r."""
        y = -r
        x, x0 = (beside_points(y) - self.points) / beside_points(self.noise), y / self.noise
        top, density = _scaled(self.log_mass - 0.5 * x * x)
        total = np.add.reduce(density, -1)
        loss = np.log(total) + (top + 0.5 * x0 * x0)
        slope = np.vecdot(density, self.points) / (total * self.noise * self.noise)
        mills = erfcx(-SQRT_HALF * np.minimum(x, _FAR))
        mills0 = erfcx(-SQRT_HALF * np.minimum(x0, _FAR))
        log_scale = -0.5 * x0 * x0 - _LOG_TWO
        log_delta = np.log(np.vecdot(density, mills0[..., None] - mills) / total) + log_scale
        log_shared = np.log(np.vecdot(density, mills) / total) + log_scale  # e^-f P(<= y)
        if some(x0 >= _FAR):  # Q(<= y) = 1 to the last digit, and Mills' ratio would overflow
            far = self.log_lower(y) - loss
            log_shared = pick(x0 < _FAR, log_shared, far)
            log_delta = pick(x0 < _FAR, log_delta, np.log1p(-np.exp(np.minimum(far, 0.0))))
        return Side(-loss, slope, log_delta, -slope * np.exp(log_shared - log_delta))

    def loss(self, y: Floats) -> tuple[Floats, Floats]:
        """Return the privacy loss f(y) = log p(y) / q(y) and its derivative, the mean of S given y, over noise^2."""
        square = self.noise * self.noise
        of_point = self.points * ((beside_points(y) - 0.5 * self.points) / beside_points(square))
        top, ratio = _scaled(self.log_mass + of_point)
        total = np.add.reduce(ratio, -1)
        loss = np.log(total) + top
        if some(np.abs(loss) < 0.5):
            loss = self._small_loss(of_point, loss)
        return loss, np.vecdot(ratio, self.points) / (total * square)

    def _small_loss(self, of_point: FloatArray, loss: Floats) -> Floats:
        """Compute the loss from the sum of mass times (ratio - 1).

        This sum keeps the digits that the sum of mass times ratio loses beside 1.
        """
        mass = np.exp(self.log_mass)
        excess = np.where(of_point < 1.0, mass * np.expm1(of_point), np.exp(self.log_mass + of_point) - mass)
        small = (np.abs(loss) < 0.5) & (np.abs(np.add.reduce(mass, -1) - 1.0) < _WHOLE)  # are all points there?
        return pick(small, np.log1p(np.add.reduce(excess, -1)), loss)

    def log_lower(self, y: Floats) -> Floats:
        """log P(S + N <= y)."""
        return _log_sum(self.log_mass + log_ndtr((beside_points(y) - self.points) / beside_points(self.noise)))

    def log_upper(self, y: Floats) -> Floats:
        """log P(S + N >= y)."""
        return _log_sum(self.log_mass + log_ndtr((self.points - beside_points(y)) / beside_points(self.noise)))


def _scaled(logs: FloatArray) -> tuple[Floats, FloatArray]:
    """Return the largest logarithm of each problem, and the exponentials divided by that of the largest."""
    top: Floats = logs.max(-1)
    return top, np.exp(logs - beside_points(top))


def _log_sum(logs: FloatArray) -> Floats:
    top, values = _scaled(logs)
    total: Floats = top + np.log(np.add.reduce(values, -1))
    return total


# Binomial windows: the points of Binomial(T, q) that matter near a threshold, a few dozen whatever T is.
# A wide distribution keeps every ``stride``-th point, counted ``stride`` times. By Poisson summation the error is the
# Fourier transform of the summand at 2 pi / stride, which the choice of stride keeps negligible.

NEGLIGIBLE = 32.0  # neglected mass is below exp(-NEGLIGIBLE) = 1e-14 of the mass that is kept

_SMALL = np.arange(1.0, 16.0)
_SMALL_REMAINDER = np.concatenate(([0.0], gammaln(_SMALL + 1) - _SMALL * np.log(_SMALL) + _SMALL))
_HALF_LOG_TAU = float(0.5 * np.log(2 * np.pi))
_SQRT_HALF_PI = float(np.sqrt(0.5 * np.pi))


class Tilt(NamedTuple):
    """Binomial(T, q) reweighted by exp(theta k), which is binomial again."""

    theta: Floats
    mean: Floats
    variance: Floats


def tilt(theta: Floats, steps: Floats, rate: Floats) -> Tilt:
    """Return the binomial reweighted by exp(theta k)."""
    odds = rate * np.exp(np.minimum(theta, 700.0))
    total = odds + (1.0 - rate)
    mean = steps * (odds / total)
    return Tilt(theta, mean, mean * ((1.0 - rate) / total))  # even if tiny: limits changes of the tilt


def tilt_at(y: Floats, steps: Floats, rate: Floats, noise: Floats) -> Tilt:
    """Find the saddle point K'(theta) = y of Binomial + N(0, noise^2), to a tenth of a standard deviation."""
    variance = noise * noise
    low, high = (y - steps) / variance, y / variance
    theta = np.clip((y - steps * rate) / (variance + steps * rate * (1.0 - rate)), low, high)
    for _ in range(100):
        now = tilt(theta, steps, rate)
        excess = now.mean + variance * theta - y
        if every(np.abs(excess) <= 0.1 * np.sqrt(now.variance + variance)):
            break
        low, high = np.where(excess < 0, theta, low), np.where(excess > 0, theta, high)
        newton = theta - excess / (now.variance + variance)
        theta = np.where((newton > low) & (newton < high), newton, 0.5 * (low + high))
    return now


def tilt_for(log_delta: Floats, steps: Floats, rate: Floats, noise: Floats) -> Tilt:
    """Estimate the saddle point at the threshold whose upper tail is delta, as a starting point for a search.

    Uses Newton's method on sqrt(2 I), which is nearly linear in theta; I = theta K' - K is Chernoff's exponent.
    """
    variance = noise * noise
    goal = -2.0 * log_delta
    theta = np.sqrt(goal / (variance + steps * rate))
    log_in, log_out = np.log(rate), np.log1p(-rate)
    for _ in range(2):
        now = tilt(theta, steps, rate)
        curvature = now.variance + variance
        cumulant = steps * np.logaddexp(log_out, log_in + theta)
        exponent = np.sqrt(np.maximum(2.0 * (theta * now.mean - cumulant), 0.0) + variance * theta * theta)
        # The saddle-point approximation of delta is exp(-I) times the root of this factor, with Mills' ratio of N.
        mills = _SQRT_HALF_PI * erfcx(SQRT_HALF * (now.mean + variance * theta) / noise)
        factor = (1.0 - theta * noise * mills) ** 2 / (1.0 + 2.0 * np.pi * theta * theta * curvature)
        aim = np.sqrt(np.maximum(goal + np.log(factor), 0.01))
        newton = theta + (aim - exponent) * exponent / (theta * curvature)
        theta = np.minimum(np.maximum(newton, 0.3 * theta), 2.0 * theta)
    return tilt(theta, steps, rate)


class Window(NamedTuple):
    """Points and their log-masses. ``beyond`` is true if most of the requested tail lies outside of the points."""

    points: FloatArray
    log_mass: FloatArray
    beyond: Bools


def window(centre: Tilt, steps: Floats, rate: Floats, noise: Floats, *, upper: bool) -> Window:
    """Return the points that carry the density and the upper (or lower) tail at the threshold of ``centre``."""
    variance = centre.variance
    spread = _spread(variance)
    low, high = centre.mean - spread, centre.mean + spread
    beyond: Bools = centre.theta < 0.0 if upper else centre.theta > 0.0
    if some(beyond):  # the bulk of the tail is then the bulk of the distribution: include it if it is near
        bulk = tilt(np.where(beyond, 0.0, centre.theta), steps, rate)
        reach = _spread(bulk.variance)
        beyond = beyond & (np.abs(bulk.mean - centre.mean) > 3.0 * (spread + reach))
        low = pick(beyond, low, np.minimum(low, bulk.mean - reach))
        high = pick(beyond, high, np.maximum(high, bulk.mean + reach))
        variance = np.minimum(variance, bulk.variance)
    low, high = np.maximum(np.floor(low), 0.0), np.minimum(np.ceil(high), steps)
    stride = _stride(variance, noise)
    count = int(largest((high - low) / stride)) + 1
    points = beside_points(low) + beside_points(stride) * np.arange(float(count))
    return Window(points, _log_masses(points, stride, steps, rate), beyond)


def _log_masses(points: FloatArray, stride: Floats, steps: Floats, rate: Floats) -> FloatArray:
    """Return log P[Binomial = k] plus log(stride) at points a stride apart; -inf past k = steps."""
    if largest(stride) == 1.0:
        return _log_masses_by_ratio(points, steps, rate)
    dense = stride == 1.0
    if not some(dense):
        last = beside_points(steps)
        log_mass = log_binomial(np.minimum(points, last), last, beside_points(rate))
        return np.where(points <= last, log_mass + beside_points(np.log(stride)), -np.inf)
    result = np.empty_like(points)
    each_stride, each_steps, each_rate = np.broadcast_arrays(stride, steps, rate)  # arrays: strides differ
    for rows in (dense, ~dense):
        result[rows] = _log_masses(points[rows], each_stride[rows], each_steps[rows], each_rate[rows])
    return result


def width(steps: Floats, rate: Floats, noise: Floats) -> Floats:
    """Estimate the number of points in a window, for planning."""
    variance = steps * rate * (1.0 - rate)
    return np.minimum(2.0 * _spread(variance), steps) / _stride(variance, noise) + 1.0


def log_binomial(k: Floats, steps: Floats, rate: Floats) -> Floats:
    """Return log P[Binomial(steps, rate) = k], 0 < rate < 1, after Loader (2000).

    The error is about 1e-16 (1 + |k - steps rate|).
    """
    expected = steps * rate
    return (
        _log_factorial_remainder(steps)
        - _log_factorial_remainder(k)
        - _log_factorial_remainder(steps - k)
        - _deviance(k - expected, expected)
        - _deviance(expected - k, steps * (1.0 - rate))
    )


def _log_masses_by_ratio(points: FloatArray, steps: Floats, rate: Floats) -> FloatArray:
    """Return log P[Binomial = k] at consecutive points, from the first value and the ratios of neighbours."""
    low, left = points[..., 0], points[..., :-1]
    odds = rate / (1.0 - rate)
    # Past k = steps there is no mass. A ratio of 1e-300 has the same effect and needs no special case.
    ratio = np.maximum((beside_points(steps) - left) * beside_points(odds) / (left + 1.0), 1e-300)
    result = np.empty_like(points)
    result[..., 0] = log_binomial(low, steps, rate) if some(low > 0.0) else steps * np.log1p(-rate)
    np.log(ratio, out=result[..., 1:])
    total: FloatArray = np.add.accumulate(result, axis=-1)
    return total


def _stride(width: Floats, noise: Floats) -> Floats:
    """Return the largest step at which the trapezoid rule sums binomial times Gaussian without visible error."""
    narrow = width * noise * noise / (width + noise * noise)
    if not some(narrow > 0.5 * NEGLIGIBLE):
        return narrow * 0.0 + 1.0
    turn = np.arccos(np.maximum(1.0 - NEGLIGIBLE / np.maximum(narrow, 1e-300), -1.0))
    return pick(narrow > 0.5 * NEGLIGIBLE, np.floor(2.0 * np.pi / turn), 1.0)


def _spread(variance: Floats) -> Floats:
    """Return a deviation that a sum of Bernoullis exceeds with probability at most exp(-NEGLIGIBLE).

    Uses Bernstein's inequality.
    """
    third = NEGLIGIBLE / 3.0
    return third + np.sqrt(third * third + 2.0 * NEGLIGIBLE * variance)


def _deviance(away: Floats, expected: Floats) -> Floats:
    """Return x log(x / expected) + expected - x for x = expected + away, without cancellation near x = expected."""
    relative = np.maximum(away / expected, -1.0)
    result: Floats = expected * xlog1py(1.0 + relative, relative) - away
    if some(relative > 1e15):  # the product may overflow, and nothing cancels
        return pick(relative > 1e15, away * (np.log(np.maximum(away, 1.0)) - np.log(expected)) - away, result)
    return result


def _log_factorial_remainder(n: Floats) -> Floats:
    """Return log(n!) - (n log n - n), by Stirling's series from 16 on and from a table below."""
    large = np.maximum(n, 16.0)
    inverse = 1.0 / large
    square = inverse * inverse
    series = inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680 - square / 1188))))
    stirling = _HALF_LOG_TAU + 0.5 * np.log(large) + series
    return np.where(n < 16.0, _SMALL_REMAINDER[np.minimum(n, 15.0).astype(np.intp)], stirling)


# Interval probabilities: no cancellation, however narrow or far out the interval is.

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_NARROW = 0.5  # half width times rate of change of the density, up to which the rule above is exact to the last digit
_HALF_LOG_TAU_INTERVAL = float(0.5 * np.log(2.0 * np.pi))
_STEP = 0.08
_CLUSTERED = np.arange(-3.3, 3.3001, _STEP)  # nodes of the double exponential rule; weights beyond them are below 1e-17


def log_interval(middle: Floats, half: Floats) -> Floats:
    """Return the log-probability that a standard normal variable is within ``half`` of ``middle``.

    The interval is not given by its ends, because the difference of the ends of a narrow interval would lose digits.
    """
    away = np.abs(middle)
    near, far = log_ndtr(half - away), log_ndtr(-half - away)
    wide = near + np.log(-np.expm1(far - near))
    beside = half * _NODES
    density = np.exp(-beside * (beside_points(away) + 0.5 * beside)) @ _WEIGHTS
    narrow = np.log(half * density) - 0.5 * away * away - _HALF_LOG_TAU_INTERVAL
    return pick(half * (1.0 + away) < _NARROW, narrow, wide)


def log_integral(log_density: Callable[[Floats], Floats], low: float, high: float) -> np.float64:
    """Return the log of the integral from ``low`` to ``high`` of a density whose logarithm is given.

    The density must be smooth inside, but may rise or fall arbitrarily fast at the ends, where the nodes of the double
    exponential rule (Takahasi and Mori, 1974) crowd.
    """
    argument = 0.5 * np.pi * np.sinh(_CLUSTERED)
    share = 1.0 / (1.0 + np.exp(-2.0 * argument))  # share of the way from low to high
    weights = np.pi * np.cosh(_CLUSTERED) * share * (1.0 - share) * _STEP * (high - low)
    places = np.where(share < 0.5, low + (high - low) * share, high - (high - low) / (1.0 + np.exp(2.0 * argument)))
    logs = np.array([log_density(np.float64(y)) for y in places.tolist()])
    total: np.float64 = np.logaddexp.reduce(logs + np.log(weights))
    return total
