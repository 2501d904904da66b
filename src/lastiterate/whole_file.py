"""Files that are written whole or not at all, and refused before anything is computed for them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def check_writable(path: Path, what: str) -> None:
    """Refuse a file that could not be written later; ``what`` it holds is named in the refusal."""
    if path.is_dir():
        raise ValueError(f"the {what}'s file must not be a folder, got {str(path)!r}")
    if not path.parent.is_dir():
        raise ValueError(f"the {what}'s folder must exist, got {str(path.parent)!r}")
    if path.exists() and not os.access(path, os.W_OK):
        raise ValueError(f"the {what}'s file must be writable, got {str(path)!r}")
    write_whole(path, None, what)


def write_whole(path: Path, content: bytes | None, what: str) -> None:
    """Write a temporary file in the same folder and rename it. None: only see whether that file could be written."""
    neighbour = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        neighbour.write_bytes(content or b"")
        if content is not None:
            neighbour.replace(path)
    except OSError as error:
        raise ValueError(f"the {what} cannot be written to {str(path)!r}: {error.strerror}") from None
    finally:
        with suppress(OSError):  # a read-only folder has said so already
            neighbour.unlink(missing_ok=True)
