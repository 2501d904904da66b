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

# From glibc's malloc.h: the free memory above which some is returned, and the size above which an array has own pages.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGE = 32 * 2**20  # glibc's own maximum for the mmap threshold; the trim threshold is then twice this


def late(path: str) -> Any:
    """Load the function ``package.module:name`` of a room above.

    A value's method may offer what a room above does with it, such as ``result.plot()``. `tests/test_layers.py` lists
    every such call.
    """
    module, _, name = path.partition(":")
    return getattr(import_module(f"lastiterate.{module}"), name)


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_peak_bytes() -> int:
    """Return the peak memory of this process so far; 0 if the system does not report it."""
    try:
        import resource
    except ImportError:  # not on this system
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep freed memory for later allocations, instead of returning it to the system.

    A training step frees as much memory as the next one takes. The system clears new pages first, which costs up to a
    tenth of a step. On systems without glibc this does nothing.
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
    """Return this package's cache folder of this name, at the operating system's usual place."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "lastiterate" / name
