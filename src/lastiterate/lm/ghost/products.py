"""Products of a batch with a matrix, by the fastest way that PyTorch has for them on this machine.

For float32 on processors, PyTorch's ``linear`` asks MKL. Where the processor is not Intel's, that takes a tenth more
time than oneDNN, and up to four times as much where a side is narrow, as in adapters. PyTorch's compiler reaches
oneDNN by an operation that is called here as well; versions of PyTorch that do not have it multiply as they always do.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_WORTHWHILE = 2**21  # multiplications and additions: below, preparing takes longer than is gained
_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # type: ignore[no-untyped-call]


def linear(inputs: Tensor, matrix: Tensor, vector: Tensor | None = None) -> Tensor:
    """What ``functional.linear`` gives, but not for autograd: inputs [..., d] times a matrix [p, d], plus a vector."""
    ordinary = _ONEDNN and inputs.dim() > 1 and _is_ordinary(inputs) and _is_ordinary(matrix)
    if not ordinary or inputs.numel() * len(matrix) < _WORTHWHILE:
        return functional.linear(inputs, matrix, vector)
    found: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, matrix, vector, "none", [], "")
    return found


def _is_ordinary(given: Tensor) -> bool:
    return given.device.type == "cpu" and given.dtype == torch.float32
