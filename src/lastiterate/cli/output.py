"""What commands print: one JSON object, or tables for people, which without a terminal are plain text."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from lastiterate.plot.words import ANALYSES, ASSUMPTIONS, LABELS, spell

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lastiterate.cli.answers import Answer


def print_json(fields: dict[str, Any]) -> None:
    """Print one JSON object; infinity and NaN, which JSON lacks, would be a mistake of the caller's."""
    import json

    sys.stdout.write(json.dumps(fields, indent=2, allow_nan=False) + "\n")


def print_answers(title: str, quantity: str, answers: dict[str, Answer]) -> None:
    """The three analyses beside each other, each with what it assumes."""
    rows = [
        (LABELS[name], "none", "see below") if value is None else (LABELS[name], spell(value, 5), ASSUMPTIONS[name])
        for name in ANALYSES
        for value in [answers[name].value]
    ]
    print_table(title, ("analysis", quantity, "what it assumes"), rows, numeric=(1,))
    for name in ANALYSES:
        if answers[name].value is None:
            print_note(f"{LABELS[name]}: {answers[name].reason}")


def print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    """Rows of JSON as a table: the keys are its header, reasons are left out."""
    header = [key for key in rows[0] if not key.endswith("_reason")]
    numeric = [i for i, key in enumerate(header) if not isinstance(rows[0][key], str)]
    cells = [[_cell(row[key]) for key in header] for row in rows]
    print_table(title, [key.replace("_", " ") for key in header], cells, numeric)


def _cell(value: Any) -> str:
    match value:
        case None:
            return "none"
        case str():
            return value
        case int():
            return f"{value:,}"
        case _:
            return spell(value, 5)


def print_table(title: str, header: Iterable[str], rows: Iterable[Iterable[str]], numeric: Iterable[int] = ()) -> None:
    """A titled table; columns of numbers are aligned to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    right = set(numeric)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, column in enumerate(header):
        if index in right:
            table.add_column(column.replace(" ", "\n"), justify="right", no_wrap=True)
        else:
            table.add_column(column)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(highlight=False)
    with console.capture() as text:
        console.print(Text(title + "\n"))
        console.print(table)
    sys.stdout.write("\n".join(line.rstrip() for line in text.get().splitlines()) + "\n")


def print_note(text: str) -> None:
    """A line of plain words under or above a table."""
    from rich.console import Console

    Console(highlight=False).print(text, markup=False)
