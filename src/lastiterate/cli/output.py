"""What commands print: one JSON object, or tables for people, which without a terminal are plain text."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from lastiterate.vocabulary import ANALYSES
from lastiterate.wording import printable, spell, spell_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import RenderableType
    from rich.text import Text

    from lastiterate.answers import Answer
    from lastiterate.rows import Json
    from lastiterate.run import DPSGD


def print_json(fields: Mapping[str, Json]) -> None:
    """Print one JSON object; infinity and NaN, which JSON lacks, would be a mistake of the caller's."""
    import json

    _write(json.dumps(fields, indent=2, allow_nan=False) + "\n")


def print_answers(title: str, quantity: str, answers: dict[str, Answer], run: DPSGD, notes: Iterable[str] = ()) -> None:
    """The analyses beside each other, each with what it assumes."""
    shown = {name: answer for name, answer in answers.items() if name != "max_over_steps"}
    rows = [
        (ANALYSES[name].label, "none", "see below")
        if answer.value is None
        else (ANALYSES[name].label, spell(answer.value, 5), ANALYSES[name].assumed_of(run))
        for name, answer in shown.items()
    ]
    reasons = [f"{ANALYSES[name].label}: {answer.reason}" for name, answer in shown.items() if answer.value is None]
    print_table(title, ("analysis", quantity, "what it assumes"), rows, {1}, [*reasons, *notes])


def print_rows(title: str, rows: Sequence[Mapping[str, Json]], notes: Iterable[str | Text] = ()) -> None:
    """Rows of JSON as a table: the keys are its header, and reasons stand under it."""
    header = [key for key in rows[0] if not key.endswith("_reason")]
    numeric = {i for i, key in enumerate(header) if not isinstance(rows[0][key], str)}
    reasons = dict.fromkeys(f"none: {row[key]}" for row in rows for key in row if key.endswith("_reason"))
    cells = [[_cell(key, row[key]) for key in header] for row in rows]
    print_table(title, [key.replace("_", " ") for key in header], cells, numeric, [*reasons, *notes])


def _cell(key: str, value: Json) -> str:
    match value:
        case None:
            return "none"
        case str():
            return value
        case int() | float() if key == "noise_multiplier":
            return spell_up(value)
        case int():
            return f"{value:,}"
        case float():
            return spell(value, 5)
    raise TypeError(f"{key} is no value for a table: {value!r}")


def print_note(text: str) -> None:
    """Plain words above a table."""
    from rich.text import Text

    _print(Text(_shown(text)))


def print_table(
    title: str, header: Iterable[str], rows: Iterable[Iterable[str]], numeric: set[int], notes: Sequence[str | Text]
) -> None:
    """A title, a table whose numeric columns are aligned to the right, and notes."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, column in enumerate(header):
        if index in numeric:
            table.add_column(column.replace(" ", "\n"), justify="right", no_wrap=True)
        else:
            table.add_column(column)
    for row in rows:
        table.add_row(*(Text(_shown(cell)) for cell in row))
    below = [Text(_shown(note)) if isinstance(note, str) else note for note in ["", *notes]]
    _print(Text(_shown(title) + "\n"), table, *(below if notes else []))


def _shown(text: str) -> str:
    """A text of several lines, without characters that command a terminal."""
    return "\n".join(map(printable, text.split("\n")))


def _print(*parts: RenderableType) -> None:
    """Print without the blanks with which rich fills lines up."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(highlight=False)
    # Rather than cut digits off, let a table be wider than the terminal.
    unbounded = console.options.update(max_width=1000)
    widest = max(Measurement.get(console, unbounded, part).minimum for part in parts)
    console.width = max(console.width, widest)
    with console.capture() as text:
        console.print(*parts, sep="\n")
    _write("\n".join(line.rstrip() for line in text.get().splitlines()) + "\n")


def _write(text: str) -> None:
    """Write, and see that it arrives: whatever comes after it must not take it away."""
    sys.stdout.write(text)
    sys.stdout.flush()
