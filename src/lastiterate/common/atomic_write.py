"""Files that are written whole or not at all, and refused before anything is computed for them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lastiterate.common.errors import Breakdown

# Temporary folders and files that are gone when the process is, however it ends; only a kill -9 leaves one behind.
#
# The next process that needs a folder removes those: the owner of each holds a lock in it, which dies with the owner.

_PREFIX, _LOCK = "lastiterate-", "lock"
_existing: set[Path] = set()


@contextmanager
def removed_afterwards(path: Path) -> Iterator[None]:
    """Remove a file or folder at the end, or where ``remove_all`` comes first."""
    _existing.add(path)
    try:
        yield
    finally:
        _remove(path)
        _existing.discard(path)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder."""
    _remove_abandoned_scratch()
    try:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    except OSError as error:
        raise Breakdown(
            f"no temporary folder can be made ({error.strerror}): make room, or set TMPDIR to a folder with some"
        ) from None
    with removed_afterwards(folder):
        descriptor = _hold(folder)
        try:
            yield folder
        finally:
            if descriptor is not None:
                os.close(descriptor)


def remove_all() -> None:
    """Remove what is there, for those who leave without tidying up."""
    for path in list(_existing):
        _remove(path)


def _remove(path: Path) -> None:
    with suppress(OSError):  # a read-only folder
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _hold(folder: Path) -> int | None:
    """Take the lock of a folder. It gets its name when it is taken, since without it a folder is left alone."""
    if sys.platform == "win32":
        return None
    import fcntl

    new = folder / f"{_LOCK}.new"
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(folder / _LOCK)
    except OSError:  # no locks here: nobody will take this folder for abandoned
        new.unlink(missing_ok=True)
    return descriptor


def _remove_abandoned_scratch() -> None:
    """Remove the folders of those who cannot do so any more."""
    if sys.platform == "win32":
        return
    import fcntl

    with suppress(OSError):
        for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
            if lock.parent.is_symlink() or lock.is_symlink() or lock.stat().st_uid != os.geteuid():
                continue
            descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            except OSError:  # its owner lives
                continue
            finally:
                os.close(descriptor)


if hasattr(os, "register_at_fork"):  # what a process has, no process that it forks may remove
    os.register_at_fork(after_in_child=_existing.clear)

_ABANDONED = 3600.0  # seconds: nobody writes a file for so long


def check_writable(path: Path, what: str) -> None:
    """Refuse a file that could not be written later; ``what`` it holds is named in the refusal."""
    if path.is_dir():
        raise ValueError(f"the {what}'s file must not be a folder, got {str(path)!r}")
    if not path.parent.is_dir():
        raise ValueError(f"the {what}'s folder must exist, got {str(path.parent)!r}")
    if path.exists() and not os.access(path, os.W_OK):
        raise ValueError(f"the {what}'s file must be writable, got {str(path)!r}")
    _remove_abandoned(path)
    write_whole(path, None, what)


def write_whole(path: Path, content: bytes | None, what: str) -> None:
    """Write a temporary file in the same folder and rename it. None: only see whether that file could be written."""
    neighbour = path.with_name(f".{path.name}.{os.getpid()}.part")
    with removed_afterwards(neighbour):
        try:
            neighbour.write_bytes(content or b"")
            if content is not None:
                neighbour.replace(path)
        except OSError as error:
            raise ValueError(f"the {what} cannot be written to {str(path)!r}: {error.strerror}") from None


def is_same_file(one: Path, other: Path) -> bool:
    """Whether two paths are one file, now or once it is written: by links of either kind, or by another spelling."""
    with suppress(OSError):
        if one.samefile(other):
            return True
    return os.path.realpath(one) == os.path.realpath(other)


def _remove_abandoned(path: Path) -> None:
    """Remove what processes that were killed while they wrote this file have left beside it."""
    with suppress(OSError):
        for left in path.parent.iterdir():
            of_ours = left.name.startswith(f".{path.name}.") and left.name.endswith(".part")
            if of_ours and time.time() - left.stat().st_mtime > _ABANDONED:
                left.unlink()
