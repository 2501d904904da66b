"""Records of the uses of parameters, and operations that make the records.

A record has the inputs and the gradient of the output of an operation with a parameter, in the model's precision. Sums
over tokens are in float32, or in float64 if the model computes in float64. All tensors here have examples along the
first axis.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

Tensors = dict[str, Tensor]

_NARROW = 16  # a factor with at most this many columns goes on the left, which is four times as fast


class Product(NamedTuple):
    """A product of inputs [examples, tokens, d] with a matrix; the gradient of the outputs is [examples, tokens, p].

    If ``transposed``, the matrix is [d, p], as in GPT-2's Conv1D. Otherwise it is [p, d], as in a linear layer.
    """

    inputs: Tensor
    gradient: Tensor
    transposed: bool

    @property
    def is_smaller_written_out(self) -> bool:
        """True if the gradients of all examples need no more memory than the inputs and output gradients."""
        d, p = self.inputs.shape[2], self.gradient.shape[2]
        return d * p <= self.inputs.shape[1] * (d + p)

    def written_out(self) -> Tensor:
        left, right = (self.inputs, self.gradient) if self.transposed else (self.gradient, self.inputs)
        if right.shape[2] <= _NARROW < left.shape[2]:
            return torch.bmm(at_least_float32(right).transpose(1, 2), at_least_float32(left)).transpose(1, 2)
        return torch.bmm(at_least_float32(left).transpose(1, 2), at_least_float32(right))


class Lookup(NamedTuple):
    """A lookup in a table. Rows are [examples, tokens], and the gradient of the outputs is [examples, tokens, d]."""

    rows: Tensor
    gradient: Tensor


@dataclass
class Uses:
    """All uses of parameters in one pass, by the name of the parameter."""

    examples: int  # number of examples
    device: torch.device
    counted: Counter[str] = field(default_factory=Counter)  # number of uses of each parameter in the forward pass
    products: dict[str, list[Product]] = field(default_factory=dict)
    lookups: dict[str, list[Lookup]] = field(default_factory=dict)
    written: Tensors = field(default_factory=dict)  # stored per-example gradients, summed over the uses

    def add_product(self, name: str, product: Product) -> None:
        if self.counted[name] == 1 and product.is_smaller_written_out:
            self.add_written(name, product.written_out())
        else:
            self.products.setdefault(name, []).append(product)

    def add_written(self, name: str, gradients: Tensor) -> None:
        before = self.written.get(name)
        self.written[name] = gradients if before is None else before + gradients

    def join(self) -> None:
        """Join the uses of each parameter into one product and one lookup, or into gradients if these are smaller."""
        for name, products in list(self.products.items()):
            if len({product.transposed for product in products}) > 1:
                raise UnforeseenUse({name})
            one = products[0]
            if len(products) > 1:
                inputs = torch.cat([product.inputs for product in products], 1)
                one = Product(inputs, torch.cat([product.gradient for product in products], 1), one.transposed)
            self.products[name] = [one]
            if one.is_smaller_written_out:
                self.add_written(name, one.written_out())
                del self.products[name]
        for name, lookups in list(self.lookups.items()):
            rows = torch.cat([each.rows for each in lookups], 1)
            one_lookup = Lookup(rows, torch.cat([each.gradient for each in lookups], 1))
            self.lookups[name] = [one_lookup]
            if any(product.transposed for product in self.products.get(name, [])):
                raise UnforeseenUse({name})
            if name in self.written:
                add_rows(self.written[name], one_lookup)
                del self.lookups[name]

    def only(self, name: str) -> Uses:
        parts = (self.products, self.lookups, self.written)
        products, lookups, written = ({name: part[name]} if name in part else {} for part in parts)
        return Uses(self.examples, self.device, self.counted, products, lookups, written)  # type: ignore[arg-type]


def add_rows(written: Tensor, lookup: Lookup) -> None:
    """Add the gradients of looked-up rows to the gradients of the table, [examples, rows, d]."""
    index = lookup.rows[:, :, None].expand(lookup.gradient.shape)
    written.scatter_add_(1, index, at_least_float32(lookup.gradient))


def at_least_float32(value: Tensor) -> Tensor:
    """Return the value in float32, or in float64 if it is so already."""
    return value if value.dtype == torch.float64 else value.float()


class UnforeseenUse(RuntimeError):
    """Error for parameters that are used in an unknown way."""

    def __init__(self, names: set[str]) -> None:
        super().__init__(f"parameters are used in an unknown way: {', '.join(sorted(names))}")
        self.names = names


# Products with a matrix use oneDNN for float32 on CPUs, like PyTorch's compiler. PyTorch's ``linear`` uses MKL, which
# takes 10% more time on processors that are not from Intel, and up to four times as much if one side is narrow.

_WORTHWHILE = 2**21  # fewest multiply-adds for which oneDNN is faster despite its preparation
_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # type: ignore[no-untyped-call]


def linear(inputs: Tensor, matrix: Tensor, vector: Tensor | None = None) -> Tensor:
    """Compute ``functional.linear`` without autograd: inputs [..., d] times a matrix [p, d], plus a vector."""
    ordinary = all(each.device.type == "cpu" and each.dtype == torch.float32 for each in (inputs, matrix))
    if not (_ONEDNN and ordinary) or inputs.dim() < 2 or inputs.numel() * len(matrix) < _WORTHWHILE:
        return functional.linear(inputs, matrix, vector)
    found: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, matrix, vector, "none", [], "")
    return found


# Autograd operations whose backward pass records uses. ``anchor`` is a dummy input that requires a gradient, so that
# autograd runs the backward pass even if no other input requires one.

Context: TypeAlias = Any  # PyTorch's context, from a forward pass to its backward pass


class Names:
    """The names of an operation's parameters, and the record of their uses. Untrained parameters are None."""

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
            names.uses.add_written(names.vector, at_least_float32(gradient).sum(1))
        if names.matrix is not None:
            names.uses.add_product(names.matrix, Product(inputs.detach(), gradient.detach(), ctx.transposed))
        back = linear(gradient, matrix if ctx.transposed else matrix.t()) if ctx.needs_input_grad[0] else None
        return back, None, None, None, None, None


class MultiplyFixed(torch.autograd.Function):
    """Inputs times an untrained matrix, plus a vector. It stores nothing, and is faster than PyTorch's ``linear``."""

    @staticmethod
    def forward(ctx: Context, inputs: Tensor, matrix: Tensor, vector: Tensor | None) -> Tensor:
        ctx.save_for_backward(matrix)
        return linear(inputs, matrix, vector)

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (matrix,) = ctx.saved_tensors
        return linear(gradient, matrix.t()), None, None


class Embed(torch.autograd.Function):
    """A lookup of rows [examples, tokens] of a table. Padding rows get no gradient."""

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
        names.uses.lookups.setdefault(names.matrix, []).append(Lookup(rows, gradient.detach()))
        return None, None, None, None, None


class Entrywise(torch.autograd.Function):
    """Inputs [examples, ..., d] times or plus a vector; ``slope`` is the derivative of the vector in its parameter."""

    @staticmethod
    def forward(
        ctx: Context, inputs: Tensor, vector: Tensor, anchor: Tensor, names: Names, slope: Tensor | None, times: bool
    ) -> Tensor:
        ctx.save_for_backward(*((inputs, vector) if times else ()))
        ctx.names, ctx.slope, ctx.dtype = names, slope, inputs.dtype
        return inputs * vector if times else inputs + vector

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, vector = ctx.saved_tensors or (None, None)
        kept = at_least_float32(gradient) if inputs is None else at_least_float32(gradient) * at_least_float32(inputs)
        between = tuple(range(1, gradient.dim() - 1))  # all axes except the first and the last
        found = kept.sum(between) if between else kept
        ctx.names.uses.add_written(ctx.names.vector, found if ctx.slope is None else found * ctx.slope)
        back = (gradient if vector is None else gradient * vector).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        return back, None, None, None, None, None
