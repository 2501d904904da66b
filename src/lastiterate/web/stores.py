"""Which stores are in a folder and below it. Nothing outside of it is ever named, whatever links are in it."""

from __future__ import annotations

import os
from pathlib import Path

SUFFIX = ".sqlite"
_MOST = 2000  # stores that are listed
_DEEPEST = 6  # folders below the one given


def find_stores(folder: Path) -> dict[str, Path]:
    """The stores by their names, which are paths from the folder with slashes."""
    root = folder.resolve()
    found: dict[str, Path] = {}
    for place, folders, files in os.walk(root):  # which follows no link to a folder
        here = Path(place)
        if len(here.relative_to(root).parts) >= _DEEPEST:
            folders.clear()
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        for file in sorted(files):
            if file.endswith(SUFFIX) and not file.startswith(".") and _is_below(root, here / file):
                found[(here / file).relative_to(root).as_posix()] = here / file
                if len(found) >= _MOST:
                    return found
    return found


def locate(folder: Path, name: str) -> Path | None:
    """The store of this name; None: there is none, or it is not below the folder."""
    parts = name.split("/")
    if not name.endswith(SUFFIX) or "\0" in name or "\\" in name or any(part in ("", ".", "..") for part in parts):
        return None
    root = folder.resolve()
    path = root.joinpath(*parts)
    return path if _is_below(root, path) else None


def token_of(path: Path) -> str:
    """Changes whenever the store does."""
    marks = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        try:
            about = file.stat()
            marks.append(f"{about.st_mtime_ns}.{about.st_size}")
        except OSError:
            marks.append("none")
    return "-".join([*marks, "locked" if is_locked(path) else "free"])


def changed_at(path: Path) -> float:
    """When something was last written, in seconds since 1970."""
    times = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        try:
            times.append(file.stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)


def is_locked(path: Path) -> bool:
    """Whether a process has begun to write and has not said that it is done; it may have been killed."""
    return path.with_name(f"{path.name}.lock").exists()


def _is_below(root: Path, path: Path) -> bool:
    """Whether this is a file within the folder, links followed."""
    try:
        return path.is_file() and path.resolve().is_relative_to(root)
    except (OSError, RuntimeError):
        return False
