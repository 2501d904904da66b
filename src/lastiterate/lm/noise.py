"""Gaussian noise on sums of gradients."""

from __future__ import annotations

import torch
from torch import Tensor


def add_noise(total: dict[str, Tensor], generator: torch.Generator, scale: float) -> None:
    """Add independent normals times ``scale`` to every entry; they are drawn into one place for all parameters."""
    drawn = torch.empty(max((value.numel() for value in total.values()), default=0), device=generator.device)
    for value in total.values():
        normals = drawn[: value.numel()].view(value.shape).normal_(generator=generator)
        value.add_(normals, alpha=scale)
