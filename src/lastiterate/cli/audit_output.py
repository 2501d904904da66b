"""Output of ``audit`` and ``report``: tables, JSON, pictures and exit statuses, for one audit or several."""

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
    """Print the result, draw the pictures, and return the exit status.

    The status of the verdict takes precedence over that of a failed picture. With JSON, pictures are drawn only if
    ``output`` is given. The files of ``also`` are written first.
    """
    folder = output or (None if json or result.store is None else result.store.parent)
    if folder and not output and not os.access(folder, os.W_OK):
        folder = None  # a read-only folder of a store: without --output, draw nothing
    undrawn = missing_libraries() if folder else None  # without the plot libraries, print without pictures
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
    """Return the exit status of a verdict. ``claimed`` is True if a claim was given."""
    match verdict:
        case "violation":
            return REFUTED
        case "above heuristic" if strict:
            return REFUTED
        case "inconclusive" if claimed or strict:
            return INCONCLUSIVE
    return 0


def verdict_note(verdict: str, reason: str) -> Text:
    """Return the sentence of the verdict, in colour on a terminal."""
    from rich.text import Text

    before, after = verdict_sentence(verdict, reason).split(verdict, 1)
    return Text.assemble(before, (verdict, f"bold {verdict_colour(verdict)}"), after)


def _drawings(result: AuditResult, files: Sequence[Path]) -> list[Beside]:
    """Return the picture and the page as files to write."""

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
    """Return a result as JSON."""
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
    """Return the strength of a verdict as JSON."""
    fields: JsonObject = asdict(strength)
    absent = {"signal": "no signal is seen", "caught": "no such fault would be caught", "needed": strength.why_not}
    return fields | {f"{name}_reason": reason for name, reason in absent.items() if fields[name] is None}


def _step_fields(step: Step) -> JsonObject:
    """Return a level of the waterfall as JSON."""
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
_OF_GUESSES = ("guesses", "guessed")  # fields of some one-run methods only


def estimate_fields(estimate: Estimate) -> JsonObject:
    """Return an estimate as JSON. Values that are not finite are null, with a reason."""
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


# Comparison: output of ``report`` for several stores.

SUFFIX = "-compared"  # of the pictures' names, after the name of the first store

_FROM_BEST_TO_WORST = (0, INCONCLUSIVE, REFUTED)


def names_of(stores: Sequence[Path]) -> list[str]:
    """Return display names of the stores: file names, or whole paths if file names are not unique."""
    stems = [store.stem for store in stores]
    return stems if len(set(stems)) == len(stems) else [str(store) for store in stores]


def finish_comparison(
    audits: Sequence[ComparedAudit], question: Question, store: Path, output: Path | None, strict: bool, json: bool
) -> int:
    """Print, draw, and return the worst status of the verdicts; without one, the status of the pictures."""
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
    """Return an audit as JSON: how it compares, and all fields of its own report."""
    about: JsonObject = {"name": audit.name, "differs": list(audit.differs), "validity": audit.validity}
    return about | result_fields(audit.result)
