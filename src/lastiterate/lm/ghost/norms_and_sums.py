"""Norms and weighted sums of per-example gradients, without storing the gradients themselves.

Let a_t be the input of a product with a matrix at token t, and g_t the gradient of the output. The gradient of the
matrix is the sum over tokens of g_t a_t'. Its squared norm is the sum over pairs of tokens t, s of <a_t, a_s>
<g_t, g_s>. In float32 this sum loses digits if the tokens' gradients cancel each other. In that case the gradient
itself is computed, one example at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lastiterate.lm.ghost.parameter_uses import Lookup, Product, Tensors, Uses, add_rows

# The rounding error of a Gram matrix entry is about 6e-8 of the squares of its tokens. If the squares of all tokens sum
# to 32 times the squared norm, the relative error of the norm is 1e-6.
MOST_CANCELLED = 32.0
_BLOCK = 64  # tokens per block; of a symmetric Gram matrix, only blocks on and above the diagonal are computed


def squared_norms(uses: Uses, clip_norm: float) -> Tensor:
    """Return the squared norm of each example's gradient over all used parameters, in float64."""
    certain, summed, tokens = torch.zeros(3, uses.examples, dtype=torch.float64, device=uses.device)
    for written in uses.written.values():
        axes = tuple(range(1, written.dim()))
        certain += torch.linalg.vector_norm(written, dim=axes, dtype=torch.float32).double().square()
    for name, (lookup,) in uses.lookups.items():
        own = _of_lookup(lookup)
        if name in uses.products:
            summed += own + 2.0 * _of_both(lookup, uses.products[name][0])
            tokens += lookup.gradient.float().square().sum((1, 2))
        else:
            certain += own
    of_inputs = _Shared(lambda inputs: [_gram(inputs, begin) for begin in range(0, inputs.shape[1], _BLOCK)])
    for (product,) in uses.products.values():
        found, diagonal = torch.zeros(2, uses.examples, dtype=torch.float64, device=uses.device)
        for block, gram in enumerate(of_inputs(product.inputs)):
            pairs = _gram(product.gradient, block * _BLOCK).mul_(gram)
            square = pairs[:, :, : pairs.shape[1]]
            found += 2.0 * pairs.sum((1, 2)) - square.sum((1, 2))
            diagonal += square.diagonal(dim1=1, dim2=2).sum(1)  # pairs of the same token
        summed += found
        tokens += diagonal
    total: Tensor = certain + summed
    # A norm far below the clipping norm need not be exact, because its gradient is not clipped.
    doubtful = (tokens > MOST_CANCELLED * total) & (total + tokens / MOST_CANCELLED > clip_norm**2)
    for example in doubtful.nonzero()[:, 0].tolist():
        total[example] = certain[example] + _written_out(uses, example)
    return total.clamp_min_(0.0)  # rounding may give a negative number


class _Shared:
    """A function of a layer's inputs, computed once for all layers that have the same inputs, as in attention."""

    def __init__(self, compute: Callable[[Tensor], Any]) -> None:
        self._compute = compute
        self._known: tuple[Any, ...] = (None, None)

    def __call__(self, inputs: Tensor) -> Any:
        # Autograd may return one tensor as two objects, so addresses are compared. Keeping it prevents reuse.
        place = inputs.data_ptr(), inputs.shape, inputs.stride(), inputs.dtype
        if self._known[0] != place:
            self._known = place, self._compute(inputs), inputs
        return self._known[1]


def _gram(vectors: Tensor, begin: int) -> Tensor:
    later = vectors[:, begin:].float()
    return torch.bmm(later[:, :_BLOCK], later.transpose(1, 2))


def _of_lookup(lookup: Lookup) -> Tensor:
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
    """Return the inner product of a tied table's two gradients: the sum over tokens t, s of g_s[row_t] <d_t, a_s>.

    ``d_t`` is the gradient of token t's row. At token s, ``a_s`` is the input of the product with the table, and
    ``g_s`` is the gradient of its output.
    """
    length = product.gradient.shape[1]
    entries = product.gradient.gather(2, lookup.rows[:, None, :].expand(-1, length, -1)).float()
    inner = torch.bmm(product.inputs.float(), lookup.gradient.float().transpose(1, 2))
    return entries.mul_(inner).sum((1, 2)).double()


def _written_out(uses: Uses, example: int) -> float:
    total = 0.0
    one = slice(example, example + 1)
    for name, (product,) in uses.products.items():
        written = Product(product.inputs[one], product.gradient[one], product.transposed).written_out()
        for lookup in uses.lookups.get(name, []):
            add_rows(written, Lookup(lookup.rows[one], lookup.gradient[one]))
        total += float(torch.linalg.vector_norm(written)) ** 2
    return total


def add_weighted(total: Tensors, parameters: Tensors, uses: Uses, factors: Tensor) -> None:
    """Add each example's gradient times its factor to ``total``. Sums that are missing in ``total`` start at zero.

    To save memory, sums are created only when they are needed, and uses are freed as soon as they are added.
    """

    def of(name: str) -> Tensor:
        if name not in total:
            total[name] = torch.zeros_like(parameters[name], dtype=torch.float32)
        return total[name]

    for name in list(uses.written):
        of(name).add_(_weighted_sum(uses.written.pop(name).float(), factors))
    for name in list(uses.lookups):
        (lookup,) = uses.lookups.pop(name)
        weighted = lookup.gradient.float() * factors[:, None, None]
        of(name).index_add_(0, lookup.rows.flatten(), weighted.flatten(0, 1))
    each = factors[:, None, None]
    weighted_inputs = _Shared(lambda inputs: (inputs.float() * each).flatten(0, 1))
    for name in list(uses.products):
        (product,) = uses.products.pop(name)
        left, right = product.gradient.float(), product.inputs
        if left.shape[2] < right.shape[2]:  # multiply the factors into the narrower matrix
            left, right = (left * each).flatten(0, 1), right.float().flatten(0, 1)
        else:
            left, right = left.flatten(0, 1), weighted_inputs(right)
        if product.transposed:
            left, right = right, left
        if name in total:
            total[name].addmm_(left.t(), right)
        else:
            total[name] = left.t() @ right


def _weighted_sum(written: Tensor, factors: Tensor) -> Tensor:
    if written.dim() == 3 and not written.is_contiguous():  # transposed: sum in memory order, without a copy
        lying = written.transpose(1, 2)
        return (factors @ lying.flatten(1)).view(lying.shape[1:]).t()
    return (factors @ written.flatten(1)).view(written.shape[1:])
