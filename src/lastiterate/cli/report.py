"""The command ``lastiterate report``: evaluate the stored scores of audits again, without training."""

from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastiterate.cli.audit_options import Output, QuestionOptions, Strict
from lastiterate.cli.exit_status import OptionError
from lastiterate.cli.option_values import unfold
from lastiterate.cli.options import Json, option

if TYPE_CHECKING:
    from lastiterate.auditing.evidence.estimates import Question

StoresArgument = Annotated[
    list[Path], typer.Argument(metavar="STORE...", help="The audit's file, or several to compare.", show_default=False)
]
Export = Annotated[
    Path | None, option("--export", None, "FILE.csv|FILE.parquet", "Also write every trial's score into a file.")
]

Summary = Annotated[
    Path | None,
    option("--summary", None, "FILE.html|FILE.md", "Also write one page to sign, and a .json that says the same."),
]


@unfold
def report(
    stores: StoresArgument,
    question: QuestionOptions,
    output: Output = None,
    export: Export = None,
    summary: Summary = None,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """Report on a stored audit, or compare several.

    Other methods, confidences, deltas and claims need no training. The audit may still be running.

    \b
    Exit status 1: the claim about the training is refuted. 4: the scores cannot tell (with a claim, or --strict).
    Of several audits it is the worst: 1 before 4, 4 before 0.

    \b
    Example:
      lastiterate report runs/quiet.sqlite runs/mislabelled.sqlite
      lastiterate report runs/x.sqlite --method clopper-pearson,gdp --confidence 0.99 --export scores.csv
    """
    from lastiterate.cli.output import check_page

    asked = question.question()
    check_page(output)
    if len(stores) == 1:
        raise typer.Exit(_one(stores[0], asked, output, export, summary, strict, json))
    for name, given in (("--export", export), ("--summary", summary)):
        if given is not None:
            raise OptionError(f"{name} must be of one store, got {len(stores)} of them: report each by itself")
    raise typer.Exit(_several(stores, asked, output, strict, json))


def _one(
    store: Path,
    question: "Question",
    output: Path | None,
    export: Path | None,
    summary: Path | None,
    strict: bool,
    json: bool,
) -> int:
    from lastiterate.auditing import load_evidence as files
    from lastiterate.auditing.evidence.report import report as ask
    from lastiterate.auditing.load_evidence import card_of, evidence_in
    from lastiterate.auditing.stores.store import Store
    from lastiterate.cli.audit_output import finish
    from lastiterate.cli.output import Beside, audit_files, check_apart, store_files, tracker
    from lastiterate.plot.summary import check_summary, write_summary

    exported = [] if export is None else [files.check_target(export)]
    summarised = [] if summary is None else check_summary(summary)
    pictures = audit_files(store, output or store.parent, "-report")
    written = {"--export": exported, "--summary": summarised, "the pictures": pictures}
    check_apart(written, {"STORE": store_files(store)})
    with Store.read(store) as kept:
        (result,) = [ask(evidence_in(each), question) for each in tracker("analysing")([kept])]
        also = [Beside(file, partial(files.export, kept), "Trials") for file in exported]
        also += [
            Beside(file, lambda path: write_summary(card_of(kept, result), path), "Summary") for file in summarised[:1]
        ]
        return finish(result, question, output, strict, json, "-report", also)


def _several(stores: list[Path], question: "Question", output: Path | None, strict: bool, json: bool) -> int:
    from lastiterate.auditing.evidence.audit_comparison import compared
    from lastiterate.auditing.load_evidence import read_with_problem
    from lastiterate.cli.audit_output import SUFFIX, finish_comparison, names_of
    from lastiterate.cli.output import audit_files, check_apart, store_files, tracker
    from lastiterate.common.atomic_write import is_same_file

    for one, other in combinations(stores, 2):
        if is_same_file(one, other):
            raise OptionError(f"STORE must be different files, got {str(one)!r} and {str(other)!r}")
    pictures = audit_files(stores[0], output or stores[0].parent, SUFFIX)
    read = {f"STORE {str(store)!r}": store_files(store) for store in stores}
    check_apart({"the pictures": pictures}, read)
    found = [read_with_problem(store, question) for store in tracker("analysing")(stores)]
    audits = compared([(name, *each) for name, each in zip(names_of(stores), found, strict=True)])
    return finish_comparison(audits, question, stores[0], output, strict, json)
