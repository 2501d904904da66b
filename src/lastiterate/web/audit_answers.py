"""What pages show of a store: computed in a process of its own, from scores that are only read."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

from lastiterate.answers import guarantee_of
from lastiterate.auditing.design import OpenEnded
from lastiterate.auditing.evidence.growth import growth_of
from lastiterate.auditing.evidence.question import Question
from lastiterate.auditing.evidence.report import Evidence, report
from lastiterate.auditing.evidence.result import AuditResult
from lastiterate.auditing.reading import evidence_in
from lastiterate.auditing.stores.store import Store
from lastiterate.fields import Fields
from lastiterate.plot.style import verdict_colour
from lastiterate.vocabulary import METHODS, OWN_COIN
from lastiterate.wording import describe, printable, spell_down, spell_exact, spell_up


def summary(path: str) -> Fields:
    """A line of the list."""
    with Store.read(Path(path), repairs=False) as store:
        fields = _begun(store)
        evidence = evidence_in(store) if store.crafted is not None else None
    if evidence is not None and _has_both(evidence):
        fields |= _judged(report(evidence, Question()))
    return fields


def detail(path: str, name: str, width: int) -> Fields:
    """The page of one audit: pieces of HTML, and pictures of this width."""
    from lastiterate.plot.page import parts_of
    from lastiterate.plot.page_charts import page_charts

    with Store.read(Path(path), repairs=False) as store:
        fields = _begun(store)
        evidence = evidence_in(store) if store.crafted is not None else None
    if evidence is None or not _has_both(evidence):
        return fields | {"waits": "No model of both worlds is there yet."}
    question = Question()
    result = report(evidence, question)
    parts = parts_of(result)
    charts = page_charts(result, width, growth_of(evidence, question))
    order = ["growth", *(each for each in charts if each != "growth")]
    figures = [
        {"name": each, "title": chart.title, "words": chart.words, "description": chart.description, "spec": chart.spec}
        for each in order
        if (chart := charts.get(each)) is not None
    ]
    fields |= {"answer": parts.answer, "tables": parts.tables, "about": parts.about, "figures": figures}
    return fields | _judged(result) | {"name": name}


def one_page(path: str) -> Fields:
    """The summary for whoever signs, as HTML."""
    from lastiterate.auditing.card import card_of
    from lastiterate.plot.summary import summary_page

    with Store.read(Path(path), repairs=False) as store:
        return {"html": summary_page(card_of(store, report(evidence_in(store), Question())))}


def _begun(store: Store) -> Fields:
    """What is known of an audit before its first score."""
    record, trials = store.record, store.scores()
    crafted = store.crafted
    created = record.setup.get("created")
    return {
        "data": printable(record.data) or "your trainer",
        "run": describe(record.run),
        "attack": printable(crafted["words"]["attack"]) if crafted else "the canary is being crafted",
        "done": len(trials),
        "read": monotonic(),  # pages ask twice, for the list and for one audit: the newer of both is shown
        "planned": record.design.trials,
        "is_open": isinstance(record.design, OpenEnded),
        "trial_seconds": float(trials.seconds.mean()) if len(trials) else 0.0,
        "chunk": int(crafted["chunk_size"]) if crafted else 1,
        "created": printable(created) if isinstance(created, str) else "",
        "verdict": None,
    }


def _judged(result: AuditResult) -> Fields:
    method, first = next(iter(result.estimates.items()))
    guarantee = result.predictions.get(guarantee_of(result.run))
    return {
        "verdict": result.verdict,
        "reason": printable(result.reason),
        "colour": verdict_colour(result.verdict),
        "found": spell_down(first.epsilon, 3),
        "found_if": OWN_COIN if METHODS[method].is_one_run else None,
        "predicted": _spelled(result.last_iterate),
        "guaranteed": _spelled(None if guarantee is None else guarantee.value),
        "delta": spell_exact(result.delta),
    }


def _spelled(value: float | None) -> str:
    return "none" if value is None else spell_up(value, 3)


def _has_both(evidence: Evidence) -> bool:
    """Whether each world has a score that counts."""
    try:
        evidence.worlds("anytime" if isinstance(evidence.design, OpenEnded) else "fixed")
    except ValueError:
        return False
    return True
