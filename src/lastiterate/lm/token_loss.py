"""What each token of an example counts, and the gradient of the examples' losses in a model's logits."""

from __future__ import annotations

import torch
from torch import Tensor


def logit_gradient(logits: Tensor, tokens: Tensor, weights: Tensor, *, overwrite: bool = False) -> Tensor:
    """The gradient of the sum of all losses, as cross-entropy has it, without its copies of the logits.

    Args:
        logits: [examples, tokens, vocabulary].
        tokens: [examples, tokens].
        weights: what the prediction of the next token counts, [examples, tokens - 1].
        overwrite: whether the gradient may take the place of the logits.
    """
    targets = torch.nn.functional.pad(tokens[:, 1:], (0, 1))[..., None]
    counted = torch.nn.functional.pad(weights, (0, 1))[..., None]
    found = logits.data if overwrite else torch.empty_like(logits)
    for example, of_one in enumerate(logits.data):  # one at a time stays in the cache
        part = torch.softmax(of_one.float(), -1).mul_(counted[example])
        found[example] = part.scatter_add_(-1, targets[example], -counted[example])
    return found


def token_weights(lengths: Tensor, width: int) -> Tensor:
    """What each prediction counts, [examples, width - 1]: the same for an example's own tokens, 0 for padding."""
    predictions = (lengths - 1)[:, None]
    counted = torch.arange(width - 1, device=lengths.device) < predictions
    return counted.float() / predictions.clamp_min(1)


def by_length(lengths: Tensor, size: int) -> list[Tensor]:
    """The rows of the examples in groups of at most ``size``, sorted by length, so that there is little padding."""
    return list(torch.split(torch.argsort(lengths, stable=True), size)) if len(lengths) else []
