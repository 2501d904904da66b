"""Where commands that always draw put their pictures: a PNG and an interactive page, or the one file asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lastiterate.plot.style import Picture


def picture_files(name: str, output: Path) -> list[Path]:
    """The files to draw, checked, so that nobody waits in vain; nothing is made yet, not even a new folder."""
    from lastiterate.plot.file import check_target

    if output.suffix and not output.is_dir():
        check_target(output)
        return [output]
    files = [f"{name}.{kind}" for kind in ("png", "html")]
    check_folder(output, files)
    return [output / file for file in files]


def check_folder(folder: Path, files: Sequence[str]) -> None:
    """Refuse a folder in which files of these names could not be drawn later; a new one is not made yet."""
    from lastiterate.plot.file import check_target

    if not folder.is_dir() and (folder.exists() or folder.is_symlink() or not folder.parent.is_dir()):
        raise ValueError(f"--output must be a folder, or a new one within a folder that exists, got {str(folder)!r}")
    for file in files:
        check_target((folder if folder.is_dir() else folder.parent) / file)


def check_page(folder: Path | None) -> None:
    """The same for the page of an audit, if there is to be one."""
    if folder is not None:
        check_folder(folder, ["audit.html"])


def draw(chart: Picture, files: list[Path]) -> None:
    """Draw an altair chart into each of the files."""
    from lastiterate.plot.file import save

    for file in files:
        file.parent.mkdir(exist_ok=True)
        save(chart, file)
