"""The command ``lastiterate report``, and the output of audits: tables, JSON, pictures and exit statuses."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastiterate.auditing import load_evidence
from lastiterate.auditing.evidence.audit_comparison import compared, comparison_table
from lastiterate.auditing.evidence.audit_result import AuditResult, advice_on, result_table, short_text
from lastiterate.auditing.evidence.report import report as evaluate
from lastiterate.auditing.stores.audit_record import ABOUT
from lastiterate.auditing.stores.store import Store
from lastiterate.cli import output as out
from lastiterate.cli.app import INCONCLUSIVE, REFUTED, OptionError
from lastiterate.cli.audit_options import Details, Output, QuestionOptions, Strict
from lastiterate.cli.options import Json, Option, unfold
from lastiterate.common.atomic_write import is_same_file
from lastiterate.common.types import with_reasons
from lastiterate.compare_analyses import answer_fields, run_fields
from lastiterate.formatting import shown
from lastiterate.plot.chart_file import missing_libraries
from lastiterate.plot.style import verdict_colour
from lastiterate.plot.summary import check_summary, write_summary
from lastiterate.privacy.convex.distances import Contraction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from lastiterate.auditing.evidence.estimate import Estimate
    from lastiterate.auditing.evidence.estimates import Question
    from lastiterate.auditing.evidence.verdict_strength import Strength
    from lastiterate.common.types import JsonObject

_SUFFIX = "-compared"  # pictures of a comparison are named after the first store, with this suffix


@unfold
def report(
    stores: Annotated[
        list[Path],
        typer.Argument(metavar="STORE...", help="The audit's file, or several to compare.", show_default=False),
    ],
    question: QuestionOptions,
    output: Output = None,
    export: Annotated[Path | None, Option("Also write every trial's score to a file.", "FILE.csv|FILE.parquet")] = None,
    summary: Annotated[
        Path | None, Option("Also write a one-page summary to sign, and the same facts as .json.", "FILE.html|FILE.md")
    ] = None,
    strict: Strict = False,
    details: Details = False,
    json: Json = False,
) -> None:
    """Report on a stored audit, or compare several.

    Another method, confidence, delta or claim needs no new training. The audit may still be running.

    \b Exit status 1: the claim is refuted. 4: the verdict is inconclusive (with a claim, or --strict). With several
    audits, it is the worst status: 1 before 4, 4 before 0.

    \b
    Example:
      lastiterate report runs/quiet.sqlite runs/mislabelled.sqlite
      lastiterate report runs/x.sqlite --method clopper-pearson,gdp --confidence 0.99 --export scores.csv
    """
    asked = question.question()
    out.check_page(output)
    if len(stores) == 1:
        raise typer.Exit(_one(stores[0], asked, output, export, summary, strict, json, details))
    for name, given in (("--export", export), ("--summary", summary)):
        if given is not None:
            raise OptionError(f"{name} must be given with one store, got {len(stores)} stores: report each by itself")
    raise typer.Exit(_several(stores, asked, output, strict, json, details))


def _one(
    store: Path,
    question: Question,
    output: Path | None,
    export: Path | None,
    summary: Path | None,
    strict: bool,
    json: bool,
    details: bool,
) -> int:
    exported = [] if export is None else [load_evidence.check_target(export)]
    summarised = [] if summary is None else check_summary(summary)
    drawn = out.audit_files(store, output or store.parent, "-report")
    written = {"--export": exported, "--summary": summarised, "the pictures": drawn}
    out.check_apart(written, {"STORE": out.store_files(store)})
    with Store.read(store) as kept:
        (result,) = [evaluate(load_evidence.evidence_in(each), question) for each in out.tracker("analysing")([kept])]
        also = [out.Beside(file, partial(load_evidence.export, kept), "Trials") for file in exported]
        also += [
            out.Beside(file, lambda path: write_summary(load_evidence.card_of(kept, result), path), "Summary")
            for file in summarised[:1]
        ]
        return finish(result, question, output, strict, json, "-report", also, details=details)


def _several(
    stores: list[Path], question: Question, output: Path | None, strict: bool, json: bool, details: bool
) -> int:
    from lastiterate.plot.epsilons import comparison_chart

    for one, other in combinations(stores, 2):
        if is_same_file(one, other):
            raise OptionError(f"STORE must be different files, got {str(one)!r} and {str(other)!r}")
    first = stores[0]
    read = {f"STORE {str(store)!r}": out.store_files(store) for store in stores}
    out.check_apart({"the pictures": out.audit_files(first, output or first.parent, _SUFFIX)}, read)
    found = [load_evidence.read_with_problem(store, question) for store in out.tracker("analysing")(stores)]
    stems = [store.stem for store in stores]
    names = stems if len(set(stems)) == len(stems) else [str(store) for store in stores]
    audits = compared([(name, *each) for name, each in zip(names, found, strict=True)])
    folder = _picture_folder(output, first, json)
    undrawn = missing_libraries() if folder else None
    if json:
        rows = [
            {"name": audit.name, "differs": list(audit.differs), "validity": audit.validity}
            | result_fields(audit.result)
            for audit in audits
        ]
        out.print_json({"rows": rows})
    else:
        table = comparison_table(audits, details=details)
        out.print_table(replace(table, notes=[*table.notes, *([f"No picture: {undrawn}"] if undrawn else [])]))
    files = out.audit_files(first, folder, _SUFFIX) if folder and not undrawn else []
    written = out.write_beside(
        out.pictures(lambda: comparison_chart(audits), files), quiet=json, track=out.tracker("drawing")
    )
    statuses = [status_of(audit.result.verdict, question.has_claim, strict) for audit in audits]
    return max(statuses, key=(0, INCONCLUSIVE, REFUTED).index) or written


# Output of one audit, for all commands that audit.


def finish(
    result: AuditResult,
    question: Question,
    output: Path | None,
    strict: bool,
    json: bool,
    name: str = "",
    also: Sequence[out.Beside] = (),
    *,
    details: bool = False,
) -> int:
    """Print the result, in full with ``details``, write ``also`` and the pictures, and return the exit status.

    The exit status is that of the verdict. If the verdict's status is 0, a failed file gives ``BROKEN``.
    """
    folder = _picture_folder(output, result.store, json)
    undrawn = missing_libraries() if folder else None  # if plot libraries are missing, only print
    if json:
        fields, given = result_fields(result), question.contraction
        if given is not None:
            fields["contraction"] = given.value if isinstance(given, Contraction) else given
        out.print_json(fields)
    elif details:
        table = result_table(result)
        notes = [verdict_note(f"{result.headline} {result.reason}", result), *table.notes[1:]]
        out.print_table(replace(table, notes=[*notes, *([f"No page and no picture: {undrawn}"] if undrawn else [])]))
    drawn = _drawings(result, out.audit_files(result.store, folder, name)) if folder and not undrawn else []
    if not json and not details:
        files = [*([result.store] if result.store else []), *(each.file for each in [*also, *drawn])]
        more = f"No page and no picture: {undrawn}" if undrawn else "More: --details"
        lines = short_text(result, out.width(), out.listed(files, more))
        out.print_note(*(verdict_note(line, result) for line in lines))
    written = out.write_beside([*also, *drawn], quiet=json or not details, track=out.tracker("drawing"))
    return status_of(result.verdict, question.has_claim, strict) or written


def _picture_folder(output: Path | None, store: Path | None, json: bool) -> Path | None:
    """Return --output. The default is the store's folder, if it is writable. JSON output has no default."""
    usual = None if json or store is None or not os.access(store.parent, os.W_OK) else store.parent
    return output or usual


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


def verdict_note(text: str, judged: AuditResult) -> Text:
    """Return a line of text. If it begins with the verdict, the verdict is in colour on a terminal."""
    from rich.text import Text

    before, found, after = shown(text).partition(judged.headline)
    if before or not found:
        return Text(shown(text))
    return Text.assemble((found, f"bold {verdict_colour(judged.verdict)}"), after)


def _drawings(result: AuditResult, files: Sequence[Path]) -> list[out.Beside]:
    def draw(file: Path) -> None:
        from lastiterate.plot.audit_charts import audit_chart
        from lastiterate.plot.chart_file import save
        from lastiterate.plot.page import write_page

        if file.suffix == ".html":
            write_page(result, file)
        else:
            save(audit_chart(result), file)

    return [out.Beside(file, draw, "Page" if file.suffix == ".html" else "Picture") for file in files]


def result_fields(result: AuditResult) -> JsonObject:
    """Return a result as JSON."""
    fields: JsonObject = {
        **run_fields(result.run),
        **{key: text for key in ABOUT if (text := getattr(result, key))},
        "delta": result.delta,
        **answer_fields(result.predictions, result.run),
        **out.by_method("empirical", result.empirical, _INFINITE["epsilon"]),
        "confidence": result.confidence,
        "models": result.models,
        **with_reasons({"accuracy": result.accuracy}, {"accuracy": "not measured"}),
    }
    if result.perplexity is not None:
        fields |= {"perplexity": result.perplexity, "perplexity_before": result.perplexity_before}
    fields["store"] = None if result.store is None else str(result.store)
    fields["seconds"] = result.seconds
    fields |= {"verdict": result.verdict, "headline": result.headline, "reason": result.reason}
    fields |= {"advice": advice_on(result), "strength": strength_fields(result.strength)}
    fields["signal"] = result.signal
    unpredicted = {"ideal_signal": "the linear analysis does not predict this attack's scores"}
    fields |= with_reasons({"ideal_signal": result.ideal_signal}, unpredicted)
    fields |= {"attack": result.attack, "data": result.data, "caveats": list(result.caveats)}
    if (moment := result.second_moment) is not None:
        shares = {"noise_share": moment.noise_share, "busy_noise_share": moment.busy_noise_share}
        fields["second_moment"] = {**shares, "growth": moment.growth, **moment.fields()}
    fields |= out.by_method("detectable", result.detectable, _INFINITE["largest"])
    fields["waterfall"] = [
        with_reasons({"name": step.name, "epsilon": step.epsilon, "words": step.words}, _INFINITE)
        for step in result.waterfall
    ]
    fields["estimates"] = [estimate_fields(estimate) for estimate in result.estimates.values()]
    return fields


def strength_fields(strength: Strength) -> JsonObject:
    """Return the strength of a verdict as JSON."""
    absent = {
        "signal": "no signal was observed",
        "caught": "the audit cannot detect such a fault",
        "needed": strength.why_not,
    }
    fields = asdict(strength)
    missing = {name: fields[name] for name in absent if fields[name] is None}
    return fields | with_reasons(missing, absent)


_INFINITE = {
    "epsilon": "infinite: even without noise, the family has larger error rates than these",
    "largest": "infinite: even without noise, the family has larger error rates than an attack without errors",
    "noise_multiplier": "infinite: guessing explains these error rates",
    "fpr_upper": "one run bounds the number of right guesses, not the two rates",
    "fnr_upper": "one run bounds the number of right guesses, not the two rates",
    "threshold": "infinite",
}
_ABSENT = {
    "largest": "not computed for this family",
    "noise_multiplier": "this method assumes no noise",
}
_OF_GUESSES = ("guesses", "guessed")  # fields that only some one-run methods have


def estimate_fields(estimate: Estimate) -> JsonObject:
    """Return an estimate as JSON. Values that are not finite are null, with a reason."""
    fields = {name: value for name, value in asdict(estimate).items() if name not in _OF_GUESSES or value is not None}
    absent = {name: reason for name, reason in _ABSENT.items() if fields[name] is None}
    return with_reasons(fields, _INFINITE | absent)
