"""The machine's cores, and the memory that this process has used."""

from __future__ import annotations

import os
import sys


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
