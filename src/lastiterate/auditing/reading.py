"""From a store to the evidence in it: what ``report`` is asked of, also while the audit is running."""

from __future__ import annotations

from pathlib import Path

from lastiterate.auditing.evidence.question import Question
from lastiterate.auditing.evidence.report import Evidence, report
from lastiterate.auditing.evidence.result import AuditResult
from lastiterate.auditing.experiments.protocol import Crafted
from lastiterate.auditing.stores.store import Store


def evidence_in(store: Store) -> Evidence:
    """All that a store knows about its audit."""
    record, held = store.record, store.crafted
    if held is None:
        raise ValueError(
            f"the store {str(store.path)!r} has no trial yet: its audit was stopped before the first model"
        )
    crafted, trials = Crafted.of_fields(held), store.scores()
    return Evidence(
        run=record.run,
        design=record.design,
        expected=crafted.expected,
        words=crafted.words,
        data=record.data,
        scores=trials.scores,
        present=trials.present,
        quality=record.quality,
        qualities=trials.qualities,
        quality_before=crafted.quality_before,
        seconds=store.seconds,
        store=store.path,
    )


def read(path: str | Path, question: Question = Question()) -> AuditResult:  # noqa: B008 - it is frozen
    """The result of the audit in a store, which may still be running."""
    with Store.read(path) as store:
        return report(evidence_in(store), question)
