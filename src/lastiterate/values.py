"""Values that users pass in: checks that name the argument, its value and what is allowed, in one sentence."""

from __future__ import annotations

import math
from dataclasses import fields
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
PerStep = float | Array

LEAST_NOISE, MOST_NOISE = 1e-30, 1e30
MAX_STEPS = 2**53  # beyond it a float no longer tells one step from the next


def integer(name: str, value: Any, low: int = 1, high: int = MAX_STEPS) -> int:
    """An integer in [low, high]; floats and booleans are refused, even whole ones."""
    if isinstance(value, Integral) and not isinstance(value, (bool, np.bool_)) and low <= value <= high:
        return int(value)
    allowed = f"at least {low}" if high == MAX_STEPS else f"in [{low}, {high}]"
    raise ValueError(f"{name} must be an integer {allowed}, got {value!r}")


def number(
    name: str, value: Any, low: float = -math.inf, high: float = math.inf, *, open_low: bool = False, open_high: bool = False
) -> float:
    """One finite number in the interval from ``low`` to ``high``."""
    try:
        result = float(value)
    except (TypeError, ValueError):
        result = math.nan
    if not _inside(result, low, high, open_low, open_high):
        raise ValueError(f"{name} must be {_allowed(low, high, open_low, open_high)}, got {value!r}")
    return result


def numbers(
    name: str, value: Any, low: float = -math.inf, high: float = math.inf, *, open_low: bool = False, open_high: bool = False
) -> Array:
    """An array of numbers of any shape, each in the interval. Infinity counts as a number where ``high`` is."""
    try:
        result = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number or an array of numbers, got {value!r}") from None
    bad = ~((result > low if open_low else result >= low) & (result < high if open_high else result <= high))
    if bad.any():
        shown = float(result[bad].flat[0])
        raise ValueError(f"{name} must be {_allowed(low, high, open_low, open_high)}, got {shown!r}")
    return result


def per_step(
    name: str, value: Any, steps: int, low: float = -math.inf, high: float = math.inf, *, open_low: bool = False
) -> PerStep:
    """One number for all steps, or a read-only array of ``steps`` numbers."""
    if np.ndim(value) == 0:
        return number(name, value, low, high, open_low=open_low)
    if np.shape(value) != (steps,):
        raise ValueError(f"{name} must be one number or {steps} numbers, one for each step, got shape {np.shape(value)}")
    result = np.array(numbers(name, value, low, high, open_low=open_low))
    if not np.isfinite(result).all():
        raise ValueError(f"{name} must be finite, got {float(result[~np.isfinite(result)][0])!r}")
    result.flags.writeable = False
    return result


def noise_multipliers(value: Any, steps: int) -> PerStep:
    """Positive noise multipliers whose squares a float can hold with room to spare."""
    result = per_step("noise_multiplier", value, steps, 0.0, open_low=True)
    return per_step("noise_multiplier", result, steps, LEAST_NOISE, MOST_NOISE)


def cut(value: Any, steps: int) -> Any:
    """A per-step value, restricted to the first ``steps`` steps."""
    return value if value is None or np.ndim(value) == 0 else value[:steps]


def same(first: Any, second: Any) -> bool:
    """Whether two dataclasses of one type hold the same values, arrays included."""
    return type(first) is type(second) and key(first) == key(second)


def key(value: Any) -> tuple[Any, ...]:
    """A hashable image of a dataclass whose fields may be arrays."""
    items = (getattr(value, field.name) for field in fields(value))
    return tuple(item.tobytes() if isinstance(item, np.ndarray) else item for item in items)


def _inside(value: float, low: float, high: float, open_low: bool, open_high: bool) -> bool:
    above = value > low if open_low else value >= low
    below = value < high if open_high else value <= high
    return math.isfinite(value) and above and below


def _allowed(low: float, high: float, open_low: bool, open_high: bool) -> str:
    if math.isinf(low) and math.isinf(high):
        return "a finite number"
    if math.isinf(high):
        return f"{'greater than' if open_low else 'at least'} {low:g} and finite"
    return f"in {'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
