"""Compiled programs are kept in the user's cache folder, so that the next process need not compile them again."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import jax


def cache_folder() -> Path:
    """The folder of compiled programs, in the place where this operating system has a user's caches."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "lastiterate" / "compiled"


def use_compilation_cache() -> None:
    """Turn JAX's persistent cache on, unless the user has chosen a folder or switched it off."""
    settings: Any = jax.config  # the names of its settings are not in its type
    if settings.jax_compilation_cache_dir is None and settings.jax_enable_compilation_cache:
        settings.update("jax_compilation_cache_dir", str(cache_folder()))
        settings.update("jax_persistent_cache_min_compile_time_secs", 0.5)
