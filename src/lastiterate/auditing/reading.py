"""From a store to the evidence in it: what ``report`` is asked of, also while the audit is running."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lastiterate.auditing.design import Paired
from lastiterate.auditing.evidence.question import Question
from lastiterate.auditing.evidence.report import Evidence, report
from lastiterate.auditing.evidence.result import AuditResult
from lastiterate.auditing.experiments.protocol import Crafted
from lastiterate.auditing.stores.store import Store
from lastiterate.auditing.stores.trials import ScoredTrials


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
        prefix=_prefix(trials) if isinstance(record.design, Paired) else 0,
        quality=record.quality,
        qualities=trials.qualities,
        quality_before=crafted.quality_before,
        seconds=store.seconds,
        store=store.path,
        second_moment=crafted.second_moment,
    )


def _prefix(trials: ScoredTrials) -> int:
    """How many trials come before the first gap: those of models up to which both worlds are there."""
    there = (trials.models == np.arange(len(trials)) // 2) & (trials.present == (np.arange(len(trials)) % 2 == 0))
    gaps = np.flatnonzero(~there)
    return 2 * ((int(gaps[0]) if gaps.size else len(trials)) // 2)


def read(path: str | Path, question: Question = Question()) -> AuditResult:  # noqa: B008 - it is frozen
    """The result of the audit in a store, which may still be running."""
    with Store.read(path) as store:
        return report(evidence_in(store), question)


def read_with_problem(path: Path, question: Question) -> tuple[AuditResult, str | None]:
    """The same, with the fingerprint of what was trained on, for those who compare stores and say which is refused."""
    with Store.read(path) as store:
        try:
            return report(evidence_in(store), question), store.problem
        except ValueError as refusal:
            if str(path) in str(refusal):
                raise
            raise ValueError(f"{refusal} (the store {str(path)!r})") from None
