"""The one root-finder: Newton's method within a bracket, for many problems at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import erfcx, ndtri_exp

from lastiterate.privacy.mixtures.rows import SQRT_HALF, Side, every, some

if TYPE_CHECKING:
    from collections.abc import Callable

    from lastiterate.values import Array

_SQRT_HALF_PI = float(np.sqrt(0.5 * np.pi))
_SMALLEST_BRACKET = 4e-16


def solve(
    side: Callable[[Array], Side], log_delta: Array, y: Array, low: Array, high: Array, floor: float = 0.0
) -> tuple[Array, Array]:
    """The privacy loss where log delta(y) = log_delta, and that y; delta falls along y.

    A loss at or below ``floor`` is not sought any further: it may be any such.

    Where delta is so flat that rounding decides which loss that is, the result is above it, not below.
    Works on the normal quantile of delta, of which y is nearly a linear function: three evaluations usually do.
    """
    goal = ndtri_exp(a_little_less(log_delta))

    def gap_and_step(now: Side) -> tuple[Array, Array]:
        quantile = ndtri_exp(np.minimum(now.log_delta, 0.0))  # rounding may put a delta of 1 above it
        gap = goal - quantile
        step = gap / (now.log_delta_slope * erfcx(-SQRT_HALF * quantile) * _SQRT_HALF_PI)
        settled = (gap > 0.0) & (now.loss <= floor)
        if some(settled):
            gap, step = np.where(settled, 0.0, gap)[()], np.where(settled, 0.0, step)[()]
        return gap, step

    return _newton(side, gap_and_step, y, low, high)


def a_little_less(log_delta: Array) -> Array:
    """log_delta less about the rounding error of a computed one: summed logarithms of probabilities."""
    return (1.0 + 2e-15) * log_delta - 1e-14


def invert(loss: Callable[[Array], tuple[Array, Array]], goal: Array, y: Array, low: Array, high: Array) -> Array:
    """The y where an increasing function, given with its derivative (or NaN), has the value ``goal``."""

    def side(y: Array) -> Side:
        value, slope = loss(y)
        return Side(y, np.ones_like(y)[()], value, slope)

    def gap_and_step(now: Side) -> tuple[Array, Array]:
        gap = now.log_delta - goal
        return gap, np.where(gap == 0.0, 0.0, -gap / now.log_delta_slope)[()]

    return _newton(side, gap_and_step, y, low, high)[0]


def _newton(
    side: Callable[[Array], Side],
    gap_and_step: Callable[[Side], tuple[Array, Array]],
    y: Array,
    low: Array,
    high: Array,
) -> tuple[Array, Array]:
    """A positive gap means that y is too large. The last step is taken to first order and not evaluated again.

    What does not converge ends at the upper end of its bracket, where the loss is at least the one sought.
    """
    before = np.inf
    for _ in range(300):
        now = side(y)
        gap, step = gap_and_step(now)
        size = np.abs(gap)
        change = now.loss_slope * step
        done = (size < 1e-6) & (np.abs(change) < 1e-6 * np.maximum(1.0, np.abs(now.loss)))
        # Where delta is flat a tiny gap takes a long step, along which first order says nothing.
        done = done & (np.abs(step) <= 1e-6 * np.maximum(np.abs(low), np.abs(high)))
        if every(done):
            return now.loss + change, y + step
        newton = y + step
        if every(done | ((newton > low) & (newton < high) & (size < 0.5 * before))):
            y, before = newton, size
            continue
        low, high = _pick(gap < 0, y, low), _pick(gap > 0, y, high)
        if every(done | (high - low <= _SMALLEST_BRACKET * np.maximum(np.abs(high), np.abs(low)))):
            break
        y = _pick(done | ((newton > low) & (newton < high)), newton, 0.5 * (low + high))
        before = np.inf
    return _pick(done, now.loss + change, side(high).loss), _pick(done, y + step, high)


def _pick(condition: Array, first: Array, second: Array) -> Array:
    picked: Array = np.where(condition, first, second)
    return picked[()]
