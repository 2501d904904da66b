"""Contents of the pages of audits: list entry, detail page, summary page, and colours of analyses.

The functions run in worker processes and only read the stores.
"""

from __future__ import annotations

from pathlib import Path
from time import monotonic

from lastiterate.auditing.design import OpenEnded
from lastiterate.auditing.evidence.audit_result import AuditResult
from lastiterate.auditing.evidence.estimates import Question
from lastiterate.auditing.evidence.report import Evidence, growth_of, report
from lastiterate.auditing.load_evidence import evidence_in
from lastiterate.auditing.stores.store import Store
from lastiterate.common.types import Fields, JsonObject
from lastiterate.compare_analyses import guarantee_of
from lastiterate.formatting import describe, printable, spell_down, spell_exact, spell_up
from lastiterate.plot.style import colour_of, dash_of, verdict_colour
from lastiterate.registry import ANALYSES, METHODS, OWN_COIN


def summary(path: str) -> Fields:
    """Return an entry of the list of audits."""
    with Store.read(Path(path), repairs=False) as store:
        fields = _begun(store)
        evidence = evidence_in(store) if store.crafted is not None else None
    if evidence is not None and _has_both(evidence):
        fields |= _judged(report(evidence, Question()))
    return fields


def detail(path: str, name: str, width: int) -> Fields:
    """Return the page of one audit: pieces of HTML, and charts of this width."""
    from lastiterate.plot.audit_charts import page_charts
    from lastiterate.plot.page import parts_of

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
    """Return the one-page summary, to be signed, as HTML."""
    from lastiterate.auditing.load_evidence import card_of
    from lastiterate.plot.summary import summary_page

    with Store.read(Path(path), repairs=False) as store:
        return {"html": summary_page(card_of(store, report(evidence_in(store), Question())))}


def _begun(store: Store) -> Fields:
    """Return the fields of an audit that are known before its first score."""
    record, trials = store.record, store.scores()
    crafted = store.crafted
    created = record.setup.get("created")
    return {
        "data": printable(record.data) or "your trainer",
        "run": describe(record.run),
        "attack": printable(crafted["words"]["attack"]) if crafted else "the canary is being crafted",
        "done": len(trials),
        "read": monotonic(),  # a page asks for the list and for one audit, and shows the newer answer
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
    """Return whether each world has a score that counts."""
    try:
        evidence.worlds("anytime" if isinstance(evidence.design, OpenEnded) else "fixed")
    except ValueError:
        return False
    return True


# Looks: colours and dashes of analyses, as in all charts, with lighter colours for dark mode.

# Okabe and Ito's sky blue and similar colours, whose contrast with black is like that of the originals with white.
IN_THE_DARK = {
    "#0072B2": "#56B4E9",
    "#D55E00": "#F08A48",
    "#009E73": "#3CC79C",
    "#CC79A7": "#E0A3C4",
    "#222222": "#E4E4E4",
}


def looks() -> JsonObject:
    """Return the colour, the dark-mode colour and the dash of each analysis, by label."""
    return {
        each.label: {
            "light": colour_of(each.label),
            "dark": IN_THE_DARK.get(colour_of(each.label), colour_of(each.label)),
            "dash": dash_of(each.label),
        }
        for each in ANALYSES.values()
    }
