"""The root-finder: Newton's method within a bracket, for many equations at once.

The root is always a threshold y. `solve` finds the threshold with a given delta. The privacy loss at this threshold is
epsilon. `invert` finds the threshold at which an increasing function has a given value.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import erfcx, ndtri_exp

from lastiterate.common.types import Bools, FloatArray, Floats

SQRT_HALF = 0.5**0.5
SQRT_HALF_PI = math.sqrt(0.5 * math.pi)
HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)
_SMALLEST_BRACKET = 4e-16  # relative: about the distance of neighbouring floats

# Many equations at once: each entry of an array of any shape is a separate equation. A single number is one equation.
# Most calls are on single numbers, where NumPy's reductions cost microseconds. `every` and `some` avoid that cost.


class Side(NamedTuple):
    """P over Q, or Q over P, at a threshold: the privacy loss, log(delta), and the derivatives of both."""

    loss: Floats
    loss_slope: Floats
    log_delta: Floats
    log_delta_slope: Floats


def every(condition: Bools) -> bool:
    """Return whether a condition holds for every entry."""
    return bool(condition if condition.ndim == 0 else condition.all())


def some(condition: Bools) -> bool:
    """Return whether a condition holds for any entry."""
    return bool(condition if condition.ndim == 0 else condition.any())


def largest(values: Floats) -> float:
    """Return the largest entry."""
    return float(values if values.ndim == 0 else values.max())


def beside_points(values: Floats) -> FloatArray:
    """Add a last axis to the values, for the points of each entry."""
    wider: FloatArray = values[..., None]  # type: ignore[index]  # NumPy scalars can be indexed, its stubs forbid it
    return wider


def pick(condition: Bools, first: Floats | float, second: Floats | float) -> Floats:
    """Return `numpy.where`, but single numbers stay numbers."""
    picked: FloatArray = np.where(condition, first, second)
    return picked[()]


def each(function: Callable[[np.float64], Floats | float], values: Floats) -> Floats:
    """Apply a function of single numbers to every entry in turn."""
    result: Floats = np.vectorize(lambda value: function(np.float64(value)), otypes=[np.float64])(values)[()]
    return result


# Root-finding: thresholds with a given delta, and inverses of increasing functions.


def solve(
    side: Callable[[Floats], Side], log_delta: Floats, y: Floats, low: Floats, high: Floats
) -> tuple[Floats, Floats]:
    """Return the privacy loss at the threshold where log delta(y) = log_delta, and that threshold.

    ``side`` returns the loss and log delta at a threshold, with their derivatives. Delta falls along y. ``y`` is the
    initial threshold, ``low`` one that is too small, and ``high`` one that is large enough. The search also ends at any
    loss of at most 0 whose delta is below the target.

    Delta may be so flat that rounding errors decide where delta reaches the target. The result then errs upwards.
    Newton's method is applied to the normal quantile of delta. y is nearly a linear function of this quantile, so three
    evaluations usually suffice.
    """
    goal = ndtri_exp(a_little_less(log_delta))

    def gap_and_step(now: Side) -> tuple[Floats, Floats]:
        quantile = ndtri_exp(np.minimum(now.log_delta, 0.0))  # rounding may raise a delta of 1 above 1
        gap = goal - quantile
        step = gap / (now.log_delta_slope * erfcx(-SQRT_HALF * quantile) * SQRT_HALF_PI)
        settled = (gap > 0.0) & (now.loss <= 0.0)
        if some(settled):
            gap, step = pick(settled, 0.0, gap), pick(settled, 0.0, step)
        return gap, step

    return _newton(side, gap_and_step, y, low, high)


def a_little_less(log_delta: Floats) -> Floats:
    """Lower ``log_delta`` by about the rounding error of a computed log delta, so that epsilon errs upwards.

    A logarithm has a relative error of 2e-15 (nine ulps), and the sum inside the last one an absolute error of 1e-14.
    """
    return (1.0 + 2e-15) * log_delta - 1e-14


def invert(
    function: Callable[[Floats], tuple[Floats, Floats]], goal: Floats, y: Floats, low: Floats, high: Floats
) -> Floats:
    """Return the y between ``low`` and ``high`` at which an increasing function has the value ``goal``.

    ``function`` returns its value and its derivative. If the derivative is NaN, the bracket is halved.
    """

    def side(y: Floats) -> Side:
        value, slope = function(y)
        return Side(y, np.ones_like(y)[()], value, slope)

    def gap_and_step(now: Side) -> tuple[Floats, Floats]:
        gap = now.log_delta - goal
        return gap, pick(gap == 0.0, 0.0, -gap / now.log_delta_slope)

    return _newton(side, gap_and_step, y, low, high)[0]


def saddle_point(
    moments: Callable[[Floats], tuple[Floats | float, Floats | float]],
    y: Floats,
    theta: Floats,
    low: Floats,
    high: Floats,
    tolerance: float,
) -> Floats:
    """Return the theta at which a mean that rises with theta equals y, up to ``tolerance`` standard deviations.

    ``moments`` returns mean and variance. The variance is the derivative of the mean.
    """
    for _ in range(200):
        mean, variance = moments(theta)
        excess = mean - y
        if every(np.abs(excess) <= tolerance * np.sqrt(variance)):
            break
        low, high = pick(excess < 0.0, theta, low), pick(excess > 0.0, theta, high)
        newton = theta - excess / variance
        theta = pick((newton > low) & (newton < high), newton, 0.5 * (low + high))
    return theta


class Secants:
    """A function without a derivative, for `invert`. Slopes are computed from the last two evaluations."""

    def __init__(self, function: Callable[[float], float]) -> None:
        self.function = function
        self.seen: list[tuple[float, float]] = []  # places and values, in the order of evaluation

    def __call__(self, y: Floats) -> tuple[Floats, Floats]:
        x = float(y)
        value = self.function(x)
        slope = (value - self.seen[-1][1]) / (x - self.seen[-1][0]) if self.seen and x != self.seen[-1][0] else math.nan
        self.seen.append((x, value))
        return np.float64(value), np.float64(slope)


def _newton(
    side: Callable[[Floats], Side],
    gap_and_step: Callable[[Side], tuple[Floats, Floats]],
    y: Floats,
    low: Floats,
    high: Floats,
) -> tuple[Floats, Floats]:
    """Return the loss at the root, and the root.

    ``gap_and_step`` returns the distance from the goal, positive if y is too large, and the Newton step for y. Every
    evaluation narrows the bracket. A step is taken while it stays within the bracket and halves the gap. Otherwise the
    bracket is halved if the step leaves it. The loss is extrapolated along the last step. Equations that do not
    converge end at the upper end of their bracket, where the loss is at least the loss at the root.
    """
    before: Floats = np.float64(np.inf)
    for _ in range(300):
        now = side(y)
        gap, step = gap_and_step(now)
        size = np.abs(gap)
        change = now.loss_slope * step
        done = (size < 1e-6) & (np.abs(change) < 1e-6 * np.maximum(1.0, np.abs(now.loss)))
        # If delta is flat, a tiny gap takes a long step, along which first-order extrapolation is invalid.
        done = done & (np.abs(step) <= 1e-6 * np.maximum(np.abs(low), np.abs(high)))
        if every(done):
            return now.loss + change, y + step
        newton = y + step
        low, high = pick(gap < 0, y, low), pick(gap > 0, y, high)
        if every(done | ((newton > low) & (newton < high) & (size < 0.5 * before))):
            y, before = newton, size
            continue
        if every(done | (high - low <= _SMALLEST_BRACKET * np.maximum(np.abs(high), np.abs(low)))):
            break
        y = pick(done | ((newton > low) & (newton < high)), newton, 0.5 * (low + high))
        before = np.float64(np.inf)
    return pick(done, now.loss + change, side(high).loss), pick(done, y + step, high)
