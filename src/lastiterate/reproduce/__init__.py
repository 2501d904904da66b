"""The paper's figures and tables, one file each. A file gives ``TITLE``, ``rows(scale, track)`` and ``chart(rows)``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

if TYPE_CHECKING:
    from lastiterate.plot.style import Row, Track

Scale = Literal["quick", "full"]

NAMES = ("figure1",)


class Reproduction(Protocol):
    """What each file gives."""

    TITLE: str

    def rows(self, scale: Scale, track: Track = ...) -> list[Row]:
        """The numbers: plain values, one row a point."""

    def chart(self, rows: list[Row]) -> Any:
        """The picture of these numbers, an altair chart."""


def find(name: str) -> Reproduction:
    """The figure or table of this name."""
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")
    return cast("Reproduction", import_module(f"lastiterate.reproduce.{name}"))
