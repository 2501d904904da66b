"""Atomic writes: a file is written whole or not at all, and checked before anything is computed.

Temporary files are removed when the process ends, unless it was ended by kill -9. The next process that writes the
same file removes temporary files that were left behind.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_ABANDONED = 3600.0  # age in seconds of a temporary file that is removed: no write takes this long
_existing: set[Path] = set()
closing: list[Callable[[], None]] = []  # called before a process exits without clean-up


@contextmanager
def removed_afterwards(path: Path) -> Iterator[None]:
    """Remove a file at the end of the context, or earlier in ``remove_all``."""
    _existing.add(path)
    try:
        yield
    finally:
        _remove(path)
        _existing.discard(path)


def remove_all() -> None:
    """Close open stores and remove all temporary files, for processes that exit without clean-up."""
    for close in closing:
        with suppress(Exception):  # the process ends in any case, and stored results are safe
            close()
    for path in list(_existing):
        _remove(path)


def _remove(path: Path) -> None:
    with suppress(OSError):  # a read-only folder
        path.unlink(missing_ok=True)


if hasattr(os, "register_at_fork"):  # a forked process must not remove its parent's files
    os.register_at_fork(after_in_child=_existing.clear)


def check_writable(path: Path, what: str) -> None:
    """Raise if the file cannot be written. ``what`` names its content in the error, such as "picture"."""
    if path.is_dir():
        raise ValueError(f"the {what}'s file must not be a folder, got {str(path)!r}")
    if not path.parent.is_dir():
        raise ValueError(f"the {what}'s folder must exist, got {str(path.parent)!r}")
    if path.exists() and not os.access(path, os.W_OK):
        raise ValueError(f"the {what}'s file must be writable, got {str(path)!r}")
    _remove_abandoned(path)
    write_whole(path, None, what)


def write_whole(path: Path, content: bytes | None, what: str) -> None:
    """Write a temporary file in the same folder and rename it. If ``content`` is None, only check that this works."""
    neighbour = path.with_name(f".{path.name}.{os.getpid()}.part")
    with removed_afterwards(neighbour):
        try:
            neighbour.write_bytes(content or b"")
            if content is not None:
                neighbour.replace(path)
        except OSError as error:
            raise ValueError(f"the {what} cannot be written to {str(path)!r}: {error.strerror}") from None


def is_same_file(one: Path, other: Path) -> bool:
    """Return whether two paths name the same file, perhaps through links. The file need not exist yet."""
    with suppress(OSError):
        if one.samefile(other):
            return True
    return os.path.realpath(one) == os.path.realpath(other)


def _remove_abandoned(path: Path) -> None:
    with suppress(OSError):
        for left in path.parent.iterdir():
            of_ours = left.name.startswith(f".{path.name}.") and left.name.endswith(".part")
            if of_ours and time.time() - left.stat().st_mtime > _ABANDONED:
                left.unlink()
