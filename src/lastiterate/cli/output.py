"""What commands print: one JSON object, or tables for people, which without a terminal are plain text."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from lastiterate.tables import Table, shown, text_of
from lastiterate.vocabulary import ANALYSES
from lastiterate.wording import neighbours_of, spell, spell_down, spell_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
        (ANALYSES[name].label_of(run), "none", "see below")
        if answer.value is None
        else (ANALYSES[name].label_of(run), spell_up(answer.value), ANALYSES[name].assumed_of(run))
        for name, answer in shown.items()
    ]
    reasons = [
        f"{ANALYSES[name].label_of(run)}: {answer.reason}" for name, answer in shown.items() if answer.value is None
    ]
    below = [*reasons, f"Neighbours: {neighbours_of(run)}.", *notes]
    print_table(title, ("analysis", quantity, "what it assumes"), rows, {1}, below)


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
        case int() | float() if key == "noise_multiplier" or key in ANALYSES:
            return spell_up(value)
        case int() | float() if key == "epsilon":  # a lower bound
            return spell_down(value)
        case int():
            return f"{value:,}"
        case float():
            return spell(value, 5)
    raise TypeError(f"{key} is no value for a table: {value!r}")


def print_note(text: str) -> None:
    """Plain words above a table."""
    from rich.text import Text

    _write(text_of(Text(shown(text))) + "\n")


def print_table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], numeric: set[int], notes: Sequence[str | Text]
) -> None:
    """A title, a table whose numeric columns are aligned to the right, and notes."""
    print_whole(Table(title, header, rows, numeric, notes))


def print_whole(table: Table) -> None:
    """A table that somebody else has put together, on a terminal with its colours."""
    _write(text_of(*table.parts()) + "\n")


def _write(text: str) -> None:
    """Write, and see that it arrives: whatever comes after it must not take it away."""
    sys.stdout.write(text)
    sys.stdout.flush()
