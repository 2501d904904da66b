"""What is kept of each use of a parameter: what went in, and the gradient of what came out.

Everything here has examples along the first axis. Inputs and gradients are kept in the model's own precision, and what
is added up over tokens is added up in float32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

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
