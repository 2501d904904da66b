"""The operations in which parameters are used, for autograd: what goes back is kept for the parameter's gradients.

``anchor`` is a number that needs a gradient and gets none: through it autograd comes by even where no input needs one.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from lastiterate.lm.ghost.products import linear
from lastiterate.lm.ghost.uses import Lookup, Product, Uses

Context: TypeAlias = Any  # what PyTorch hands from a forward pass to its backward pass


class Names:
    """Which parameters an operation uses, and where its uses are kept; None: one that is not trained."""

    def __init__(self, uses: Uses, matrix: str | None, vector: str | None = None) -> None:
        self.uses, self.matrix, self.vector = uses, matrix, vector
        uses.counted.update(name for name in (matrix, vector) if name is not None)


class Multiply(torch.autograd.Function):
    """Inputs [examples, tokens, d] times a matrix, plus a vector."""

    @staticmethod
    def forward(
        ctx: Context,
        inputs: Tensor,
        matrix: Tensor,
        vector: Tensor | None,
        anchor: Tensor,
        names: Names,
        transposed: bool,
    ) -> Tensor:
        ctx.save_for_backward(inputs, matrix)
        ctx.names, ctx.transposed = names, transposed
        return linear(inputs, matrix.t() if transposed else matrix, vector)

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, matrix = ctx.saved_tensors
        names: Names = ctx.names
        if names.vector is not None:
            names.uses.add_written(names.vector, gradient.sum(1, dtype=torch.float32))
        if names.matrix is not None:
            names.uses.add_product(names.matrix, Product(inputs.detach(), gradient.detach(), ctx.transposed))
        back = linear(gradient, matrix if ctx.transposed else matrix.t()) if ctx.needs_input_grad[0] else None
        return back, None, None, None, None, None


class MultiplyFixed(torch.autograd.Function):
    """Inputs times a matrix that is not trained, plus a vector: nothing is kept, it is only quicker."""

    @staticmethod
    def forward(ctx: Context, inputs: Tensor, matrix: Tensor, vector: Tensor | None) -> Tensor:
        ctx.save_for_backward(matrix)
        return linear(inputs, matrix, vector)

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (matrix,) = ctx.saved_tensors
        return linear(gradient, matrix.t()), None, None


class LookUp(torch.autograd.Function):
    """Rows [examples, tokens] of a table; those of padding get no gradient."""

    @staticmethod
    def forward(ctx: Context, rows: Tensor, table: Tensor, anchor: Tensor, names: Names, padding: int | None) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.names, ctx.padding = names, padding
        return functional.embedding(rows, table)

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> tuple[None, ...]:
        (rows,) = ctx.saved_tensors
        names: Names = ctx.names
        if ctx.padding is not None:
            gradient = gradient * (rows != ctx.padding)[:, :, None]
        assert names.matrix is not None
        names.uses.add_lookup(names.matrix, Lookup(rows, gradient.detach()))
        return None, None, None, None, None


class Scale(torch.autograd.Function):
    """Inputs [examples, ..., d] times a vector; ``slope`` is what the vector gains if its parameter grows by one."""

    @staticmethod
    def forward(
        ctx: Context, inputs: Tensor, vector: Tensor, anchor: Tensor, names: Names, slope: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(inputs, vector)
        ctx.names, ctx.slope = names, slope
        return inputs * vector

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, vector = ctx.saved_tensors
        _keep(ctx, gradient.float() * inputs.float())
        back = (gradient * vector).to(inputs.dtype) if ctx.needs_input_grad[0] else None
        return back, None, None, None, None


class Shift(torch.autograd.Function):
    """Inputs [examples, ..., d] plus a vector."""

    @staticmethod
    def forward(
        ctx: Context, inputs: Tensor, vector: Tensor, anchor: Tensor, names: Names, slope: Tensor | None
    ) -> Tensor:
        ctx.names, ctx.slope, ctx.dtype = names, slope, inputs.dtype
        return inputs + vector

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor | None, ...]:
        _keep(ctx, gradient)
        return gradient.to(ctx.dtype), None, None, None, None


def _keep(ctx: FunctionCtx, gradient: Tensor) -> None:
    """Add up over everything but examples and the vector's own axis."""
    names: Names = ctx.names  # type: ignore[attr-defined]
    slope: Tensor | None = ctx.slope  # type: ignore[attr-defined]
    between = tuple(range(1, gradient.dim() - 1))
    found = gradient.sum(between, dtype=torch.float32) if between else gradient.float()
    assert names.vector is not None
    names.uses.add_written(names.vector, found if slope is None else found * slope)
