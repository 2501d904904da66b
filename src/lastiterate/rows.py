"""Rows of plain values, which become tables, pictures and JSON, and how work on many things is followed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

Value: TypeAlias = str | int | float | None
Row: TypeAlias = dict[str, Value]
Json: TypeAlias = "Value | Sequence[Json] | Mapping[str, Json]"
Fields: TypeAlias = dict[str, Json]  # of a JSON object
Item = TypeVar("Item")


class Track(Protocol):
    """Hands items through, and may show how far it is; ``iter`` does no more than the first."""

    def __call__(self, items: Sequence[Item], /) -> Iterable[Item]: ...


def number(row: Row, name: str) -> float:
    """The number in this column."""
    value = row[name]
    if not isinstance(value, (int, float)):
        raise TypeError(f"{name} is no number in this row: {value!r}")
    return value


def text(row: Row, name: str) -> str:
    """The text in this column."""
    value = row[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is no text in this row: {value!r}")
    return value


def largest(rows: Sequence[Row], name: str) -> Row:
    """The row whose number in this column is largest."""
    return max(rows, key=lambda row: number(row, name))


def among(rows: Iterable[Row], name: str, value: Value) -> list[Row]:
    """The rows that have this value in this column."""
    return [row for row in rows if row[name] == value]
