"""What ``calibrate`` and ``plan`` print: tables of noise, and which of it guarantees something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastiterate.cli.output import print_note, print_rows
from lastiterate.optimizer import Adam
from lastiterate.rows import number
from lastiterate.wording import ADAM_CAVEAT, neighbours_of, spell_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lastiterate.rows import Row
    from lastiterate.run import DPSGD


def print_noise(tables: Sequence[tuple[str, list[Row]]], run: DPSGD, notes: Sequence[str] = ()) -> None:
    """Titles and rows, one table after the other; what to know comes last.

    The analysis of a row is for its title or a column of its own to tell. Analyses without any value have no column.
    """
    rows = [row for _, of_table in tables for row in of_table]
    answers = [key for key in rows[0] if not key.endswith("_reason") and key != "noise_multiplier"]
    empty = [key for key in answers if all(row[key] is None for row in rows)]
    reasons = dict.fromkeys(f"No {key.replace('_', ' ')}: {row[f'{key}_reason']}" for key in empty for row in rows)
    about = f"Neighbours: {neighbours_of(run)}."
    hidden = {"analysis", "is_guarantee", *empty}
    for index, (title, of_table) in enumerate(tables, start=1):
        shown = [{key: row[key] for key in row if key.removesuffix("_reason") not in hidden} for row in of_table]
        is_last = index == len(tables)
        print_rows(title, shown, [*reasons, about, _caution(rows, run), *notes] if is_last else [])
        if not is_last:
            print_note("")


def _caution(rows: list[Row], run: DPSGD) -> str:
    """Which analysis is a guarantee, and what it guarantees with the noise of the one that is not."""
    name = "no_amplification" if "no_amplification" in rows[0] else "composition"
    label = name.replace("_", " ").capitalize()
    note = f"{label} is a guarantee. Last iterate is a heuristic: it predicts, it does not guarantee."
    if isinstance(run.optimizer, Adam):
        note = f"{label} is a guarantee. {ADAM_CAVEAT}"
    promised = [number(row, name) for row in rows if row["analysis"] == "last_iterate" and row[name] is not None]
    if not promised:
        return note
    low, high = spell_up(min(promised)), spell_up(max(promised))
    return f"{note} With its noise the guarantee is epsilon {low if low == high else f'{low} to {high}'}."
