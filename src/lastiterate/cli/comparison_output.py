"""What ``report`` prints and draws of several stores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lastiterate.auditing.evidence.comparison import comparison_table
from lastiterate.cli.audit_output import INCONCLUSIVE, REFUTED, result_fields, status_of
from lastiterate.cli.output import print_json, print_whole
from lastiterate.cli.pictures import audit_files, pictures, write_beside
from lastiterate.cli.progress import tracker
from lastiterate.plot.file import missing_libraries

if TYPE_CHECKING:
    from lastiterate.auditing.evidence.comparison import ComparedAudit
    from lastiterate.auditing.evidence.question import Question
    from lastiterate.rows import Fields

SUFFIX = "-compared"  # of the pictures' names, which begin with that of the first store

_FROM_BEST_TO_WORST = (0, INCONCLUSIVE, REFUTED)


def names_of(stores: Sequence[Path]) -> list[str]:
    """What stores are called beside each other: by their files' names, or whole paths where those do not tell."""
    stems = [store.stem for store in stores]
    return stems if len(set(stems)) == len(stems) else [str(store) for store in stores]


def finish_comparison(
    audits: Sequence[ComparedAudit], question: Question, store: Path, output: Path | None, strict: bool, json: bool
) -> int:
    """Print, then draw, and give the worst status of all; a verdict's goes before that of a picture that failed."""
    from lastiterate.plot.comparison import comparison_chart

    folder = output or (None if json or not os.access(store.parent, os.W_OK) else store.parent)
    undrawn = missing_libraries() if folder else None
    if json:
        print_json({"rows": [_fields(audit) for audit in audits]})
    else:
        table = comparison_table(audits)
        print_whole(replace(table, notes=[*table.notes, *([f"No picture: {undrawn}"] if undrawn else [])]))
    files = audit_files(store, folder, SUFFIX) if folder and not undrawn else []
    drawn = pictures(lambda: comparison_chart(audits), files)
    written = write_beside(drawn, quiet=json, track=tracker("drawing"))
    statuses = [status_of(audit.result.verdict, question.has_claim, strict) for audit in audits]
    return max(statuses, key=_FROM_BEST_TO_WORST.index) or written


def _fields(audit: ComparedAudit) -> Fields:
    """An audit as JSON: all that a report of it alone has, and how it compares."""
    about: Fields = {"name": audit.name, "differs": list(audit.differs), "validity": audit.validity}
    return about | result_fields(audit.result)
