"""The command ``lastiterate reproduce``: recompute a figure or table of the paper."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from lastiterate.cli.audit_options import EngineOptions, resumable
from lastiterate.cli.exit_status import OptionError
from lastiterate.cli.option_values import unfold
from lastiterate.cli.options import Json, choice, integer_option, option
from lastiterate.cli.output import check_apart, given_files, store_files
from lastiterate.common.types import text_in
from lastiterate.paper.reproduce import NAMES, Scale

if TYPE_CHECKING:
    from lastiterate.cli.output import Beside
    from lastiterate.common.types import JsonObject, Row
    from lastiterate.paper.reproduce import Reproduction
    from lastiterate.paper.reproduce.audited_figures import Audits

STORE = Path("runs") / "reproduce"

Name = Annotated[
    str, typer.Argument(metavar="NAME", help=f"What to reproduce: {', '.join(NAMES)}, or all.", show_default=False)
]
ScaleName = Annotated[Scale, choice("--scale", get_args(Scale), "Small (default), or as large as in the paper.")]
Data = Annotated[
    str | None,
    option("--data", None, "PATH", "Data to train on (default: the embedded digits; --scale full: CIFAR-10's folder)."),
]
Model = Annotated[
    str | None,
    option("--model", None, "PATH_OR_NAME", "table1: a language model (--scale full: default google/gemma-2-2b)."),
]
Text = Annotated[Path | None, option("--text", None, "FILE", "table1: the dialogues that it is fine-tuned on.")]
StoreFolder = Annotated[
    Path | None,
    option("--store", None, "FOLDER", f"Keeps every score, for resuming (default: {STORE.as_posix()})."),
]
Models = Annotated[int | None, integer_option("--models", "Models a world (default: 256, in full 512; table1: 128).")]
Output = Annotated[
    Path | None,
    option(
        "--output", None, "FOLDER|FILE", "Folder for NAME.png and NAME.html (default: the current one), or one file."
    ),
]


@unfold
def reproduce(
    engine: EngineOptions,
    name: Name,
    scale: ScaleName = "quick",
    data: Data = None,
    model: Model = None,
    text: Text = None,
    models: Models = None,
    store: StoreFolder = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Recompute a figure or table of the paper.

    Those that train models take minutes. The same command again resumes where it was stopped. "all" is without table1
    unless --text is given.

    \b
    Example:
      lastiterate reproduce figure1 --scale quick --output pictures
      lastiterate reproduce figure2 --models 1024
      lastiterate reproduce table1 --model stories260k --text personachat.jsonl
      lastiterate reproduce table2 --scale full --data cifar-10-batches-py --engine ray --gpus 1
    """
    from lastiterate.cli.output import picture_files, pictures, print_json, print_rows, write_beside
    from lastiterate.paper.reproduce import find
    from lastiterate.paper.reproduce.audited_figures import Audits

    names = tuple(each for each in NAMES if each != "table1" or text is not None) if name == "all" else (name,)
    wanted = {each: find(each) for each in names}
    given = {
        "data": data,
        "model": model,
        "text": text,
        "models": models,
        "store": store,
        "engine": None if engine == EngineOptions() else engine,
    }
    for key, value in given.items():
        if value is not None and not any(key in found.TAKES for found in wanted.values()):
            takes = "it takes " + _taken(wanted[name]) if name in wanted else "--model belongs to table1, with --text"
            raise OptionError(f"--{key} does not apply to {name}: {takes}")
    if text is not None and model is None and scale == "quick":
        raise OptionError("--model must be given with --text: a small language model for table1, folder or name")
    files = {each: [] if json and output is None else picture_files(each, output or Path()) for each in wanted}
    if len({file for drawn in files.values() for file in drawn}) < sum(map(len, files.values())):
        raise OptionError(f"--output must be a folder for all figures, got the file {str(output)!r}")
    drawn = [file for of_one in files.values() for file in of_one]
    read = {"--data": given_files(data), "--model": given_files(model), "--text": given_files(text)}
    check_apart({"--output": drawn, "--store": store_files(store or STORE)}, read)
    audits = Audits(data, model, text, store or STORE, models, engine.find())
    results: list[JsonObject] = []
    beside: list[Beside] = []
    status = 0
    for each, found in wanted.items():
        rows = _rows(found, each, scale, audits)
        results.append({"name": each, "rows": rows})
        beside += pictures(partial(found.chart, rows), files[each])
        if not json:
            print_rows(found.TITLE, _few(rows), found.notes(rows))
            status = write_beside(beside, quiet=False, has_notes=bool(found.notes(rows))) or status
            beside.clear()
    if json:
        print_json({"name": "all", "results": results} if name == "all" else results[0])
    raise typer.Exit(write_beside(beside, quiet=True) or status)


def _rows(found: "Reproduction", name: str, scale: Scale, audits: "Audits") -> "list[Row]":
    from lastiterate.cli.output import announcer, tracker

    if "store" not in found.TAKES:
        return found.rows(scale, tracker(name), audits)
    with resumable(audits.store or STORE):
        return found.rows(scale, announcer(name), audits)


def _taken(found: "Reproduction") -> str:
    return ", ".join(f"--{name}" for name in found.TAKES) or "none of the options of audits"


def _few(rows: "list[Row]") -> "list[Row]":
    """Return the rows to print: all rows of audits, or the first, middle and last row of each panel of curves."""
    panels: dict[str, list[Row]] = {}
    for row in rows:
        if "panel" not in row:
            return rows
        panels.setdefault(text_in(row, "panel"), []).append(row)
    return [panel[i] for panel in panels.values() for i in sorted({0, len(panel) // 2, len(panel) - 1})]
