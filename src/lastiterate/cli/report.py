"""``lastiterate report``: ask again of the scores that an audit has stored; nothing is trained."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from lastiterate.cli.audit_options import Output, QuestionOptions, Strict
from lastiterate.cli.options import Json, option
from lastiterate.cli.unfold import unfold

StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="The audit's file.", show_default=False)]
Export = Annotated[
    Path | None, option("--export", None, "FILE.csv|FILE.parquet", "Also write every trial's score into a file.")
]


@unfold
def report(
    store: StoreArgument,
    question: QuestionOptions,
    output: Output = None,
    export: Export = None,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """What an audit's stored scores say.

    Other methods, confidences, deltas and claims need no training. The audit may still be running.

    \b
    Exit status 1: the claim about the training is refuted. 4: the scores cannot tell (with a claim, or --strict).

    \b
    Example:
      lastiterate report runs/x.sqlite --method clopper-pearson,gdp --confidence 0.99 --export scores.csv
    """
    from lastiterate.auditing.evidence.report import report as ask
    from lastiterate.auditing.reading import evidence_in
    from lastiterate.auditing.stores import export as files
    from lastiterate.auditing.stores.store import Store
    from lastiterate.cli.audit_output import finish
    from lastiterate.cli.outputs import check_apart, store_files
    from lastiterate.cli.pictures import Beside, audit_files, check_page
    from lastiterate.cli.progress import tracker

    asked = question.question()
    check_page(output)
    exported = [] if export is None else [files.check_target(export)]
    pictures = audit_files(store, output or store.parent, "-report")
    check_apart({"--export": exported, "the pictures": pictures}, {"STORE": store_files(store)})
    with Store.read(store) as kept:
        (result,) = [ask(evidence_in(each), asked) for each in tracker("analysing")([kept])]
        also = [Beside(file, partial(files.export, kept), "Trials") for file in exported]
        raise typer.Exit(finish(result, asked, output, strict, json, "-report", also))
