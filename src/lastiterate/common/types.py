"""What arrays hold, by name: a signature says float, integer or boolean, and mypy checks it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
Floats: TypeAlias = NDArray[np.float64] | np.float64  # of any shape: an array, or one NumPy number
Bools: TypeAlias = NDArray[np.bool_] | np.bool_  # what comparisons of `Floats` give
IntArray: TypeAlias = NDArray[np.int64]
ComplexArray: TypeAlias = NDArray[np.complex128]
BoolArray: TypeAlias = NDArray[np.bool_]
IntegerArray: TypeAlias = NDArray[np.integer]  # labels, of whatever width
RealArray: TypeAlias = NDArray[np.floating]  # float32 or float64, such as the parameters of a trained model
Float32Array: TypeAlias = NDArray[np.float32]  # images
Int32Array: TypeAlias = NDArray[np.int32]  # labels, and indices inside a compiled program
UInt8Array: TypeAlias = NDArray[np.uint8]  # images as files hold them
UInt32Array: TypeAlias = NDArray[np.uint32]  # random words
UInt64Array: TypeAlias = NDArray[np.uint64]  # probabilities as integers out of 2^64
NumberArray: TypeAlias = NDArray[np.number]  # numbers of whatever type a file or a user has them in


# Rows of plain values, which become tables, pictures and JSON, and how work on many things is followed.

Value: TypeAlias = str | int | float | None
Row: TypeAlias = dict[str, Value]
Json: TypeAlias = "Value | Sequence[Json] | Mapping[str, Json]"
JsonObject: TypeAlias = dict[str, Json]  # of a JSON object
Item = TypeVar("Item")


class Track(Protocol):
    """Hands items through, and may show how far it is; ``iter`` does no more than the first."""

    def __call__(self, items: Sequence[Item], /) -> Iterable[Item]: ...


def number_in(row: Row, name: str) -> float:
    """The number in this column."""
    value = row[name]
    if not isinstance(value, (int, float)):
        raise TypeError(f"{name} is no number in this row: {value!r}")
    return value


def text_in(row: Row, name: str) -> str:
    """The text in this column."""
    value = row[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is no text in this row: {value!r}")
    return value


def largest(rows: Sequence[Row], name: str) -> Row:
    """The row whose number in this column is largest."""
    return max(rows, key=lambda row: number_in(row, name))


def among(rows: Iterable[Row], name: str, value: Value) -> list[Row]:
    """The rows that have this value in this column."""
    return [row for row in rows if row[name] == value]


# Objects of JSON, as stores and commands read and write them.

Fields: TypeAlias = dict[str, Any]  # what a value is, whoever reads it knows by its name
