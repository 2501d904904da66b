"""The command ``lastiterate reproduce``: recompute a figure or table of the paper."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastiterate.cli import output as out
from lastiterate.cli.app import OptionError
from lastiterate.cli.audit_options import EngineOptions, resumable
from lastiterate.cli.options import Json, Option, unfold
from lastiterate.common.types import JsonObject, Row, number_in, text_in
from lastiterate.paper.reproduce import NAMES, ON_FEATURES, Reproduction, Scale, find

if TYPE_CHECKING:
    from lastiterate.paper.reproduce.audited_figures import Audits

STORE = Path("runs") / "reproduce"


@unfold
def reproduce(
    engine: EngineOptions,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help=f"What to reproduce: {', '.join(NAMES)}, or all.", show_default=False)
    ],
    scale: Annotated[
        Scale, "Small (default), as large as in the paper, or linear probes on features of CIFAR-10."
    ] = "quick",
    data: Annotated[
        str | None,
        Option("Data to train on (default: the embedded digits; --scale full: CIFAR-10's folder).", "PATH"),
    ] = None,
    features: Annotated[
        str | None,
        Option("Features for --scale cifar10-features, as examples/make_features.py makes them.", "FILE.npz"),
    ] = None,
    model: Annotated[
        str | None, Option("table1: a language model (--scale full: default google/gemma-2-2b).", "PATH_OR_NAME")
    ] = None,
    text: Annotated[Path | None, Option("table1: the dialogues for fine-tuning.", "FILE")] = None,
    models: Annotated[int | None, "Models per world (default: 256, in full 512; table1: 128)."] = None,
    store: Annotated[
        Path | None, Option(f"Folder for every score, for resuming (default: {STORE.as_posix()}).", "FOLDER")
    ] = None,
    output: Annotated[
        Path | None,
        Option("Folder for NAME.png and NAME.html (default: the current one), or one file.", "FOLDER|FILE"),
    ] = None,
    dry_run: Annotated[bool, "Only print the number of models and the time that the audits need."] = False,
    json: Json = False,
) -> None:
    """Recompute a figure or table of the paper.

    Figures that train models take minutes. A stopped command resumes if it is given again. "all" leaves out table1
    unless --text is given.

    \b
    Example:
      lastiterate reproduce figure1 --scale quick --output pictures
      lastiterate reproduce figure2 --models 1024
      lastiterate reproduce table1 --model stories260k --text personachat.jsonl
      lastiterate reproduce table2 --scale cifar10-features --features cifar10_features.npz --dry-run
      lastiterate reproduce table2 --scale full --data cifar-10-batches-py --engine ray --gpus 1
    """
    from lastiterate.paper.reproduce.audited_figures import Audits

    if (features is not None) != (scale == "cifar10-features"):
        raise OptionError("--features FILE.npz and --scale cifar10-features must be given together")
    if features is not None:
        if name not in ON_FEATURES:
            raise OptionError(f"--scale cifar10-features applies to {', '.join(ON_FEATURES)}, got {name}")
        if data is not None:
            raise OptionError(f"--data must not be given with --features, got {data!r}")
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
            takes = "--model belongs to table1, with --text"
            if name in wanted:
                own = ", ".join(f"--{each}" for each in wanted[name].TAKES)
                takes = f"it takes {own or 'no options of audits'}"
            raise OptionError(f"--{key} does not apply to {name}: {takes}")
    if text is not None and model is None and scale == "quick":
        raise OptionError("--model must be given with --text: a small language model for table1, folder or name")
    files = {each: [] if json and output is None else out.picture_files(each, output or Path()) for each in wanted}
    if len({file for drawn in files.values() for file in drawn}) < sum(map(len, files.values())):
        raise OptionError(f"--output must be a folder for all figures, got the file {str(output)!r}")
    drawn = [file for of_one in files.values() for file in of_one]
    read = {"--data": out.given_files(features or data), "--model": out.given_files(model)}
    read["--text"] = out.given_files(text)
    out.check_apart({"--output": drawn, "--store": out.store_files(store or STORE)}, read)
    audits = Audits(features or data, model, text, store or STORE, models, engine.find())
    if dry_run:
        trained = {each: found for each, found in wanted.items() if {"data", "text"} & set(found.TAKES)}
        _rehearse(trained, scale, audits, json)
        return
    results: list[JsonObject] = []
    beside: list[out.Beside] = []
    status = 0
    for each, found in wanted.items():
        rows = _rows(found, each, scale, audits)
        results.append({"name": each, "rows": rows})
        beside += out.pictures(partial(found.chart, rows), files[each])
        if not json:
            out.print_rows(found.TITLE, _few(rows), found.notes(rows))
            status = out.write_beside(beside, quiet=False, has_notes=bool(found.notes(rows))) or status
            beside.clear()
    if json:
        out.print_json({"name": "all", "results": results} if name == "all" else results[0])
    raise typer.Exit(out.write_beside(beside, quiet=True) or status)


def _rehearse(wanted: dict[str, Reproduction], scale: Scale, audits: Audits, json: bool) -> None:
    """Print how many models the audits of these figures train, and about how long that takes here."""
    if not wanted:
        raise OptionError("--dry-run applies to figures and tables that train models")
    audits = replace(audits, is_rehearsal=True)
    with out.talk_on_stderr():
        rows: list[Row] = []
        for each, found in wanted.items():
            rows += [{"name": each, **row} for row in found.rows(scale, out.tracker(each), audits)]
    if json:
        out.print_json({"name": "dry run", "rows": rows})
        return
    for each, found in wanted.items():
        out.print_rows(found.TITLE, [row for row in rows if row["name"] == each])
    minutes = sum(number_in(row, "seconds") for row in rows) / 60
    out.print_note(f"about {minutes:,.0f} minutes here. Dry run: nothing was trained to the end or saved.")


def _rows(found: Reproduction, name: str, scale: Scale, audits: Audits) -> list[Row]:
    if "store" not in found.TAKES:
        return found.rows(scale, out.tracker(name), audits)
    with resumable(audits.store or STORE):
        return found.rows(scale, out.announcer(name), audits)


def _few(rows: list[Row]) -> list[Row]:
    """Return the rows to print: all rows of audits, but only the first, middle and last row of each curve panel."""
    panels: dict[str, list[Row]] = {}
    for row in rows:
        if "panel" not in row:
            return rows
        panels.setdefault(text_in(row, "panel"), []).append(row)
    return [panel[i] for panel in panels.values() for i in sorted({0, len(panel) // 2, len(panel) - 1})]
