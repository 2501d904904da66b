"""S + N against N, summed over the support of S, as in the paper's Appendix A.

``noise`` is a number, or an array with an entry for each run. ``points`` and ``log_mass``, the support of S and its
log-probabilities, have one more axis, the last. With x_s = (y - s) / noise and Mills' ratio M,

    P(>= y) - e^f Q(>= y) = sum over s of  p_s phi(x_s) (M(x_s) - M(x_0)).

All terms of the sum are positive: nothing cancels, however close P and Q are. The file also selects the points of a
binomial that matter near a threshold, and computes probabilities of intervals.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import erfc, erfcx, gammaln, log_ndtr, xlog1py

from lastiterate.common.types import Bools, FloatArray, Floats
from lastiterate.privacy.mixtures.solve import (
    HALF_LOG_TAU,
    SQRT_HALF,
    SQRT_HALF_PI,
    Side,
    beside_points,
    every,
    largest,
    pick,
    saddle_point,
    some,
)

_LOG_TWO = float(np.log(2.0))
_FAR = 30.0
_WHOLE = 1e-13


@dataclass(frozen=True)
class Support:
    """The pair for an S with these non-negative points. Points that are negligible near a threshold may be missing."""

    noise: Floats
    points: FloatArray
    log_mass: FloatArray

    def covers(self, y: Floats) -> bool:
        return True

    def remove(self, y: Floats) -> Side:
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
        square = self.noise * self.noise
        of_point = self.points * ((beside_points(y) - 0.5 * self.points) / beside_points(square))
        top, ratio = _scaled(self.log_mass + of_point)
        total = np.add.reduce(ratio, -1)
        loss = np.log(total) + top
        if some(np.abs(loss) < 0.5):
            # If the sum of mass times ratio is near 1, it loses digits. The sum of mass times (ratio - 1) keeps them.
            mass = np.exp(self.log_mass)
            excess = np.where(of_point < 1.0, mass * np.expm1(of_point), np.exp(self.log_mass + of_point) - mass)
            small = (np.abs(loss) < 0.5) & (np.abs(np.add.reduce(mass, -1) - 1.0) < _WHOLE)  # no point is missing
            loss = pick(small, np.log1p(np.add.reduce(excess, -1)), loss)
        return loss, np.vecdot(ratio, self.points) / (total * square)

    def log_lower(self, y: Floats) -> Floats:
        return _log_sum(self.log_mass + log_ndtr((beside_points(y) - self.points) / beside_points(self.noise)))

    def log_upper(self, y: Floats) -> Floats:
        return _log_sum(self.log_mass + log_ndtr((self.points - beside_points(y)) / beside_points(self.noise)))


def _scaled(logs: FloatArray) -> tuple[Floats, FloatArray]:
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


class Tilt(NamedTuple):
    """Binomial(T, q) reweighted by exp(theta k). It is binomial again."""

    theta: Floats
    mean: Floats
    variance: Floats


def _tilt(theta: Floats, steps: Floats, rate: Floats) -> Tilt:
    odds = rate * np.exp(np.minimum(theta, 700.0))
    total = odds + (1.0 - rate)
    mean = steps * (odds / total)
    return Tilt(theta, mean, mean * ((1.0 - rate) / total))  # needed even if tiny: it limits changes of the tilt


def tilt_at(y: Floats, steps: Floats, rate: Floats, noise: Floats) -> Tilt:
    """Find the saddle point K'(theta) = y of Binomial + N(0, noise^2), to a tenth of a standard deviation."""
    variance = noise * noise

    def moments(theta: Floats) -> tuple[Floats, Floats]:
        now = _tilt(theta, steps, rate)
        return now.mean + variance * theta, now.variance + variance

    low, high = (y - steps) / variance, y / variance
    theta = np.clip((y - steps * rate) / (variance + steps * rate * (1.0 - rate)), low, high)
    return _tilt(saddle_point(moments, y, theta, low, high, 0.1), steps, rate)


def tilt_for(log_delta: Floats, steps: Floats, rate: Floats, noise: Floats) -> Tilt:
    """Estimate the saddle point at the threshold that is exceeded with probability delta, to start a search.

    Use Newton's method on sqrt(2 I), a nearly linear function of theta. I = theta K' - K is Chernoff's exponent.
    """
    variance = noise * noise
    goal = -2.0 * log_delta
    theta = np.sqrt(goal / (variance + steps * rate))
    log_in, log_out = np.log(rate), np.log1p(-rate)
    for _ in range(2):
        now = _tilt(theta, steps, rate)
        curvature = now.variance + variance
        cumulant = steps * np.logaddexp(log_out, log_in + theta)
        exponent = np.sqrt(np.maximum(2.0 * (theta * now.mean - cumulant), 0.0) + variance * theta * theta)
        # The saddle-point approximation of delta is exp(-I) times the square root of this factor.
        mills = SQRT_HALF_PI * erfcx(SQRT_HALF * (now.mean + variance * theta) / noise)
        factor = (1.0 - theta * noise * mills) ** 2 / (1.0 + 2.0 * np.pi * theta * theta * curvature)
        aim = np.sqrt(np.maximum(goal + np.log(factor), 0.01))
        newton = theta + (aim - exponent) * exponent / (theta * curvature)
        theta = np.minimum(np.maximum(newton, 0.3 * theta), 2.0 * theta)
    return _tilt(theta, steps, rate)


def window(
    centre: Tilt, steps: Floats, rate: Floats, noise: Floats, *, upper: bool
) -> tuple[FloatArray, FloatArray, Bools]:
    """Return the points that carry the density and the upper (or lower) tail at the threshold of ``centre``.

    Also returns their log-masses, and whether most of the tail lies outside of the points.
    """
    variance = centre.variance
    spread = _spread(variance)
    low, high = centre.mean - spread, centre.mean + spread
    beyond: Bools = centre.theta < 0.0 if upper else centre.theta > 0.0
    if some(beyond):  # the tail is then most of the distribution: include the points around the mean if they are near
        bulk = _tilt(np.where(beyond, 0.0, centre.theta), steps, rate)
        reach = _spread(bulk.variance)
        beyond = beyond & (np.abs(bulk.mean - centre.mean) > 3.0 * (spread + reach))
        low = pick(beyond, low, np.minimum(low, bulk.mean - reach))
        high = pick(beyond, high, np.maximum(high, bulk.mean + reach))
        variance = np.minimum(variance, bulk.variance)
    low, high = np.maximum(np.floor(low), 0.0), np.minimum(np.ceil(high), steps)
    stride = _stride(variance, noise)
    count = int(largest((high - low) / stride)) + 1
    points = beside_points(low) + beside_points(stride) * np.arange(float(count))
    return points, _log_masses(points, stride, steps, rate), beyond


def _log_masses(points: FloatArray, stride: Floats, steps: Floats, rate: Floats) -> FloatArray:
    """Return log P[Binomial = k] + log(stride) at points k a stride apart, and -inf for k > steps."""
    if largest(stride) == 1.0:
        return _log_masses_by_ratio(points, steps, rate)
    dense = stride == 1.0
    if not some(dense):
        last = beside_points(steps)
        log_mass = log_binomial(np.minimum(points, last), last, beside_points(rate))
        return np.where(points <= last, log_mass + beside_points(np.log(stride)), -np.inf)
    result = np.empty_like(points)
    each_stride, each_steps, each_rate = np.broadcast_arrays(stride, steps, rate)  # strides differ, so all are arrays
    for rows in (dense, ~dense):
        result[rows] = _log_masses(points[rows], each_stride[rows], each_steps[rows], each_rate[rows])
    return result


def width(steps: Floats, rate: Floats, noise: Floats) -> Floats:
    """Estimate the number of points in a window."""
    variance = steps * rate * (1.0 - rate)
    return np.minimum(2.0 * _spread(variance), steps) / _stride(variance, noise) + 1.0


def log_binomial(k: Floats, steps: Floats, rate: Floats) -> Floats:
    """Return log P[Binomial(steps, rate) = k] after Loader (2000), to about 1e-16 (1 + |k - steps rate|)."""
    expected = steps * rate
    return (
        _log_factorial_remainder(steps)
        - _log_factorial_remainder(k)
        - _log_factorial_remainder(steps - k)
        - _deviance(k - expected, expected)
        - _deviance(expected - k, steps * (1.0 - rate))
    )


def _log_masses_by_ratio(points: FloatArray, steps: Floats, rate: Floats) -> FloatArray:
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
    """Return the largest step at which the trapezoid rule for binomial times Gaussian has a negligible error."""
    narrow = width * noise * noise / (width + noise * noise)
    if not some(narrow > 0.5 * NEGLIGIBLE):
        return narrow * 0.0 + 1.0
    turn = np.arccos(np.maximum(1.0 - NEGLIGIBLE / np.maximum(narrow, 1e-300), -1.0))
    return pick(narrow > 0.5 * NEGLIGIBLE, np.floor(2.0 * np.pi / turn), 1.0)


def _spread(variance: Floats) -> Floats:
    """Return a deviation that a sum of Bernoullis exceeds with probability exp(-NEGLIGIBLE) at most (Bernstein)."""
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
    """Return log(n!) - (n log n - n), from Stirling's series for n >= 16 and from a table for smaller n."""
    large = np.maximum(n, 16.0)
    inverse = 1.0 / large
    square = inverse * inverse
    series = inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680 - square / 1188))))
    stirling = HALF_LOG_TAU + 0.5 * np.log(large) + series
    return np.where(n < 16.0, _SMALL_REMAINDER[np.minimum(n, 15.0).astype(np.intp)], stirling)


# Interval probabilities: no cancellation, however narrow or far out the interval is.

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_NARROW = 0.5  # largest half width times slope of the log-density for which 12 nodes give all digits
_STEP = 0.08
_CLUSTERED = np.arange(-3.3, 3.3001, _STEP)  # nodes of the double exponential rule; weights beyond them are below 1e-17


def log_interval(middle: Floats, half: Floats) -> Floats:
    """Return the log-probability that a standard normal variable is within ``half`` of ``middle``."""
    away = np.abs(middle)
    near, far = log_ndtr(half - away), log_ndtr(-half - away)
    wide = near + np.log(-np.expm1(far - near))
    beside = half * _NODES
    density = np.exp(-beside * (beside_points(away) + 0.5 * beside)) @ _WEIGHTS
    narrow = np.log(half * density) - 0.5 * away * away - HALF_LOG_TAU
    return pick(half * (1.0 + away) < _NARROW, narrow, wide)


def log_integral(log_density: Callable[[Floats], Floats], low: float, high: float) -> np.float64:
    """Return the log of the integral from ``low`` to ``high`` of a density whose logarithm is given.

    The density must be smooth inside. Nodes of the double exponential rule (Takahasi and Mori, 1974) crowd the ends.
    """
    argument = 0.5 * np.pi * np.sinh(_CLUSTERED)
    share = 1.0 / (1.0 + np.exp(-2.0 * argument))  # share of the way from low to high
    weights = np.pi * np.cosh(_CLUSTERED) * share * (1.0 - share) * _STEP * (high - low)
    places = np.where(share < 0.5, low + (high - low) * share, high - (high - low) / (1.0 + np.exp(2.0 * argument)))
    logs = np.array([log_density(np.float64(y)) for y in places.tolist()])
    total: np.float64 = np.logaddexp.reduce(logs + np.log(weights))
    return total
