"""System functions: cores, memory, cache folders, and functions that are imported by name."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

# Numbers of two parameters in glibc's malloc.h. Free memory above the trim threshold is returned to the system. Arrays
# above the mmap threshold get pages of their own.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGE = 32 * 2**20  # glibc's maximum for its own mmap threshold; its trim threshold is twice as large


def late(path: str) -> Any:
    """Import and return the function ``package.module:name`` of a higher layer.

    Lower layers do not import higher layers, but methods such as ``result.plot()`` need their functions.
    `tests/test_layers.py` lists every such call.
    """
    module, _, name = path.partition(":")
    return getattr(import_module(f"lastiterate.{module}"), name)


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_peak_bytes() -> int:
    """Return the peak memory of this process so far, or 0 if the system does not report it."""
    try:
        import resource
    except ImportError:  # not on this system
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep freed memory for later allocations, instead of returning it to the system.

    Every training step frees its memory, and the next step needs as much again. New pages from the system must be
    cleared first, which takes up to a tenth of a step. On systems without glibc this function does nothing.
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
    """Return the folder ``name`` in this package's cache, at the operating system's usual place."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "lastiterate" / name
