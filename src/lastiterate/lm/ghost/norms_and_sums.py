"""Norms of gradients that are not written out, by what they are computed from.

The gradient in a matrix is the sum over tokens of g_t a_t', and its squared norm the sum over pairs of tokens t, s of
<a_t, a_s> <g_t, g_s>: the product of two Gram matrices, entry by entry. In float32 such a sum loses digits where the
tokens' gradients cancel each other; there the gradient is written out, one example at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lastiterate.lm.ghost.parameter_uses import Lookup, Product, Uses, add_rows, is_same

# Rounding an entry of a Gram matrix costs some 6e-8 of the squares of its tokens. Where the squares of all tokens come
# to 32 times the squared norm, the norm is still good to 1e-6.
MOST_CANCELLED = 32.0
_BLOCK = 64  # tokens: Gram matrices are symmetric, so only blocks on and above the diagonal are computed


def squared_norms(uses: Uses, clip_norm: float) -> Tensor:
    """The squared norm of each example's gradient in all the parameters that were used, in float64."""
    certain, summed, tokens = uses.zeros(), uses.zeros(), uses.zeros()
    for written in uses.written.values():
        axes = tuple(range(1, written.dim()))
        certain += torch.linalg.vector_norm(written, dim=axes, dtype=torch.float32).double().square()
    for name, lookup in uses.each_lookup():
        own = _of_lookup(lookup)
        if name in uses.products:
            summed += own + 2.0 * _of_both(lookup, uses.products[name][0])
            tokens += lookup.gradient.float().square().sum((1, 2))
        else:
            certain += own
    grams = _Grams()
    for _, product in uses.each_product():
        found, diagonal = grams.squared_norms(product)
        summed += found
        tokens += diagonal
    total = certain + summed
    # A norm that is far below the clipping norm need not be known: nothing is clipped.
    doubtful = (tokens > MOST_CANCELLED * total) & (total + tokens / MOST_CANCELLED > clip_norm**2)
    for example in doubtful.nonzero()[:, 0].tolist():
        total[example] = certain[example] + _written_out(uses, example)
    return total.clamp_min_(0.0)  # rounding may leave less than nothing


class _Grams:
    """Squared norms by Gram matrices; layers with the same inputs, as those of attention, share that of the inputs."""

    def __init__(self) -> None:
        self._inputs: Tensor | None = None
        self._blocks: list[Tensor] = []

    def squared_norms(self, product: Product) -> tuple[Tensor, Tensor]:
        """Of the examples' gradients, and the part of them that pairs of the same token have."""
        begins = range(0, product.inputs.shape[1], _BLOCK)
        if not is_same(self._inputs, product.inputs):
            self._inputs, self._blocks = product.inputs, [_gram(product.inputs, at) for at in begins]
        found = torch.zeros(len(product.inputs), dtype=torch.float64, device=product.inputs.device)
        diagonal = torch.zeros_like(found)
        for begin, of_inputs in zip(begins, self._blocks, strict=True):
            pairs = _gram(product.gradient, begin).mul_(of_inputs)
            square = pairs[:, :, : pairs.shape[1]]
            found += 2.0 * pairs.sum((1, 2)) - square.sum((1, 2))
            diagonal += square.diagonal(dim1=1, dim2=2).sum(1)
        return found, diagonal


def _gram(vectors: Tensor, begin: int) -> Tensor:
    """The inner products of a block of tokens with itself and all tokens after it."""
    later = vectors[:, begin:].float()
    return torch.bmm(later[:, :_BLOCK], later.transpose(1, 2))


def _of_lookup(lookup: Lookup) -> Tensor:
    """Squared norms of the gradients in a table: tokens that looked up the same row are added up first."""
    examples, length, width = lookup.gradient.shape
    keys = lookup.rows + torch.arange(examples, device=lookup.rows.device)[:, None] * (int(lookup.rows.max()) + 1)
    found, place = torch.unique(keys, return_inverse=True)
    rows = lookup.gradient.new_zeros(len(found), width, dtype=torch.float32)
    rows.index_add_(0, place.flatten(), lookup.gradient.float().reshape(-1, width))
    owner = torch.empty(len(found), dtype=torch.long, device=rows.device)
    owner[place.flatten()] = torch.arange(examples, device=rows.device).repeat_interleave(length)
    squares = rows.square().sum(1, dtype=torch.float64)
    return squares.new_zeros(examples).index_add_(0, owner, squares)


def _of_both(lookup: Lookup, product: Product) -> Tensor:
    """The inner products of both gradients of a tied table: the sum over tokens t, s of g_s[row_t] <d_t, a_s>.

    ``d_t`` is the gradient of what was looked up in row_t, and g_s that of the products with the table.
    """
    length = product.gradient.shape[1]
    entries = product.gradient.gather(2, lookup.rows[:, None, :].expand(-1, length, -1)).float()
    inner = torch.bmm(product.inputs.float(), lookup.gradient.float().transpose(1, 2))
    return entries.mul_(inner).sum((1, 2)).double()


def _written_out(uses: Uses, example: int) -> float:
    """The squared norm of one example in all matrices that were multiplied with, by the gradients themselves."""
    total = 0.0
    for name, product in uses.each_product():
        one = Product(
            product.inputs[example : example + 1], product.gradient[example : example + 1], product.transposed
        )
        written = one.written_out()
        for lookup in uses.lookups.get(name, []):
            add_rows(written, Lookup(lookup.rows[example : example + 1], lookup.gradient[example : example + 1]))
        total += float(torch.linalg.vector_norm(written)) ** 2
    return total


# Sums of gradients, each times a factor, from what they are computed from.

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
