"""Where commands that always draw put their pictures: a PNG and an interactive page, or the one file asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def picture_files(name: str, output: Path) -> list[Path]:
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


def draw(chart: Any, files: list[Path]) -> None:
    """Draw an altair chart into each of the files."""
    from lastiterate.plot.file import save

    for file in files:
        save(chart, file)
