"""The paper's figures and tables, one module each. ``Reproduction`` is the interface of these modules."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Literal, Protocol, cast

from lastiterate.common.types import Row, Track
from lastiterate.common.validation import one_of
from lastiterate.plot.style import alt

if TYPE_CHECKING:
    from lastiterate.paper.reproduce.audited_figures import Audits

Scale = Literal["quick", "full", "cifar10-features"]

ON_FEATURES = ("figure2", "figure4", "table2")  # what the scale cifar10-features applies to
NAMES = ("figure1", "figure2", "figure3", "figure4", "figure5", "figure6", "table1", "table2")


class Reproduction(Protocol):
    """Interface of a module that reproduces a figure or table. ``rows`` returns one row per point or table row."""

    TITLE: str
    TAKES: tuple[str, ...]  # the fields of ``Audits`` that the module uses

    def rows(self, scale: Scale, track: Track = ..., audits: Audits = ...) -> list[Row]: ...
    def chart(self, rows: list[Row]) -> alt.HConcatChart: ...
    def notes(self, rows: list[Row]) -> list[str]: ...


def find(name: str) -> Reproduction:
    """Return the module that reproduces the figure or table ``name``."""
    one_of("name", name, NAMES)
    return cast("Reproduction", import_module(f"lastiterate.paper.reproduce.{name}"))
