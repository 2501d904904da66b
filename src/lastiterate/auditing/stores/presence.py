"""Is the file that is written to still the store? Others may remove, replace or overwrite it while an audit runs."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from lastiterate.auditing.stores import file as store_file
from lastiterate.auditing.stores.contents import Contents, read
from lastiterate.data.files import BadFile

_File: TypeAlias = tuple[int, int, int, int] | None
Signature: TypeAlias = tuple[_File, _File]


class StoreLost(OSError):
    """The store of a running audit is gone. The message is a whole sentence that says where its trials are now.

    Attributes:
        rescued: the new store, with which the same audit goes on; None: nothing could be written anywhere.
    """

    def __init__(self, sentence: str, rescued: Path | None) -> None:
        super().__init__(sentence)
        self.rescued = rescued


def signature(path: Path) -> Signature:
    """What changes when anybody writes to the store or its log, or puts something else there."""
    return _of(path), _of(log_of(path))


def same_files(one: Signature, other: Signature) -> bool:
    """Whether it is the same store with the same log, however much was written to them."""
    (store, log), (store_now, log_now) = one, other
    kept = store is not None and store_now is not None and store[:2] == store_now[:2]
    return kept and (log is None or (log_now is not None and log[:2] == log_now[:2]))


def log_of(path: Path) -> Path:
    """Where SQLite keeps what is not yet in the file itself."""
    return path.with_name(f"{path.name}-wal")


def holds(path: Path, contents: Contents) -> bool:
    """Whether somebody who opens the store now finds these contents, every bit of them."""
    try:
        database = store_file.connect_to_read(path)
    except (BadFile, OSError, sqlite3.Error):
        return False
    try:
        return read(path, database).same_as(contents)
    except (BadFile, OSError, sqlite3.Error):
        return False
    finally:
        database.close()


def rescue(path: Path, shown: Path, before: Signature, contents: Contents) -> StoreLost:
    """Write the contents under another name: beside the store, in the current folder or in that for temporary files."""
    now = _of(path)
    fate = "was removed" if now is None else "was replaced by another file"
    if now is not None and before[0] is not None and now[:2] == before[0][:2]:
        fate = "was overwritten, or lost its log,"
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
