"""What a model loses on predicting the tokens of examples, and the gradient of that in its logits.

The same as cross-entropy in PyTorch, but that no copy of the logits is kept: with many tokens in the vocabulary these are
the largest arrays of all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def token_loss(logits: Tensor, tokens: Tensor, weights: Tensor) -> Tensor:
    """The sum over all examples; ``weights[b, i]`` is what the prediction of token i + 1 of example b counts.

    Args:
        logits: [examples, tokens, vocabulary].
        tokens: [examples, tokens].
        weights: [examples, tokens - 1].
    """
    targets = torch.nn.functional.pad(tokens[:, 1:], (0, 1))
    counted = torch.nn.functional.pad(weights, (0, 1))
    found: Tensor = _TokenLoss.apply(logits, targets, counted)  # type: ignore[no-untyped-call]
    return found


def token_weights(lengths: Tensor, width: int) -> Tensor:
    """What each prediction counts, [examples, width - 1]: the same for an example's own tokens, 0 for padding."""
    predictions = (lengths - 1)[:, None]
    counted = torch.arange(width - 1, device=lengths.device) < predictions
    return counted.float() / predictions.clamp_min(1)


def by_length(lengths: Tensor, size: int) -> list[Tensor]:
    """The rows of the examples in groups of at most ``size``, sorted by length, so that there is little padding."""
    return list(torch.split(torch.argsort(lengths, stable=True), size)) if len(lengths) else []


class _TokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        exact = logits.float()
        normal = torch.logsumexp(exact, -1)
        ctx.save_for_backward(logits, targets, weights, normal)
        picked = exact.gather(-1, targets[..., None])[..., 0]
        return ((normal - picked) * weights).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        logits, targets, weights, normal = ctx.saved_tensors
        weights = (weights * gradient)[..., None]
        found = torch.sub(logits.float(), normal[..., None]).exp_().mul_(weights)
        found.scatter_add_(-1, targets[..., None], -weights)
        return found.to(logits.dtype), None, None
