"""Tables as text: a title, columns and notes, as wide as the reader's terminal, and with rich's help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lastiterate.wording import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rich.console import RenderableType
    from rich.text import Text

_EDGES = 2  # what rich forgets, when it measures a table, of the padding at its edges


@dataclass(frozen=True)
class Table:
    """What a table says, before anybody knows how wide it is; columns in ``numeric`` are aligned to the right."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Collection[int]
    notes: Sequence[str | Text] = ()

    def __str__(self) -> str:
        """Without colours."""
        return text_of(*self.parts(), colours=False)

    def parts(self) -> list[RenderableType]:
        """What rich is to draw, one below the other."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for index, column in enumerate(self.header):
            if index in self.numeric:
                table.add_column(column.replace(" ", "\n"), justify="right", no_wrap=True)
            else:
                table.add_column(column, overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(shown(cell)) for cell in row))
        below = [Text(shown(note)) if isinstance(note, str) else note for note in ["", *self.notes]]
        return [Text(shown(self.title) + "\n"), table, *(below if self.notes else [])]


def shown(text: str) -> str:
    """A text of several lines, without characters that command a terminal."""
    return "\n".join(map(printable, text.split("\n")))


def text_of(*parts: RenderableType, colours: bool = True) -> str:
    """What rich makes of these, without the blanks with which it fills lines up; colours are for terminals."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(highlight=False) if colours else Console(highlight=False, color_system=None, force_jupyter=False)
    # Rather than cut digits off, let a table be wider than the terminal.
    unbounded = console.options.update(max_width=1000)
    widest = max(Measurement.get(console, unbounded, part).minimum for part in parts)
    console.width = max(console.width, widest + _EDGES)
    with console.capture() as text:
        console.print(*parts, sep="\n")
    return "\n".join(line.rstrip() for line in text.get().splitlines())
