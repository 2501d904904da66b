"""The machine and this process: cores, memory, cache folders, and functions that are loaded by name."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

# Of glibc's malloc.h: at how much free memory some is given back, and from which size on an array has pages of its own.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGE = 32 * 2**20  # the most to which glibc raises the second by itself; the first is then twice that


def late(path: str) -> Any:
    """Load the function ``package.module:name`` of a room above.

    A value's method may offer what a room above does with it, such as ``result.plot()``. `tests/test_layers.py` lists
    every such call.
    """
    module, _, name = path.partition(":")
    return getattr(import_module(f"lastiterate.{module}"), name)


def cores() -> int:
    """The processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_peak_bytes() -> int:
    """The most memory that this process has used so far; 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # not on this system
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keeps what is freed inside for what is needed next, instead of giving it back to the system and asking again.

    A step of training frees as much as the next one takes, and pages that come from the system are cleared first, which
    costs up to a tenth of a step. On systems without glibc this does nothing.
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if library is None or not (hasattr(library, "mallopt") and hasattr(library, "malloc_trim")):
        yield
        return
    library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    library.mallopt(_MMAP_THRESHOLD, 2**30)
    try:
        yield
    finally:
        library.mallopt(_TRIM_THRESHOLD, 2 * _LARGE)
        library.mallopt(_MMAP_THRESHOLD, _LARGE)
        library.malloc_trim(0)


def cache_folder(name: str) -> Path:
    """The folder of this name for this package, in the place where this operating system has a user's caches."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "lastiterate" / name
