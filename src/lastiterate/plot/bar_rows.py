"""Rows of bars with a name and a number each: beside the bar where there is room, above it where there is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lastiterate.plot.style import chart_of
from lastiterate.rows import Row

if TYPE_CHECKING:
    from altair import Chart, Y

BAR = 30  # pixels of a row whose name is beside its bar
_STACKED = 46  # of one whose name is above it
_ROOM = 600  # pixels from which on there is room beside a bar
_DOWN = 11  # how far a bar is below the middle of its row, if its name is above


@dataclass(frozen=True)
class BarRow:
    """How a row is laid out in a picture of this width, with so many pixels for names and for numbers."""

    width: int
    names: int
    numbers: int
    is_wide: bool

    @classmethod
    def of(cls, width: int, names: int, numbers: int) -> BarRow:
        """The layout for this width."""
        return cls(width, names, numbers, width >= _ROOM)

    @property
    def across(self) -> list[float]:
        """Between which pixels bars are."""
        return [self.names, self.width - self.numbers] if self.is_wide else [0, self.width - 4]

    @property
    def height(self) -> int:
        """Of a row."""
        return BAR if self.is_wide else _STACKED

    @property
    def below(self) -> int:
        """How far marks are below the middle of the row."""
        return 0 if self.is_wide else _DOWN

    @property
    def bar(self) -> dict[str, Any]:
        """What makes a mark a bar of such a row."""
        return {"height": 0.6 * BAR, "yOffset": self.below} if self.is_wide else {"height": 14, "yOffset": self.below}

    def texts(self, rows: list[Row], y: Y, name: str, number: str) -> list[Chart]:
        """Names and numbers, from these columns."""
        import altair as alt

        left: dict[str, Any] = {"align": "right", "dx": -8} if self.is_wide else {"align": "left", "dy": -9}
        right: dict[str, Any] = {"align": "left", "dx": 8} if self.is_wide else {"align": "right", "dy": -9}
        places = (self.names, self.width - self.numbers) if self.is_wide else (0, self.width - 4)
        layers = []
        for column, at, style in ((name, places[0], left), (number, places[1], right)):
            text = chart_of(rows).mark_text(baseline="middle", fontSize=13, color="#222", **style)
            layers.append(text.encode(x=alt.value(at), y=y, text=f"{column}:N"))
        return layers
