"""Sums of gradients, each times a factor, from what they are computed from."""

from __future__ import annotations

import torch
from torch import Tensor

from lastiterate.lm.ghost.uses import Product, Uses, is_same

Tensors = dict[str, Tensor]


def add_weighted(total: Tensors, parameters: Tensors, uses: Uses, factors: Tensor) -> None:
    """Add each example's gradient times its factor to the sums, which begin with zeros in the form of ``parameters``.

    Sums take memory from when they are needed, and what is not needed any more is let go on the way.
    """

    def of(name: str) -> Tensor:
        if name not in total:
            total[name] = torch.zeros_like(parameters[name], dtype=torch.float32)
        return total[name]

    for name in list(uses.written):
        written = uses.written.pop(name)
        of(name).add_(_weighted_sum(written.float(), factors))
    for name in list(uses.lookups):
        (lookup,) = uses.lookups.pop(name)
        weighted = lookup.gradient.float() * factors[:, None, None]
        of(name).index_add_(0, lookup.rows.flatten(), weighted.flatten(0, 1))
    weighted_inputs = _Weighted(factors)
    for name in list(uses.products):
        (product,) = uses.products.pop(name)
        left, right = weighted_inputs.both(product)
        if product.transposed:
            left, right = right, left
        if name in total:
            total[name].addmm_(left.t(), right)
        else:
            total[name] = left.t() @ right


def _weighted_sum(written: Tensor, factors: Tensor) -> Tensor:
    """The sum of written out gradients, each times its factor."""
    if written.dim() == 3 and not written.is_contiguous():  # transposed: as it lies in memory, without a copy
        lying = written.transpose(1, 2)
        return (factors @ lying.flatten(1)).view(lying.shape[1:]).t()
    return (factors @ written.flatten(1)).view(written.shape[1:])


class _Weighted:
    """Gradients and inputs of products, of which the narrower is multiplied with the factors."""

    def __init__(self, factors: Tensor) -> None:
        self._factors = factors[:, None, None]
        self._inputs: Tensor | None = None
        self._weighted: Tensor | None = None

    def both(self, product: Product) -> tuple[Tensor, Tensor]:
        """As [tokens of all examples, width]. Layers that have the same inputs share the multiplied ones."""
        inputs, gradient = product.inputs, product.gradient
        if gradient.shape[2] < inputs.shape[2]:
            return (gradient.float() * self._factors).flatten(0, 1), inputs.float().flatten(0, 1)
        if self._weighted is None or not is_same(self._inputs, inputs):
            self._inputs, self._weighted = inputs, (inputs.float() * self._factors).flatten(0, 1)
        return gradient.float().flatten(0, 1), self._weighted
