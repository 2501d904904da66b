"""How much memory there is, how much was used, and how many models fit into a chunk."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

import jax

from lastiterate.common.system import cache_folder, process_peak_bytes

# What a core's share of the caches holds. Work that fits into it is several times as fast as work that does not.
CACHE_BYTES = 2 * 2**20
LARGEST_CHUNK = 4096
LEAST_BLOCK = 16  # examples; below it products of matrices lose their efficiency
LARGEST_BLOCK_OF_SUMS = 32  # of a convolution an example has many rows in such products: more only adds padding


def available_bytes() -> int:
    """Memory that can still be had: on the accelerator if JAX uses one, else in this machine or container."""
    statistics = jax.local_devices()[0].memory_stats()
    if statistics and "bytes_limit" in statistics:
        return int(statistics["bytes_limit"] - statistics["bytes_in_use"])
    return min(_machine_bytes(), _container_bytes())


def total_bytes() -> int:
    """All the memory of the accelerator, or else of this machine."""
    statistics = jax.local_devices()[0].memory_stats()
    if statistics and "bytes_limit" in statistics:
        return int(statistics["bytes_limit"])
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return _machine_bytes()


def peak_bytes() -> int:
    """The most memory that the device, or else this process, has used so far."""
    statistics = jax.local_devices()[0].memory_stats()
    if statistics and "peak_bytes_in_use" in statistics:
        return int(statistics["peak_bytes_in_use"])
    return process_peak_bytes()


def working_bytes() -> int:
    """How many bytes a step of a chunk should work on at most: what a core's caches hold, or a part of the accelerator.

    It depends on the machine only, not on what else runs on it, so that chunks have the same size every time.
    """
    statistics = jax.local_devices()[0].memory_stats()
    if statistics and "bytes_limit" in statistics:
        return int(statistics["bytes_limit"]) // 4
    return CACHE_BYTES


def choose_chunk_size(model_bytes: int, example_bytes: int, batch: float, models: int, workers: int) -> int:
    """How many models to train at once: as many as the working memory holds, but no more than each worker's share."""
    each = model_bytes + example_bytes * max(batch, 1.0)
    return max(1, min(int(working_bytes() / each), math.ceil(models / workers), LARGEST_CHUNK))


def largest_block(example_bytes: int, chunk_size: int, has_sums: bool) -> int:
    """How many examples of each model of a chunk to work on at once; ``has_sums`` as a ``GradientForm`` has it."""
    fits = max(LEAST_BLOCK, working_bytes() // (example_bytes * chunk_size))
    return min(fits, LARGEST_BLOCK_OF_SUMS) if has_sums and jax.default_backend() == "cpu" else fits


def _machine_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return 4 * 2**30


def _container_bytes() -> int:
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text(encoding="ascii"))
        return limit - int((group / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such file, or "max"
        return sys.maxsize


# Compiled programs are kept in the user's cache folder, so that the next process need not compile them again.


def use_compilation_cache() -> None:
    """Turn JAX's persistent cache on, unless the user has chosen a folder or switched it off."""
    settings: Any = jax.config  # the names of its settings are not in its type
    if settings.jax_compilation_cache_dir is None and settings.jax_enable_compilation_cache:
        settings.update("jax_compilation_cache_dir", str(cache_folder("compiled")))
        settings.update("jax_persistent_cache_min_compile_time_secs", 0.5)
