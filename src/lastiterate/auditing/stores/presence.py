"""Is the file that is written to still the store? Others may remove, replace or overwrite it while an audit runs."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeAlias

from lastiterate.auditing.stores import file as store_file
from lastiterate.auditing.stores.contents import Contents, read
from lastiterate.auditing.stores.lost import StoreLost
from lastiterate.data.files import BadFile

_HEAD = 65_536  # bytes at the beginning, which say what is audited: two stores differ there
_File: TypeAlias = tuple[int, int, int, int] | None
_Signature: TypeAlias = tuple[_File, _File]


class Watched:
    """The file that was opened, as it was left by the last write to it.

    It stays open until ``close``: if this process closed a file of its own sooner, it would lose SQLite's locks.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._log = path, path.with_name(f"{path.name}-wal")
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._left = self._signature()
        self._head = self._beginning()

    def is_there(self) -> bool:
        """Whether the path still leads to the file that was opened, and to its log."""
        (store, log), (store_now, log_now) = self._left, self._signature()
        kept = store is not None and store_now is not None and store[:2] == store_now[:2]
        return kept and (log is None or (log_now is not None and log[:2] == log_now[:2]))

    def is_as_left(self, contents: Callable[[], Contents]) -> bool:
        """Whether nobody has written to it, or it holds these contents anyway."""
        if (now := self._signature()) == self._left:
            return True
        if not self.is_there():
            return False
        # The log would hide what was done to the file itself, until it is folded in.
        changed = _size(now) != _size(self._left) or self._beginning() != self._head
        if not holds(self._path, contents(), without_log=changed):
            return False
        self.leave()
        return True

    def leave(self) -> None:
        """From now on it should be as it is now."""
        before, self._left = self._left, self._signature()
        if before[0] != self._left[0]:
            self._head = self._beginning()

    def fate(self) -> str:
        """What has happened to it, in words."""
        store, now = self._left[0], _of(self._path)
        if now is None or store is None:
            return "was removed"
        return "was overwritten, or lost its log," if now[:2] == store[:2] else "was replaced by another file"

    def close(self) -> None:
        """Once SQLite has closed it."""
        os.close(self._descriptor)

    def _signature(self) -> _Signature:
        """What changes when anybody writes to the store or its log, or puts something else there."""
        return _of(self._path), _of(self._log)

    def _beginning(self) -> bytes:
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        return os.read(self._descriptor, _HEAD)


def holds(path: Path, contents: Contents, *, without_log: bool = False) -> bool:
    """Whether somebody who opens the store now finds these contents, every bit of them.

    Args:
        path: of the store.
        contents: what should be in it.
        without_log: do not look at the log. It hides what was done to the file, until it is folded in.
    """
    try:
        with closing(store_file.connect_to_read(path, without_log)) as database:
            return read(path, database).same_as(contents)
    except (BadFile, OSError, sqlite3.Error):
        return False


def rescue(path: Path, shown: Path, fate: str, contents: Contents) -> StoreLost:
    """Write the contents under another name: beside the store, in the current folder or in that for temporary files."""
    count = len(contents.trials)
    for place in _places(path):
        try:
            store_file.create(place, contents)
        except (BadFile, OSError, sqlite3.Error):
            continue
        near = shown.with_name(place.name) if place.parent == path.parent else place
        return StoreLost(
            f"the store {str(shown)!r} {fate} while the audit ran: its {count} trials are now in {str(near)!r}, "
            "and the same command goes on with that as its store",
            near,
        )
    return StoreLost(
        f"the store {str(shown)!r} {fate} while the audit ran, and its {count} trials could not be written elsewhere",
        None,
    )


def _size(found: _Signature) -> int:
    return found[0][2] if found[0] else 0


def _of(path: Path) -> _File:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _places(path: Path) -> Iterator[Path]:
    """Names that are free, one a folder."""
    folders = [path.parent]
    with suppress(OSError):  # the current folder may be gone as well
        folders.append(Path.cwd())
    folders.append(Path(tempfile.gettempdir()))
    for folder in folders:
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            continue
        for attempt in range(1, 1000):
            name = f"{path.stem}-rescued{'' if attempt == 1 else f'-{attempt}'}{path.suffix}"
            if not os.path.lexists(folder / name):
                yield folder / name
                break
