"""``lastiterate reproduce``: a figure or table of the paper, recomputed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastiterate.cli import values
from lastiterate.cli.options import Json, option
from lastiterate.cli.unfold import unfold
from lastiterate.reproduce import NAMES

if TYPE_CHECKING:
    from lastiterate.plot.style import Row

Name = Annotated[
    str, typer.Argument(metavar="NAME", help=f"What to reproduce: {', '.join(NAMES)}.", show_default=False)
]
Scale = Annotated[
    Any,
    option("--scale", values.one_of("quick", "full"), "quick|full", "Fewer points (default), or all of them."),
]
Output = Annotated[
    Path | None,
    option(
        "--output", None, "FOLDER|FILE", "Folder for NAME.png and NAME.html (default: the current one), or one file."
    ),
]


@unfold
def reproduce(name: Name, scale: Scale = "quick", output: Output = None, json: Json = False) -> None:
    """Recompute a figure of the paper.

    \b
    Example:
      lastiterate reproduce figure1 --scale quick --output pictures
    """
    from lastiterate.cli.output import print_json, print_rows
    from lastiterate.cli.progress import tracker
    from lastiterate.reproduce import find

    found = find(name)
    files = [] if json and output is None else _files(name, output or Path())
    rows = found.rows(scale, tracker(name))
    if files:
        from lastiterate.plot.file import save

        chart = found.chart(rows)
        for file in files:
            save(chart, file)
    if json:
        print_json({"name": name, "rows": rows})
        return
    notes = ["Last iterate is a heuristic: it predicts, it does not guarantee. --json prints every row."]
    print_rows(found.TITLE, _few(rows), notes + [f"Picture: {file}" for file in files])


def _files(name: str, output: Path) -> list[Path]:
    """The files to draw, checked; a folder is made if it does not exist."""
    from lastiterate.plot.file import check_target

    if output.suffix and not output.is_dir():
        files = [output]  # whose ending is checked below
    else:
        if not output.parent.is_dir():
            raise ValueError(
                f"--output must be a folder, or a new one within a folder that exists, got {str(output)!r}"
            )
        output.mkdir(exist_ok=True)
        files = [output / f"{name}.{kind}" for kind in ("png", "html")]
    for file in files:
        check_target(file)
    return files


def _few(rows: "list[Row]") -> "list[Row]":
    """The first, middle and last row of each panel: enough to see where its curves go."""
    panels: dict[str, list[Row]] = {}
    for row in rows:
        panels.setdefault(row.get("panel", ""), []).append(row)
    return [panel[i] for panel in panels.values() for i in sorted({0, len(panel) // 2, len(panel) - 1})]
