"""Atomic writes and temporary files: a file is written whole or not at all, and checked before anything is computed.

Temporary folders and files are removed when the process ends, unless it was ended by kill -9. The next process that
needs a folder removes abandoned ones: each owner holds a lock in its folder, and the lock ends with the owner.
"""

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

# Temporary folders: removed when the process ends.

_PREFIX, _LOCK = "lastiterate-", "lock"
_existing: set[Path] = set()


@contextmanager
def removed_afterwards(path: Path) -> Iterator[None]:
    """Remove a file or folder at the end of the context, or earlier in ``remove_all``."""
    _existing.add(path)
    try:
        yield
    finally:
        _remove(path)
        _existing.discard(path)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a temporary folder and remove it at the end of the context."""
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
    """Remove all temporary files and folders, for processes that exit without clean-up."""
    for path in list(_existing):
        _remove(path)


def _remove(path: Path) -> None:
    with suppress(OSError):  # a read-only folder
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _hold(folder: Path) -> int | None:
    """Take the lock of a folder. The lock file is renamed once locked: folders without a lock are left alone."""
    if sys.platform == "win32":
        return None
    import fcntl

    new = folder / f"{_LOCK}.new"
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(folder / _LOCK)
    except OSError:  # no locks on this file system: the folder never counts as abandoned
        new.unlink(missing_ok=True)
    return descriptor


def _remove_abandoned_scratch() -> None:
    """Remove the temporary folders of processes that no longer run."""
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
            except OSError:  # its owner is still running
                continue
            finally:
                os.close(descriptor)


if hasattr(os, "register_at_fork"):  # a forked process must not remove its parent's files
    os.register_at_fork(after_in_child=_existing.clear)

_ABANDONED = 3600.0  # seconds: no write takes this long


def check_writable(path: Path, what: str) -> None:
    """Raise if a file cannot be written later; ``what`` names its content in the error."""
    if path.is_dir():
        raise ValueError(f"the {what}'s file must not be a folder, got {str(path)!r}")
    if not path.parent.is_dir():
        raise ValueError(f"the {what}'s folder must exist, got {str(path.parent)!r}")
    if path.exists() and not os.access(path, os.W_OK):
        raise ValueError(f"the {what}'s file must be writable, got {str(path)!r}")
    _remove_abandoned(path)
    write_whole(path, None, what)


def write_whole(path: Path, content: bytes | None, what: str) -> None:
    """Write a temporary file in the same folder and rename it. None: only check that the file can be written."""
    neighbour = path.with_name(f".{path.name}.{os.getpid()}.part")
    with removed_afterwards(neighbour):
        try:
            neighbour.write_bytes(content or b"")
            if content is not None:
                neighbour.replace(path)
        except OSError as error:
            raise ValueError(f"the {what} cannot be written to {str(path)!r}: {error.strerror}") from None


def is_same_file(one: Path, other: Path) -> bool:
    """Return whether two paths are one file, now or once it is written: through links or through another spelling."""
    with suppress(OSError):
        if one.samefile(other):
            return True
    return os.path.realpath(one) == os.path.realpath(other)


def _remove_abandoned(path: Path) -> None:
    """Remove temporary files beside this file that killed processes left."""
    with suppress(OSError):
        for left in path.parent.iterdir():
            of_ours = left.name.startswith(f".{path.name}.") and left.name.endswith(".part")
            if of_ours and time.time() - left.stat().st_mtime > _ABANDONED:
                left.unlink()
