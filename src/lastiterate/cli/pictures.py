"""Where commands put pictures, and how: after the table, which a picture that fails does not take away."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from lastiterate.cli.errors import BROKEN
from lastiterate.cli.output import print_note
from lastiterate.wording import printable

if TYPE_CHECKING:
    from lastiterate.plot.style import Picture
    from lastiterate.rows import Track


def picture_files(name: str, output: Path) -> list[Path]:
    """The files to draw, checked, so that nobody waits in vain; nothing is made yet, not even a new folder."""
    from lastiterate.plot.file import check_target

    if output.suffix and not output.is_dir():
        check_target(output)
        return [output]
    files = [f"{name}.{kind}" for kind in ("png", "html")]
    check_folder(output, files)
    return [output / file for file in files]


def audit_files(store: Path | None, folder: Path, name: str = "") -> list[Path]:
    """The picture and the page of an audit: their names are the store's, followed by ``name``."""
    stem = store.stem if store else "audit"
    return [folder / f"{stem}{name}.{kind}" for kind in ("png", "html")]


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


@dataclass(frozen=True)
class Beside:
    """A file that is written beside a table; ``label`` goes before its name where people are told of it."""

    file: Path
    write: Callable[[Path], None]
    label: str = "Picture"


def pictures(make: Callable[[], Picture], files: Sequence[Path]) -> list[Beside]:
    """An altair chart, which is made when the first of the files is drawn."""
    made = cache(make)

    def draw(file: Path) -> None:
        from lastiterate.plot.file import save

        save(made(), file)

    return [Beside(file, draw) for file in files]


def write_beside(files: Sequence[Beside], *, quiet: bool, has_notes: bool = True, track: Track = iter) -> int:
    """Write what belongs beside a table that is printed already, and give the status for where no verdict has one.

    What cannot be written is one sentence. With ``quiet``, as for JSON, what was written is not told; otherwise it
    stands under the table's notes, if it ``has_notes``.
    """
    failed: dict[str, list[str]] = {}
    for each in track(files):
        try:
            each.file.parent.mkdir(exist_ok=True)
            each.write(each.file)
        except Exception as error:  # whatever it was: the table is there, and other files may still be written
            failed.setdefault(str(error) or type(error).__name__, []).append(repr(str(each.file)))
            continue
        if not quiet:
            print_note(f"{'' if has_notes else chr(10)}{each.label}: {printable(str(each.file))}")
            has_notes = True
    if not failed:
        return 0
    told = "; ".join(f"{' and '.join(names)} not written: {why}" for why, names in failed.items())
    print(printable(f"{told}; what was printed is complete"), file=sys.stderr)
    return BROKEN
