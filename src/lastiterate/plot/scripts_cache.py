"""The scripts of web pages in the user's cache folder: to bundle them takes longer than all else of a page.

What is kept there goes into pages, so that it is only believed if it is the user's own and whole.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from contextlib import suppress

from lastiterate.machine import cache_folder
from lastiterate.whole_file import write_whole


def kept_scripts(name: str) -> str | None:
    """The scripts of this name; None: none are kept, or none that can be trusted."""
    try:
        with (cache_folder("scripts") / f"{name}.js").open("rb") as file:
            if not _is_ours(os.fstat(file.fileno())):
                return None
            digest, _, content = file.read().partition(b"\n")
            return content.decode() if digest == _digest(content) else None
    except (OSError, ValueError, RuntimeError):
        return None


def keep_scripts(name: str, content: bytes) -> None:
    """Keep them, if that is possible."""
    with suppress(OSError, ValueError, RuntimeError):  # no home, a full disk: then they are bundled again
        folder = cache_folder("scripts")
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{name}.js", _digest(content) + b"\n" + content, "cache")


def _digest(content: bytes) -> bytes:
    return b"// sha256 " + hashlib.sha256(content).hexdigest().encode()


def _is_ours(about: os.stat_result) -> bool:
    """Whether nobody else may have written it."""
    if sys.platform == "win32":
        return True
    return about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
