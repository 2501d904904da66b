"""The machine's cores, the memory that this process has used, and where a user's caches are."""

from __future__ import annotations

import os
import sys
from pathlib import Path


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


def cache_folder(name: str) -> Path:
    """The folder of this name for this package, in the place where this operating system has a user's caches."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "lastiterate" / name
