"""Search for the number at which a monotone condition begins to hold: by doubling, and by bisection."""

from collections.abc import Callable
from typing import TypeVar

from lastiterate.common.types import Bools, Floats

Number = TypeVar("Number", int, float)


def bisect(
    holds: Callable[[Number], bool],
    low: Number,
    high: Number,
    is_near: Callable[[Number, Number], bool],
    middle: Callable[[Number, Number], Number],
) -> tuple[Number, Number]:
    """Return a narrower bracket. ``holds`` must be false at ``low`` and true at ``high``, which is not checked.

    The search ends when ``is_near(low, high)`` is true. ``middle(low, high)`` returns the next number to try.
    """
    while not is_near(low, high):
        between = middle(low, high)
        low, high = (low, between) if holds(between) else (between, high)
    return low, high


def doubled(is_short: Callable[[Floats], Bools], first: Floats) -> Floats:
    """Return the first number of ``first``, 2 ``first``, 4 ``first`` and so on that is not too short."""
    while is_short(first):
        first = 2.0 * first
    return first


def first_integer(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the smallest integer above ``low`` at which ``holds`` is true. ``holds`` must be true at ``high``."""
    return bisect(holds, low, high, lambda low, high: high - low <= 1, lambda low, high: (low + high) // 2)[1]
