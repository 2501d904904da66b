"""Compiled programs are kept in the user's cache folder, so that the next process need not compile them again."""

from __future__ import annotations

from typing import Any

import jax

from lastiterate.machine import cache_folder


def use_compilation_cache() -> None:
    """Turn JAX's persistent cache on, unless the user has chosen a folder or switched it off."""
    settings: Any = jax.config  # the names of its settings are not in its type
    if settings.jax_compilation_cache_dir is None and settings.jax_enable_compilation_cache:
        settings.update("jax_compilation_cache_dir", str(cache_folder("compiled")))
        settings.update("jax_persistent_cache_min_compile_time_secs", 0.5)
