"""The support of Binomial(T, q) that matters near a threshold: a few dozen points, whatever T is.

Arguments are numbers or arrays of one shape, each entry a problem of its own; points get one more axis, the last.
Where the distribution is wide against its unit spacing only every ``stride``-th point is kept and counted ``stride``
times: by Poisson summation that is exact up to the Fourier transform of the summand at 2 pi / stride, which the choice
of stride keeps negligible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import erfcx, gammaln, xlog1py

from lastiterate.privacy.mixtures.rows import SQRT_HALF, beside_points, every, largest, pick, some

if TYPE_CHECKING:
    from lastiterate.arrays import Bools, FloatArray, Floats

NEGLIGIBLE = 32.0  # what is left out is below exp(-NEGLIGIBLE) = 1e-14 of what is kept

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
    """The binomial reweighted by exp(theta k)."""
    odds = rate * np.exp(np.minimum(theta, 700.0))
    total = odds + (1.0 - rate)
    mean = steps * (odds / total)
    return Tilt(theta, mean, mean * ((1.0 - rate) / total))  # however small: it tells how far the tilt may change


def tilt_at(y: Floats, steps: Floats, rate: Floats, noise: Floats) -> Tilt:
    """The saddle point K'(theta) = y of Binomial + N(0, noise^2), to a tenth of a standard deviation."""
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
    """Roughly the saddle point at the threshold whose upper tail is delta: a place to start.

    Newton's method on sqrt(2 I), I = theta K' - K being Chernoff's exponent, which is nearly linear in theta.
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
        # The saddle-point approximation of delta is exp(-I) times this factor (in it, M is Mills' ratio of N).
        mills = _SQRT_HALF_PI * erfcx(SQRT_HALF * (now.mean + variance * theta) / noise)
        factor = (1.0 - theta * noise * mills) ** 2 / (1.0 + 2.0 * np.pi * theta * theta * curvature)
        aim = np.sqrt(np.maximum(goal + np.log(factor), 0.01))
        newton = theta + (aim - exponent) * exponent / (theta * curvature)
        theta = np.minimum(np.maximum(newton, 0.3 * theta), 2.0 * theta)
    return tilt(theta, steps, rate)


class Window(NamedTuple):
    """Points and their log-masses; where the tail that was asked for lies mostly elsewhere, ``beyond`` says so."""

    points: FloatArray
    log_mass: FloatArray
    beyond: Bools


def window(centre: Tilt, steps: Floats, rate: Floats, noise: Floats, *, upper: bool) -> Window:
    """What carries the density and the upper (or lower) tail at the threshold of ``centre``."""
    variance = centre.variance
    spread = _spread(variance)
    low, high = centre.mean - spread, centre.mean + spread
    beyond: Bools = centre.theta < 0.0 if upper else centre.theta > 0.0
    if some(beyond):  # then the tail's bulk is the bulk of the distribution itself: include it if it is not far
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
    """log P[Binomial = k] at points a stride apart, and the stride's own logarithm; -inf past k = steps."""
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
    """About how many points a window has, for planning."""
    variance = steps * rate * (1.0 - rate)
    return np.minimum(2.0 * _spread(variance), steps) / _stride(variance, noise) + 1.0


def log_binomial(k: Floats, steps: Floats, rate: Floats) -> Floats:
    """log P[Binomial(steps, rate) = k], 0 < rate < 1, to about 1e-16 (1 + |k - steps rate|), after Loader (2000)."""
    expected = steps * rate
    return (
        _log_factorial_remainder(steps)
        - _log_factorial_remainder(k)
        - _log_factorial_remainder(steps - k)
        - _deviance(k - expected, expected)
        - _deviance(expected - k, steps * (1.0 - rate))
    )


def _log_masses_by_ratio(points: FloatArray, steps: Floats, rate: Floats) -> FloatArray:
    """The same for consecutive points: the first value, and the logarithms of the ratios of neighbours."""
    low, left = points[..., 0], points[..., :-1]
    odds = rate / (1.0 - rate)
    # Past k = steps there is no mass; a ratio of 1e-300 is as good and needs no special case.
    ratio = np.maximum((beside_points(steps) - left) * beside_points(odds) / (left + 1.0), 1e-300)
    result = np.empty_like(points)
    result[..., 0] = log_binomial(low, steps, rate) if some(low > 0.0) else steps * np.log1p(-rate)
    np.log(ratio, out=result[..., 1:])
    total: FloatArray = np.add.accumulate(result, axis=-1)
    return total


def _stride(width: Floats, noise: Floats) -> Floats:
    """The largest step at which the trapezoid rule still sums binomial times Gaussian without visible error."""
    narrow = width * noise * noise / (width + noise * noise)
    if not some(narrow > 0.5 * NEGLIGIBLE):
        return narrow * 0.0 + 1.0
    turn = np.arccos(np.maximum(1.0 - NEGLIGIBLE / np.maximum(narrow, 1e-300), -1.0))
    return pick(narrow > 0.5 * NEGLIGIBLE, np.floor(2.0 * np.pi / turn), 1.0)


def _spread(variance: Floats) -> Floats:
    """How far a sum of Bernoullis strays but with probability exp(-NEGLIGIBLE) (Bernstein's inequality)."""
    third = NEGLIGIBLE / 3.0
    return third + np.sqrt(third * third + 2.0 * NEGLIGIBLE * variance)


def _deviance(away: Floats, expected: Floats) -> Floats:
    """x log(x / expected) + expected - x for x = expected + away, without cancellation near x = expected."""
    relative = np.maximum(away / expected, -1.0)
    result: Floats = expected * xlog1py(1.0 + relative, relative) - away
    if some(relative > 1e15):  # the product may overflow, and nothing cancels
        return pick(relative > 1e15, away * (np.log(np.maximum(away, 1.0)) - np.log(expected)) - away, result)
    return result


def _log_factorial_remainder(n: Floats) -> Floats:
    """log(n!) - (n log n - n): Stirling's series from 16 on, a table below."""
    large = np.maximum(n, 16.0)
    inverse = 1.0 / large
    square = inverse * inverse
    series = inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680 - square / 1188))))
    stirling = _HALF_LOG_TAU + 0.5 * np.log(large) + series
    return np.where(n < 16.0, _SMALL_REMAINDER[np.minimum(n, 15.0).astype(np.intp)], stirling)
