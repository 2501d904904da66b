"""Files that are written whole or not at all, and refused before anything is computed for them."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from lastiterate.scratch import removed_afterwards

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
