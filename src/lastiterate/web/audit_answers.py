"""Contents of the pages of audits: list entry, detail page, summary page, and colours of analyses.

The functions run in worker processes and only read the stores.
"""

from dataclasses import asdict
from pathlib import Path
from time import monotonic

from lastiterate.auditing.design import OpenEnded
from lastiterate.auditing.evidence.audit_result import AuditResult, three_numbers
from lastiterate.auditing.evidence.estimates import Question
from lastiterate.auditing.evidence.report import Evidence, growth_of, report
from lastiterate.auditing.load_evidence import evidence_in
from lastiterate.auditing.stores.audit_record import ABOUT
from lastiterate.auditing.stores.store import Store
from lastiterate.common.types import Fields, JsonObject
from lastiterate.formatting import describe, printable, spell_exact
from lastiterate.labels import ANALYSES
from lastiterate.plot.style import ATTACK, BASELINE, GUARANTEE, PREDICTION, colour_of, dash_of, verdict_colour


def summary(path: str) -> Fields:
    """Return an entry of the list of audits."""
    fields, evidence = _read(path)
    return fields if evidence is None else fields | _judged(report(evidence, Question()))


def detail(path: str, name: str, width: int) -> Fields:
    """Return the page of one audit: pieces of HTML, and charts of this width."""
    from lastiterate.plot.audit_charts import page_charts
    from lastiterate.plot.page import FIRST, parts_of

    fields, evidence = _read(path)
    if evidence is None:
        return fields | {"waits": "There are no scores of both worlds yet."}
    question = Question()
    result = report(evidence, question)
    charts = page_charts(result, width, growth_of(evidence, question))
    figures = [{"name": each, "is_first": each in FIRST, **vars(chart)} for each, chart in charts.items()]
    return fields | parts_of(result) | {"figures": figures} | _judged(result) | {"name": name}


def one_page(path: str) -> Fields:
    """Return the one-page summary for the signer, as HTML."""
    from lastiterate.auditing.load_evidence import card_of
    from lastiterate.plot.summary import summary_page

    with Store.read(Path(path), repairs=False) as store:
        return {"html": summary_page(card_of(store, report(evidence_in(store), Question())))}


def _read(path: str) -> tuple[Fields, Evidence | None]:
    with Store.read(Path(path), repairs=False) as store:
        fields = _begun(store)
        evidence = evidence_in(store) if store.crafted is not None else None
    try:
        if evidence is not None:
            evidence.worlds("anytime" if isinstance(evidence.design, OpenEnded) else "fixed")
    except ValueError:
        return fields, None
    return fields, evidence


def _begun(store: Store) -> Fields:
    record, trials = store.record, store.scores()
    about = {name: record.about.get(name, "") for name in ABOUT}
    crafted = store.crafted
    created = record.setup.get("created")
    return {
        "title": about.pop("name"),
        **about,
        "data": printable(record.data) or "your trainer",
        "run": describe(record.run),
        "attack": printable(crafted["words"]["attack"]) if crafted else "the canary is being crafted",
        "done": len(trials),
        "read": monotonic(),  # a page receives these fields in two ways, and shows the newest
        "planned": record.design.trials,
        "is_open": isinstance(record.design, OpenEnded),
        "trial_seconds": float(trials.seconds.mean()) if len(trials) else 0.0,
        "chunk": int(crafted["chunk_size"]) if crafted else 1,
        "created": printable(created) if isinstance(created, str) else "",
        "verdict": None,
    }


def _judged(result: AuditResult) -> Fields:
    return {
        "verdict": result.verdict,
        "headline": result.headline,
        "reason": printable(result.reason),
        "colour": verdict_colour(result.verdict),
        "caught": result.strength.caught or 0.0,
        "strength": result.strength.words,
        "numbers": [
            {**asdict(each), "title": each.title, "words": printable(each.words)} for each in three_numbers(result)
        ],
        "delta": spell_exact(result.delta),
    }


# Colours and dashes of analyses, as in all charts, with lighter colours for dark mode.

# Their contrast with black is like that of the light mode with white.
IN_THE_DARK = {GUARANTEE: "#56B4E9", PREDICTION: "#F07FA8", ATTACK: "#E4E4E4", BASELINE: "#A0A0A0"}


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
