"""What is kept of each use of a parameter: what went in, and the gradient of what came out.

Everything here has examples along the first axis. Inputs and gradients are kept in the model's own precision, and what
is added up over tokens is added up in float32.
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

_NARROW = 16  # a factor of so few columns is better on the left: the product of an adapter takes a quarter of the time


class Product(NamedTuple):
    """Inputs [examples, tokens, d] were multiplied with a matrix; their gradient is [examples, tokens, p].

    ``transposed``: the matrix is [d, p], as that of GPT-2's Conv1D, and not [p, d], as that of a linear layer.
    """

    inputs: Tensor
    gradient: Tensor
    transposed: bool

    @property
    def is_smaller_written_out(self) -> bool:
        """Whether the gradients of all examples are no larger than what they are computed from."""
        d, p = self.inputs.shape[2], self.gradient.shape[2]
        return d * p <= self.inputs.shape[1] * (d + p)

    def written_out(self) -> Tensor:
        """The gradient of each example, in the shape of the matrix."""
        left, right = (self.inputs, self.gradient) if self.transposed else (self.gradient, self.inputs)
        if right.shape[2] <= _NARROW < left.shape[2]:
            return torch.bmm(right.float().transpose(1, 2), left.float()).transpose(1, 2)
        return torch.bmm(left.float().transpose(1, 2), right.float())


class Lookup(NamedTuple):
    """Rows of a table were looked up, [examples, tokens]; the gradient of what was found is [examples, tokens, d]."""

    rows: Tensor
    gradient: Tensor


@dataclass
class Uses:
    """All uses of parameters in one pass, by the name of the parameter.

    Attributes:
        examples: how many there are.
        counted: how often each was used on the way forwards.
        products, lookups: what is needed to compute gradients.
        written: gradients of the examples that were written out at once, added up over the uses.
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
        """Make one product and one lookup of several uses of a parameter, whose tokens then follow each other.

        What is smaller written out is written out, with the lookups in the same table.
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
        """Those of one parameter."""
        parts = (self.products, self.lookups, self.written)
        products, lookups, written = ({name: part[name]} if name in part else {} for part in parts)
        return Uses(self.examples, self.device, self.counted, products, lookups, written)  # type: ignore[arg-type]

    def zeros(self) -> Tensor:
        """A zero for each example, in float64."""
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
    """Whether both are the same numbers in the same place; autograd may hand out one tensor as two objects."""
    if one is None or one.data_ptr() != other.data_ptr():
        return False
    return one.shape == other.shape and one.stride() == other.stride() and one.dtype == other.dtype


class UnforeseenUse(RuntimeError):
    """Parameters are used in a way that is not known here."""

    def __init__(self, names: set[str]) -> None:
        super().__init__(f"parameters are used in a way that is not known: {', '.join(sorted(names))}")
        self.names = names


# Products of a batch with a matrix, by the fastest way that PyTorch has for them on this machine.
#
# For float32 on processors, PyTorch's ``linear`` asks MKL. Where the processor is not Intel's, that takes a tenth
# more time than oneDNN, and up to four times as much where a side is narrow, as in adapters. PyTorch's compiler
# reaches oneDNN by an operation that is called here as well; versions of PyTorch that do not have it multiply as they
# always do.

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


# The operations in which parameters are used, for autograd: what goes back is kept for the parameter's gradients.
#
# ``anchor`` is a number that needs a gradient and gets none: through it autograd comes by even where no input needs
# one.

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
