"""One pass of a model forwards and backwards, in which all uses of its parameters are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import functional_call

from lastiterate.lm.ghost.uses import UnforeseenUse, Uses
from lastiterate.lm.ghost.watching import Watch
from lastiterate.lm.token_loss import logit_gradient

if TYPE_CHECKING:
    from lastiterate.lm.causal_model import CausalModel

Tensors = dict[str, Tensor]


def follow(model: CausalModel, watched: Tensors, others: Tensors, tokens: Tensor, weights: Tensor) -> Uses:
    """The uses of the parameters ``watched``, with the gradients of the sum of the examples' losses.

    Args:
        watched, others: parameters and buffers that are put into the model.
        tokens: of the examples, [examples, tokens].
        weights: what each prediction counts.
    """
    leaves = {name: value.detach().requires_grad_(value.dim() == 1) for name, value in watched.items()}
    uses = Uses(len(tokens), tokens.device)
    watch = Watch(leaves, tokens.shape, uses)
    with torch.enable_grad():
        with watch:
            logits = functional_call(model, {**others, **leaves}, (tokens,), {"use_cache": False}).logits
        if watch.unforeseen:
            raise UnforeseenUse(watch.unforeseen)
        if logits.requires_grad:
            gradient = logit_gradient(logits, tokens, weights, overwrite=_is_product(logits))
            torch.autograd.grad(logits, watch.anchor, gradient, allow_unused=True)
    uses.join()
    return uses


def _is_product(logits: Tensor) -> bool:
    """Whether the logits are the outcome of a product as it is, which the way back does not look at."""
    node = logits.grad_fn
    while node is not None and node.name() in ("ViewBackward0", "UnsafeViewBackward0"):
        node = node.next_functions[0][0]
    return node is not None and node.name() in ("MultiplyBackward", "MultiplyFixedBackward")
