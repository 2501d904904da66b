"""The paper's figures and tables, one file each.

A file gives ``TITLE``, ``TAKES``, ``rows(scale, track, audits)``, ``chart(rows)`` and ``notes(rows)``.
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
    """What each file gives."""

    TITLE: str
    TAKES: tuple[str, ...]  # the fields of ``Audits`` that matter to it

    def rows(self, scale: Scale, track: Track = ..., audits: Audits = ...) -> list[Row]:
        """The numbers: plain values, one row a point."""

    def chart(self, rows: list[Row]) -> HConcatChart:
        """The picture of these numbers, an altair chart."""

    def notes(self, rows: list[Row]) -> list[str]:
        """What a reader of the table should know, in sentences."""


def find(name: str) -> Reproduction:
    """The figure or table of this name."""
    one_of("name", name, NAMES)
    return cast("Reproduction", import_module(f"lastiterate.paper.reproduce.{name}"))
