"""Compiled programs are kept in the user's cache folder, so that the next process need not compile them again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import jax


def cache_folder() -> Path:
    """Where this user's programs keep what they can make again."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "lastiterate" / "compiled"


def use_compilation_cache() -> None:
    """Turn JAX's persistent cache on, unless the user has chosen a folder or switched it off."""
    if jax.config.jax_compilation_cache_dir is None and jax.config.jax_enable_compilation_cache:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
