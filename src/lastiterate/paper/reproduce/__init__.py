"""The paper's figures and tables, one file each.

Each file defines ``TITLE``, ``TAKES``, ``rows(scale, track, audits)``, ``chart(rows)`` and ``notes(rows)``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Literal, Protocol, cast

from lastiterate.common.validation import one_of

if TYPE_CHECKING:
    from altair import HConcatChart

    from lastiterate.common.types import Row, Track
    from lastiterate.paper.reproduce.audited_figures import Audits

Scale = Literal["quick", "full"]

NAMES = ("figure1", "figure2", "figure3", "figure4", "figure5", "figure6", "table1", "table2")


class Reproduction(Protocol):
    """Interface of the file of a figure or table."""

    TITLE: str
    TAKES: tuple[str, ...]  # the fields of ``Audits`` that the file uses

    def rows(self, scale: Scale, track: Track = ..., audits: Audits = ...) -> list[Row]:
        """Return the numbers as plain values, one row per point."""

    def chart(self, rows: list[Row]) -> HConcatChart:
        """Return the altair chart of these numbers."""

    def notes(self, rows: list[Row]) -> list[str]:
        """Return the notes of the table, in sentences."""


def find(name: str) -> Reproduction:
    """Return the figure or table of this name."""
    one_of("name", name, NAMES)
    return cast("Reproduction", import_module(f"lastiterate.paper.reproduce.{name}"))
