"""Validation of arguments, with errors that name the argument, its value and the allowed range.

Each function returns the valid value or raises ValueError.
"""

import math
import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import fields
from numbers import Integral
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from lastiterate.common.errors import BadArgument
from lastiterate.common.types import FloatArray

PerStep: TypeAlias = float | FloatArray  # one number for all steps, or one number per step
# Types that users may pass for an array.
SomeNumbers: TypeAlias = Sequence[float] | Sequence[Sequence[float]] | NDArray[np.floating] | NDArray[np.integer]
PerStepGiven: TypeAlias = float | Sequence[float] | NDArray[np.floating] | NDArray[np.integer]

LEAST_NOISE, MOST_NOISE = 1e-30, 1e30
_NO_NUMBERS = "bcSUmM"  # kinds of NumPy types that are not real numbers
_LONG = 200  # maximum number of characters of a value in an error message
MAX_STEPS = 2**53  # above it a float cannot represent every integer

# Python's int and float also accept digits of other scripts, underscores, nan and inf, which are refused here.
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INFINITE = re.compile(r"[+-]?inf(?:inity)?", re.IGNORECASE)
_BLANKS = " \t"


def written_integer(text: str) -> int | None:
    """Return the integer that is written in a text in plain decimal digits, or None. Blanks around it are allowed."""
    plain = text.strip(_BLANKS)
    try:
        return int(plain) if _INTEGER.fullmatch(plain) else None
    except ValueError:  # thousands of digits
        return None


def written_number(text: str, *, infinite: bool = False) -> float | None:
    """Return the number that is written in a text in decimal notation, such as ``1``, ``.5`` or ``1e-5``, or None.

    Infinity is accepted only if ``infinite`` is true and the text is ``inf`` or ``infinity``. ``1e999`` gives None.
    """
    plain = text.strip(_BLANKS)
    if infinite and _INFINITE.fullmatch(plain):
        return float(plain)
    value = float(plain) if _NUMBER.fullmatch(plain) else math.nan
    return value if math.isfinite(value) else None


Kind = TypeVar("Kind")


def instance(name: str, value: object, kind: type[Kind] | tuple[type[Kind], ...], allowed: str) -> Kind:
    """Return the value if it has this type. ``allowed`` names the type in the error, such as "a lastiterate.DPSGD"."""
    if isinstance(value, kind):
        return value
    raise BadArgument(name, f"must be {allowed}, got {told(value)}")


def one_of(name: str, value: object, words: Iterable[str]) -> str:
    """Return the value if it is one of the words."""
    allowed = list(words)
    if isinstance(value, str) and value in allowed:
        return value
    raise BadArgument(name, f"must be one of {', '.join(allowed)}, got {told(value)}")


def function(name: str, value: object, allowed: str) -> None:
    """Raise if a value is not callable, or if it is a class."""
    if not callable(value) or isinstance(value, type):
        raise BadArgument(name, f"must be {allowed}, got {told(value)}")


def as_array(name: str, value: object) -> NDArray[Any]:
    """Return the value as a NumPy array. Nested lists of different lengths are refused."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        raise BadArgument(name, f"must be an array, got {told(value)}") from None


def boolean(name: str, value: object) -> bool:
    """Return True or False. Numbers and texts are refused, because the text "no" would count as True."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise BadArgument(name, f"must be True or False, got {told(value)}")


def told(value: object) -> str:
    """Describe a value for an error message: plain values by their repr, others by their type."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return shown(value)
    return f"a value of type {type(value).__name__}"


def shown(value: object) -> str:
    """Return the repr of a value, cut for an error message."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."


def integer(name: str, value: object, low: int = 1, high: int = MAX_STEPS) -> int:
    """Return an integer in [low, high]. Booleans and floats, even whole floats, are refused."""
    whole = int(value) if isinstance(value, Integral) and not isinstance(value, (bool, np.bool_)) else None
    if whole is not None and low <= whole <= high:
        return whole
    too_large = whole is not None and whole > high
    allowed = f"in [{low}, {high}]" if high != MAX_STEPS or too_large else f"at least {low}"
    raise BadArgument(name, f"must be an integer {allowed}, got {shown(value)}")


def number(
    name: str,
    value: object,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> float:
    """Return a finite number between ``low`` and ``high``. Booleans, texts and complex numbers are refused."""
    try:
        result = math.nan if _is_no_number(value) else float(value)  # type: ignore[arg-type]  # other types raise
    except (TypeError, ValueError, OverflowError):
        result = math.nan
    if not _inside(result, low, high, open_low, open_high):
        raise BadArgument(name, f"must be {_allowed(low, high, open_low, open_high)}, got {shown(value)}")
    return result


def numbers(
    name: str,
    value: object,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> FloatArray:
    """Return an array of any shape. Every number must be in the interval. Infinity is allowed if ``high`` is inf."""
    try:
        given = np.asarray(value)
        if given.dtype.kind in _NO_NUMBERS or (given.dtype.kind == "O" and any(map(_is_no_number, given.flat))):
            raise TypeError
        result = given.astype(np.float64, copy=False)
    except (TypeError, ValueError, OverflowError):
        raise BadArgument(name, f"must be a number or an array of numbers, got {shown(value)}") from None
    bad = ~((result > low if open_low else result >= low) & (result < high if open_high else result <= high))
    if bad.any():
        first = float(result[bad].flat[0])
        raise BadArgument(name, f"must be {_allowed(low, high, open_low, open_high)}, got {first!r}")
    return result


def per_step(
    name: str, value: object, steps: int, low: float = -math.inf, high: float = math.inf, *, open_low: bool = False
) -> PerStep:
    """Return one number for all steps, or a read-only array of ``steps`` numbers."""
    if isinstance(value, float) or shape(name, value) == ():
        return number(name, value, low, high, open_low=open_low)
    if shape(name, value) != (steps,):
        raise BadArgument(
            name, f"must be one number or {steps} numbers, one for each step, got shape {shape(name, value)}"
        )
    result = np.array(numbers(name, value, low, high, open_low=open_low))
    if not np.isfinite(result).all():
        raise BadArgument(name, f"must be finite, got {float(result[~np.isfinite(result)][0])!r}")
    result.flags.writeable = False
    return result


def noise_multipliers(value: object, steps: int) -> PerStep:
    """Return positive noise multipliers in [1e-30, 1e30], so that their squares neither overflow nor vanish."""
    result = per_step("noise_multiplier", value, steps, 0.0, open_low=True)
    return per_step("noise_multiplier", result, steps, LEAST_NOISE, MOST_NOISE)


@overload
def cut(value: PerStep, stop: int, start: int = 0) -> PerStep: ...
@overload
def cut(value: PerStep | None, stop: int, start: int = 0) -> PerStep | None: ...
def cut(value: PerStep | None, stop: int, start: int = 0) -> PerStep | None:
    """Restrict a per-step value to the steps ``start + 1`` to ``stop``."""
    return value[start:stop] if isinstance(value, np.ndarray) and value.ndim else value


class ByFields:
    """Base of frozen dataclasses with arrays. Values are compared, hashed and printed by their fields."""

    def _fix(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _key(self) -> tuple[Hashable, ...]:
        items = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        return tuple(item.tobytes() if isinstance(item, np.ndarray) else item for item in items)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _usual(self) -> dict[str, object]:
        """Return defaults that depend on other fields."""
        return {}

    def __repr__(self) -> str:
        """Return the constructor call, without arguments at their default."""
        given, usual = [], self._usual()
        for field in fields(self):  # type: ignore[arg-type]
            held, default = getattr(self, field.name), usual.get(field.name, field.default)
            if type(held) is not type(default) or held != default:
                given.append(f"{field.name}={held.tolist() if isinstance(held, np.ndarray) else held!r}")
        return f"{type(self).__name__}({', '.join(given)})"


def _is_no_number(value: object) -> bool:
    """Return whether a value is not meant as a number, although ``float`` may accept it."""
    if isinstance(value, float):
        return False
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    return isinstance(value, (bool, str, bytes, bytearray, complex)) or (kind != "" and kind in _NO_NUMBERS)


def shape(name: str, value: object) -> tuple[int, ...]:
    """Return the shape of an array, a number or nested lists."""
    try:
        return tuple(np.shape(value))  # type: ignore[call-overload]  # any type
    except ValueError:
        raise BadArgument(name, f"must be a number or an array of numbers, got {shown(value)}") from None


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
