"""What ``audit`` and ``report`` print and draw."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lastiterate.auditing.evidence.audit_comparison import comparison_table
from lastiterate.auditing.evidence.audit_result import result_table, verdict_sentence
from lastiterate.cli.output import Beside, audit_files, pictures, print_json, print_whole, tracker, write_beside
from lastiterate.compare_analyses import answer_fields, run_fields
from lastiterate.plot.chart_file import missing_libraries
from lastiterate.plot.style import verdict_colour
from lastiterate.privacy.convex.distances import Contraction

if TYPE_CHECKING:
    from rich.text import Text

    from lastiterate.auditing.evidence.audit_comparison import ComparedAudit
    from lastiterate.auditing.evidence.audit_result import AuditResult, Step
    from lastiterate.auditing.evidence.estimate import Estimate
    from lastiterate.auditing.evidence.estimates import Question
    from lastiterate.auditing.evidence.verdict_strength import Strength
    from lastiterate.common.types import JsonObject

REFUTED, INCONCLUSIVE = 1, 4  # exit statuses


def finish(
    result: AuditResult,
    question: Question,
    output: Path | None,
    strict: bool,
    json: bool,
    name: str = "",
    also: Sequence[Beside] = (),
) -> int:
    """Print, then draw, and say with which status to exit: a verdict's goes before that of a picture that failed.

    With JSON, pictures are drawn only into a folder given. ``also`` is written first.
    """
    folder = output or (None if json or result.store is None else result.store.parent)
    if folder and not output and not os.access(folder, os.W_OK):
        folder = None  # the store was only read; --output says where else to draw
    undrawn = missing_libraries() if folder else None  # a report without pictures is still one
    if json:
        given = question.contraction
        told: JsonObject = (
            {} if given is None else {"contraction": given.value if isinstance(given, Contraction) else given}
        )
        print_json({**result_fields(result), **told})
    else:
        table = result_table(result)
        remarks = [f"No page and no picture: {undrawn}"] if undrawn else []
        notes = [verdict_note(result.verdict, result.reason), *table.notes[1:], *remarks]
        print_whole(replace(table, notes=notes))
    drawn = _drawings(result, audit_files(result.store, folder, name)) if folder and not undrawn else []
    written = write_beside([*also, *drawn], quiet=json, track=tracker("drawing"))
    return status_of(result.verdict, question.has_claim, strict) or written


def status_of(verdict: str, claimed: bool, strict: bool) -> int:
    """With which status a verdict ends a command; ``claimed``: somebody asked for a claim to be judged."""
    match verdict:
        case "violation":
            return REFUTED
        case "above heuristic" if strict:
            return REFUTED
        case "inconclusive" if claimed or strict:
            return INCONCLUSIVE
    return 0


def verdict_note(verdict: str, reason: str) -> Text:
    """The verdict, on a terminal in its colour."""
    from rich.text import Text

    before, after = verdict_sentence(verdict, reason).split(verdict, 1)
    return Text.assemble(before, (verdict, f"bold {verdict_colour(verdict)}"), after)


def _drawings(result: AuditResult, files: Sequence[Path]) -> list[Beside]:
    """The picture, and the page."""

    def draw(file: Path) -> None:
        from lastiterate.plot.audit_charts import audit_chart
        from lastiterate.plot.chart_file import save
        from lastiterate.plot.page import write_page

        if file.suffix == ".html":
            write_page(result, file)
        else:
            save(audit_chart(result), file)

    return [Beside(file, draw, "Page" if file.suffix == ".html" else "Picture") for file in files]


def result_fields(result: AuditResult) -> JsonObject:
    """A result as JSON."""
    fields: JsonObject = {
        **run_fields(result.run),
        "delta": result.delta,
        **answer_fields(result.predictions, result.run),
    }
    finite = {name: value if math.isfinite(value) else None for name, value in result.empirical.items()}
    fields["empirical"] = finite
    fields |= {f"empirical_{name}_reason": _INFINITE["epsilon"] for name, value in finite.items() if value is None}
    fields["confidence"] = result.confidence
    fields["models"] = result.models
    fields["accuracy"] = result.accuracy
    if result.accuracy is None:
        fields["accuracy_reason"] = "not measured"
    if result.perplexity is not None:
        fields |= {"perplexity": result.perplexity, "perplexity_before": result.perplexity_before}
    fields["store"] = None if result.store is None else str(result.store)
    fields["seconds"] = result.seconds
    fields |= {"verdict": result.verdict, "reason": result.reason, "strength": strength_fields(result.strength)}
    fields |= {"signal": result.signal, "ideal_signal": result.ideal_signal}
    if result.ideal_signal is None:
        fields["ideal_signal_reason"] = "the linear analysis does not predict this attack's scores"
    fields |= {"attack": result.attack, "data": result.data, "caveats": list(result.caveats)}
    if (moment := result.second_moment) is not None:
        shares = {"noise_share": moment.noise_share, "busy_noise_share": moment.busy_noise_share}
        fields["second_moment"] = {**shares, "growth": moment.growth, **moment.fields()}
    seen = {method: value if math.isfinite(value) else None for method, value in result.detectable.items()}
    fields["detectable"] = seen
    fields |= {f"detectable_{method}_reason": _INFINITE["largest"] for method, value in seen.items() if value is None}
    fields["waterfall"] = [_step_fields(step) for step in result.waterfall]
    fields["estimates"] = [estimate_fields(estimate) for estimate in result.estimates.values()]
    return fields


def strength_fields(strength: Strength) -> JsonObject:
    """The strength of a verdict as JSON."""
    fields: JsonObject = asdict(strength)
    absent = {"signal": "no signal is seen", "caught": "no such fault would be caught", "needed": strength.why_not}
    return fields | {f"{name}_reason": reason for name, reason in absent.items() if fields[name] is None}


def _step_fields(step: Step) -> JsonObject:
    """A level of the waterfall as JSON."""
    if math.isfinite(step.epsilon):
        return {"name": step.name, "epsilon": step.epsilon, "words": step.words}
    return {"name": step.name, "epsilon": None, "epsilon_reason": _INFINITE["epsilon"], "words": step.words}


_INFINITE = {
    "epsilon": "infinite: these error rates are below what the family reaches even without noise",
    "largest": "infinite: without a single error, the rates would be below what the family reaches without noise",
    "noise_multiplier": "infinite: guessing explains these error rates",
    "fpr_upper": "one run bounds the number of right guesses, not the two rates",
    "fnr_upper": "one run bounds the number of right guesses, not the two rates",
    "threshold": "infinite",
}
_ABSENT = {
    "largest": "not computed for this family",
    "noise_multiplier": "this method assumes no noise",
}
_OF_GUESSES = ("guesses", "guessed")  # which only some methods of one run have


def estimate_fields(estimate: Estimate) -> JsonObject:
    """An estimate as JSON; what has no finite value is null, with the reason beside it."""
    fields: JsonObject = {}
    for name, value in asdict(estimate).items():
        if name in _OF_GUESSES and value is None:
            continue
        fields[name] = value
        if value is None:
            fields[f"{name}_reason"] = _ABSENT[name]
        elif isinstance(value, float) and not math.isfinite(value):
            fields[name], fields[f"{name}_reason"] = None, _INFINITE[name]
    return fields


# What ``report`` prints and draws of several stores.

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
    from lastiterate.plot.epsilons import comparison_chart

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


def _fields(audit: ComparedAudit) -> JsonObject:
    """An audit as JSON: all that a report of it alone has, and how it compares."""
    about: JsonObject = {"name": audit.name, "differs": list(audit.differs), "validity": audit.validity}
    return about | result_fields(audit.result)
