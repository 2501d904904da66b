"""Records of each use of a parameter (its inputs and the gradient of its output), and the operations that make them.

All tensors here have examples along the first axis. Inputs and gradients are kept in the model's own precision. Sums
over tokens are in float32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional

_NARROW = 16  # columns up to which a factor goes on the left: an adapter's product then takes a quarter of the time


class Product(NamedTuple):
    """A product of inputs [examples, tokens, d] with a matrix; the gradient of the outputs is [examples, tokens, p].

    ``transposed``: the matrix is [d, p], as in GPT-2's Conv1D, and not [p, d], as in a linear layer.
    """

    inputs: Tensor
    gradient: Tensor
    transposed: bool

    @property
    def is_smaller_written_out(self) -> bool:
        """True if the gradients of all examples are no larger than the tensors they are computed from."""
        d, p = self.inputs.shape[2], self.gradient.shape[2]
        return d * p <= self.inputs.shape[1] * (d + p)

    def written_out(self) -> Tensor:
        """Compute the gradient of each example, in the shape of the matrix."""
        left, right = (self.inputs, self.gradient) if self.transposed else (self.gradient, self.inputs)
        if right.shape[2] <= _NARROW < left.shape[2]:
            return torch.bmm(right.float().transpose(1, 2), left.float()).transpose(1, 2)
        return torch.bmm(left.float().transpose(1, 2), right.float())


class Lookup(NamedTuple):
    """A lookup of rows of a table, [examples, tokens]; the gradient of the outputs is [examples, tokens, d]."""

    rows: Tensor
    gradient: Tensor


@dataclass
class Uses:
    """All uses of parameters in one pass, by the name of the parameter.

    Attributes:
        examples: number of examples.
        counted: number of uses of each parameter in the forward pass.
        products, lookups: the tensors from which gradients are computed.
        written: gradients of each example that are already written out, summed over the uses.
    """

    examples: int
    device: torch.device
    counted: Counter[str] = field(default_factory=Counter)
    products: dict[str, list[Product]] = field(default_factory=dict)
    lookups: dict[str, list[Lookup]] = field(default_factory=dict)
    written: dict[str, Tensor] = field(default_factory=dict)

    def add_product(self, name: str, product: Product) -> None:
        if self.counted[name] == 1 and product.is_smaller_written_out:
            self.add_written(name, product.written_out())
        else:
            self.products.setdefault(name, []).append(product)

    def add_lookup(self, name: str, lookup: Lookup) -> None:
        self.lookups.setdefault(name, []).append(lookup)

    def add_written(self, name: str, gradients: Tensor) -> None:
        before = self.written.get(name)
        self.written[name] = gradients if before is None else before + gradients

    def join(self) -> None:
        """Join the uses of each parameter into one product and one lookup, by concatenating their tokens.

        Products that are smaller written out are written out, together with the lookups in the same table.
        """
        for name, products in list(self.products.items()):
            if len({product.transposed for product in products}) > 1:
                raise UnforeseenUse({name})
            one = products[0] if len(products) == 1 else _joined_products(products)
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
        """Return the uses of one parameter."""
        parts = (self.products, self.lookups, self.written)
        products, lookups, written = ({name: part[name]} if name in part else {} for part in parts)
        return Uses(self.examples, self.device, self.counted, products, lookups, written)  # type: ignore[arg-type]

    def zeros(self) -> Tensor:
        """Return a zero for each example, in float64."""
        return torch.zeros(self.examples, dtype=torch.float64, device=self.device)

    def each_product(self) -> Iterator[tuple[str, Product]]:
        for name, (product,) in self.products.items():
            yield name, product

    def each_lookup(self) -> Iterator[tuple[str, Lookup]]:
        for name, (lookup,) in self.lookups.items():
            yield name, lookup


def _joined_products(products: list[Product]) -> Product:
    inputs = torch.cat([product.inputs for product in products], 1)
    return Product(inputs, torch.cat([product.gradient for product in products], 1), products[0].transposed)


def add_rows(written: Tensor, lookup: Lookup) -> None:
    """Add the gradients of looked up rows to written out gradients of the table, [examples, rows, d]."""
    index = lookup.rows[:, :, None].expand(lookup.gradient.shape)
    written.scatter_add_(1, index, lookup.gradient.float())


def is_same(one: Tensor | None, other: Tensor) -> bool:
    """Return whether both share the same memory and layout; autograd may hand out one tensor as two objects."""
    if one is None or one.data_ptr() != other.data_ptr():
        return False
    return one.shape == other.shape and one.stride() == other.stride() and one.dtype == other.dtype


class UnforeseenUse(RuntimeError):
    """Error for parameters that are used in an unknown way."""

    def __init__(self, names: set[str]) -> None:
        super().__init__(f"parameters are used in a way that is not known: {', '.join(sorted(names))}")
        self.names = names


# Products with a matrix: float32 on CPUs by oneDNN. PyTorch's ``linear`` uses MKL, which on processors that are not
# Intel's takes a tenth more time than oneDNN, and up to four times as much if one side is narrow, as in adapters.
# The operation is that of PyTorch's compiler. PyTorch versions without it use ``linear``.

_WORTHWHILE = 2**21  # multiply-adds: for fewer, the preparation costs more than it gains
_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # type: ignore[no-untyped-call]


def linear(inputs: Tensor, matrix: Tensor, vector: Tensor | None = None) -> Tensor:
    """Compute ``functional.linear`` without autograd: inputs [..., d] times a matrix [p, d], plus a vector."""
    ordinary = _ONEDNN and inputs.dim() > 1 and _is_ordinary(inputs) and _is_ordinary(matrix)
    if not ordinary or inputs.numel() * len(matrix) < _WORTHWHILE:
        return functional.linear(inputs, matrix, vector)
    found: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, matrix, vector, "none", [], "")
    return found


def _is_ordinary(given: Tensor) -> bool:
    return given.device.type == "cpu" and given.dtype == torch.float32


# Autograd operations: the backward pass records uses. ``anchor`` is a number that requires a gradient and gets none:
# it makes autograd run the backward pass even if no input requires a gradient.

Context: TypeAlias = Any  # PyTorch's context, from a forward pass to its backward pass


class Names:
    """The parameters of an operation and the record of their uses; None for a parameter that is not trained."""

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
    """Inputs times a matrix that is not trained, plus a vector. It keeps nothing, and is faster than PyTorch's own."""

    @staticmethod
    def forward(ctx: Context, inputs: Tensor, matrix: Tensor, vector: Tensor | None) -> Tensor:
        ctx.save_for_backward(matrix)
        return linear(inputs, matrix, vector)

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (matrix,) = ctx.saved_tensors
        return linear(gradient, matrix.t()), None, None


class LookUp(torch.autograd.Function):
    """Rows [examples, tokens] of a table; rows of padding get no gradient."""

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
    """Inputs [examples, ..., d] times a vector; ``slope`` is the derivative of the vector in its parameter."""

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
    """Sum over all axes but the examples and the vector's own, and record the gradient."""
    names: Names = ctx.names  # type: ignore[attr-defined]
    slope: Tensor | None = ctx.slope  # type: ignore[attr-defined]
    between = tuple(range(1, gradient.dim() - 1))
    found = gradient.sum(between, dtype=torch.float32) if between else gradient.float()
    assert names.vector is not None
    names.uses.add_written(names.vector, found if slope is None else found * slope)
