"""Norms and weighted sums of per-example gradients that are not written out.

The gradient in a matrix is the sum over tokens of g_t a_t'. Its squared norm is the sum over pairs of tokens t, s of
<a_t, a_s> <g_t, g_s>: the entrywise product of two Gram matrices, summed. In float32 this sum loses digits if the
tokens' gradients cancel each other. In that case the gradient is written out, one example at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lastiterate.lm.ghost.parameter_uses import Lookup, Product, Uses, add_rows, is_same

# Rounding an entry of a Gram matrix costs about 6e-8 of the squares of its tokens. If the squares of all tokens sum to
# 32 times the squared norm, the relative error of the norm is still 1e-6.
MOST_CANCELLED = 32.0
_BLOCK = 64  # tokens: Gram matrices are symmetric, so only blocks on and above the diagonal are computed


def squared_norms(uses: Uses, clip_norm: float) -> Tensor:
    """Return the squared norm of each example's gradient in all parameters that were used, in float64."""
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
    # A norm far below the clipping norm need not be exact, because nothing is clipped.
    doubtful = (tokens > MOST_CANCELLED * total) & (total + tokens / MOST_CANCELLED > clip_norm**2)
    for example in doubtful.nonzero()[:, 0].tolist():
        total[example] = certain[example] + _written_out(uses, example)
    return total.clamp_min_(0.0)  # rounding may give a negative number


class _Grams:
    """Squared norms by Gram matrices. Layers with the same inputs, as in attention, share the inputs' Gram matrix."""

    def __init__(self) -> None:
        self._inputs: Tensor | None = None
        self._blocks: list[Tensor] = []

    def squared_norms(self, product: Product) -> tuple[Tensor, Tensor]:
        """Return the squared norms of the examples' gradients, and the part of them from pairs of the same token."""
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
    """Return the inner products of a block of tokens with itself and all tokens after it."""
    later = vectors[:, begin:].float()
    return torch.bmm(later[:, :_BLOCK], later.transpose(1, 2))


def _of_lookup(lookup: Lookup) -> Tensor:
    """Return squared norms of the gradients in a table. Gradients of tokens with the same row are summed first."""
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
    """Return the inner products of both gradients of a tied table: the sum over tokens t, s of g_s[row_t] <d_t, a_s>.

    ``d_t`` is the gradient of the row looked up by token t. ``g_s`` is the gradient of the product with the table, and
    ``a_s`` its input.
    """
    length = product.gradient.shape[1]
    entries = product.gradient.gather(2, lookup.rows[:, None, :].expand(-1, length, -1)).float()
    inner = torch.bmm(product.inputs.float(), lookup.gradient.float().transpose(1, 2))
    return entries.mul_(inner).sum((1, 2)).double()


def _written_out(uses: Uses, example: int) -> float:
    """Return the squared norm of one example's gradient in all multiplied matrices, from the gradients themselves."""
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


# Weighted sums: the gradient of each example times its factor, computed from the uses.

Tensors = dict[str, Tensor]


def add_weighted(total: Tensors, parameters: Tensors, uses: Uses, factors: Tensor) -> None:
    """Add each example's gradient times its factor to ``total``. Missing sums start as zeros like ``parameters``.

    A sum takes memory only when it is needed, and uses are freed as soon as they are added.
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
    """Return the sum of written out gradients, each times its factor."""
    if written.dim() == 3 and not written.is_contiguous():  # transposed: sums in the order of memory, without a copy
        lying = written.transpose(1, 2)
        return (factors @ lying.flatten(1)).view(lying.shape[1:]).t()
    return (factors @ written.flatten(1)).view(written.shape[1:])


class _Weighted:
    """Gradients and inputs of products, with the factors applied to the narrower of the two."""

    def __init__(self, factors: Tensor) -> None:
        self._factors = factors[:, None, None]
        self._inputs: Tensor | None = None
        self._weighted: Tensor | None = None

    def both(self, product: Product) -> tuple[Tensor, Tensor]:
        """Return both as [tokens of all examples, width]. Layers with the same inputs share the weighted inputs."""
        inputs, gradient = product.inputs, product.gradient
        if gradient.shape[2] < inputs.shape[2]:
            return (gradient.float() * self._factors).flatten(0, 1), inputs.float().flatten(0, 1)
        if self._weighted is None or not is_same(self._inputs, inputs):
            self._inputs, self._weighted = inputs, (inputs.float() * self._factors).flatten(0, 1)
        return gradient.float().flatten(0, 1), self._weighted
