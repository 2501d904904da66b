"""Type aliases: arrays by the type of their elements, rows of plain values, and JSON objects."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
Floats: TypeAlias = NDArray[np.float64] | np.float64  # an array of any shape, or one NumPy number
Bools: TypeAlias = NDArray[np.bool_] | np.bool_  # results of comparisons of `Floats`
IntArray: TypeAlias = NDArray[np.int64]
ComplexArray: TypeAlias = NDArray[np.complex128]
BoolArray: TypeAlias = NDArray[np.bool_]
IntegerArray: TypeAlias = NDArray[np.integer]  # labels, as integers of any width
RealArray: TypeAlias = NDArray[np.floating]  # float32 or float64, such as the parameters of a trained model
Float32Array: TypeAlias = NDArray[np.float32]  # images
Int32Array: TypeAlias = NDArray[np.int32]  # labels, and indices inside a compiled program
UInt8Array: TypeAlias = NDArray[np.uint8]  # images as stored in files
UInt32Array: TypeAlias = NDArray[np.uint32]  # random words
NumberArray: TypeAlias = NDArray[np.number]  # numbers of any type, from a file or a user


Foreign: TypeAlias = Any  # an object of another library, which may be untyped or not installed

# Rows: plain values for tables, pictures and JSON; and progress over many items.

Value: TypeAlias = str | int | float | None
Row: TypeAlias = dict[str, Value]
Json: TypeAlias = "Value | Sequence[Json] | Mapping[str, Json]"
JsonObject: TypeAlias = dict[str, Json]  # a JSON object
Item = TypeVar("Item")


class Track(Protocol):
    """A function that yields the given items and may show progress. ``iter`` is one that shows no progress."""

    def __call__(self, items: Sequence[Item], /) -> Iterable[Item]: ...


def number_in(row: Row, name: str) -> float:
    """Return the number in this column."""
    value = row[name]
    if not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number in this row, got {value!r}")
    return value


def text_in(row: Row, name: str) -> str:
    """Return the text in this column."""
    value = row[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a text in this row, got {value!r}")
    return value


def largest(rows: Sequence[Row], name: str) -> Row:
    """Return the row whose number in this column is largest."""
    return max(rows, key=lambda row: number_in(row, name))


def among(rows: Iterable[Row], name: str, value: Value) -> list[Row]:
    """Return the rows that have this value in this column."""
    return [row for row in rows if row[name] == value]


# JSON objects: fields that stores and commands read and write.

Fields: TypeAlias = dict[str, Any]  # the name of a field determines the type of its value


def with_reasons(fields: Mapping[str, Any], reasons: Mapping[str, str]) -> Fields:
    """Return fields as JSON. A missing or infinite number is null, and the next field, ``name_reason``, says why."""
    found: Fields = {}
    for name, value in fields.items():
        found[name] = None if isinstance(value, float) and not math.isfinite(value) else value
        if found[name] is None:
            found[f"{name}_reason"] = reasons[name]
    return found
