"""Gaussian noise on sums of gradients.

One stream of random numbers is drawn by one core. Large models therefore have several, each for a stretch of their
entries; how many depends on the model only, so that noise is the same on any number of cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

_STRETCH = 2**20  # entries that are worth a stream
_MOST_STREAMS = 64
_AT_ONCE = 2**15 - 1  # entries that stay in a core's cache; PyTorch starts threads of its own from 2^15 on


def streams(total: int, device: torch.device, draws: np.random.Generator) -> list[torch.Generator]:
    """Streams for a model of so many entries, on its device."""
    count = min(max(total // _STRETCH, 1), _MOST_STREAMS) if device.type == "cpu" else 1
    seeds = draws.integers(2**63, size=count)
    while len(np.unique(seeds % 2**32)) < count:  # PyTorch's generator for CPUs takes no more of a seed
        seeds = draws.integers(2**63, size=count)
    return [torch.Generator(device).manual_seed(int(seed)) for seed in seeds]


def add_noise(total: dict[str, Tensor], generators: Sequence[torch.Generator], scale: float) -> None:
    """Add independent normals times ``scale`` to every entry."""
    if len(generators) == 1:
        _add_from_one(total, generators[0], scale)
        return
    for name, value in total.items():
        total[name] = value.contiguous()
    flat = [value.view(-1) for value in total.values()]
    entries = sum(map(len, flat))
    ends = [entries * stream // len(generators) for stream in range(len(generators) + 1)]

    def add(stream: int) -> None:
        drawn = torch.empty(_AT_ONCE)
        for piece in _pieces(flat, ends[stream], ends[stream + 1]):
            piece.add_(drawn[: len(piece)].normal_(generator=generators[stream]), alpha=scale)

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(add, range(len(generators))))


def _add_from_one(total: dict[str, Tensor], generator: torch.Generator, scale: float) -> None:
    """All noise from one stream, drawn into one place for all parameters."""
    drawn = torch.empty(max((value.numel() for value in total.values()), default=0), device=generator.device)
    for value in total.values():
        normals = drawn[: value.numel()].view(value.shape).normal_(generator=generator)
        value.add_(normals, alpha=scale)


def _pieces(flat: Sequence[Tensor], begin: int, end: int) -> Iterator[Tensor]:
    """The entries from ``begin`` to ``end`` of all tensors in a row, a few at a time."""
    before = 0
    for value in flat:
        first, last = max(begin - before, 0), min(end - before, len(value))
        for at in range(first, last, _AT_ONCE):
            yield value[at : min(at + _AT_ONCE, last)]
        before += len(value)
