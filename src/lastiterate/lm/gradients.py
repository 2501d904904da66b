"""Gradients of a language model's loss, one for each example, clipped and added up.

An example's loss is the mean over its own tokens of what the model loses on predicting them. Examples are padded on the
right: attention is causal, so no token of an example sees the padding, and its predictions count for nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

if TYPE_CHECKING:
    from lastiterate.lm.causal_model import CausalModel

Tensors = dict[str, Tensor]

MOST_AT_ONCE = 32  # more are no faster
_BUDGET = 2 * 2**30  # bytes for the gradients and activations of the examples that are computed at once


class ExampleGradients:
    """The gradients of a model in its parameters ``trained``; all others stay as the model has them.

    Args:
        microbatch: how many examples at once. None: as many as fit.
        checkpointing: compute activations twice instead of keeping them, one example at a time.

    Attributes:
        microbatch: how many examples are computed at once. It is halved when memory runs out, and 1 for models whose
            code cannot be mapped over examples.
    """

    def __init__(
        self,
        model: CausalModel,
        trained: Tensors,
        length: int,
        *,
        microbatch: int | None = None,
        checkpointing: bool = False,
    ) -> None:
        self._model = model
        if checkpointing:
            _checkpoint(model)
        fits = max(1, min(MOST_AT_ONCE, _BUDGET // _bytes_an_example(model, trained, length)))
        self.microbatch = 1 if checkpointing else microbatch or fits

    def with_model(self, model: CausalModel) -> ExampleGradients:
        """The same for a copy of the model."""
        other = copy.copy(self)
        other._model = model
        return other

    def loss(self, parameters: Tensors, tokens: Tensor, weights: Tensor) -> Tensor:
        """The loss of one example; ``weights[i]`` is what the prediction of token i + 1 counts."""
        logits = functional_call(self._model, parameters, (tokens[None],), {"use_cache": False}).logits
        return _loss(logits[0], tokens, weights)

    def losses(self, parameters: Tensors, tokens: Tensor, lengths: Tensor) -> Tensor:
        """The loss of every example."""
        found = []
        with torch.no_grad():
            for rows in _by_length(lengths, self.microbatch or 1):
                trimmed = tokens[rows, : int(lengths[rows].max())]
                logits = functional_call(self._model, parameters, (trimmed,), {"use_cache": False}).logits[:, :-1]
                each = torch.log_softmax(logits.float(), -1).gather(2, trimmed[:, 1:, None])[:, :, 0]
                found.append(-(each * _weights(lengths[rows], trimmed.shape[1])).sum(1))
            order = torch.cat(_by_length(lengths, self.microbatch or 1))
        return torch.cat(found)[torch.argsort(order)]

    def one(self, parameters: Tensors, tokens: Tensor) -> Tensors:
        """The gradient of one example that has no padding."""
        leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        weights = _weights(torch.tensor([len(tokens)]), len(tokens))[0].to(tokens.device)
        inside = {f"model.{name}": leaf for name, leaf in leaves.items()}
        found = functional_call(_Gradient(self._model), inside, (tokens, weights, list(leaves.values())))
        return {
            name: torch.zeros_like(leaf) if each is None else each
            for (name, leaf), each in zip(leaves.items(), found, strict=True)
        }

    def several(self, parameters: Tensors, tokens: Tensor, lengths: Tensor) -> Tensors:
        """The gradients of some examples at once, along a leading axis."""
        weights = _weights(lengths, tokens.shape[1])
        found: Tensors = vmap(grad(self.loss), (None, 0, 0))(parameters, tokens, weights)
        return found

    def clipped_sum(self, parameters: Tensors, tokens: Tensor, lengths: Tensor, clip_norm: float) -> Tensors:
        """The sum of the clipped gradients in float32: each has a norm over all parameters of at most ``clip_norm``."""
        while self.microbatch > 1:
            try:
                return self._sum(parameters, tokens, lengths, clip_norm, self.several)
            except torch.OutOfMemoryError:
                self.microbatch //= 2
            except RuntimeError:  # code that looks at its data; where it is a fault of another kind, it comes again
                self.microbatch = 1
        return self._sum(parameters, tokens, lengths, clip_norm, self._alone)

    def _alone(self, parameters: Tensors, tokens: Tensor, lengths: Tensor) -> Tensors:
        return {name: value[None] for name, value in self.one(parameters, tokens[0]).items()}

    def _sum(
        self,
        parameters: Tensors,
        tokens: Tensor,
        lengths: Tensor,
        clip_norm: float,
        gradients: Callable[[Tensors, Tensor, Tensor], Tensors],
    ) -> Tensors:
        total = {name: torch.zeros_like(value, dtype=torch.float32) for name, value in parameters.items()}
        for rows in _by_length(lengths, self.microbatch):
            found = gradients(parameters, tokens[rows, : int(lengths[rows].max())], lengths[rows])
            factors = clip_factors(found, clip_norm)
            for name, each in found.items():
                total[name] += torch.tensordot(factors, each.float(), 1)
        return total


class _Gradient(torch.nn.Module):
    """A module whose output is the gradient of the loss of the model inside it.

    ``functional_call`` puts parameters into a model only while it runs. Checkpointing computes activations once more on
    the way back and must find the same parameters then, so the gradient is computed inside the call.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, weights: Tensor, leaves: list[Tensor]) -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            loss = _loss(self.model(tokens[None], use_cache=False).logits[0], tokens, weights)
            return torch.autograd.grad(loss, leaves, allow_unused=True)


def _loss(logits: Tensor, tokens: Tensor, weights: Tensor) -> Tensor:
    found = torch.log_softmax(logits[:-1].float(), -1).gather(1, tokens[1:, None])[:, 0]
    return -(found * weights).sum()


def clip_factors(gradients: Tensors, clip_norm: float) -> Tensor:
    """What each example's gradient is multiplied by; the norm is over all parameters together."""
    squares = [
        torch.linalg.vector_norm(each.flatten(1), dim=1, dtype=torch.float32).square() for each in gradients.values()
    ]
    norms = torch.stack(squares).sum(0).sqrt()
    return torch.clamp(clip_norm / norms, max=1.0)  # 1 for a gradient of zero


def _weights(lengths: Tensor, width: int) -> Tensor:
    """What each prediction counts, [examples, width - 1]: the same for an example's own tokens, 0 for padding."""
    predictions = (lengths - 1)[:, None]
    counted = torch.arange(width - 1, device=lengths.device) < predictions
    return counted.float() / predictions.clamp_min(1)


def _by_length(lengths: Tensor, size: int) -> list[Tensor]:
    """The rows of the examples in groups of at most ``size``, sorted by length, so that there is little padding."""
    return list(torch.split(torch.argsort(lengths, stable=True), size)) if len(lengths) else []


def _bytes_an_example(model: CausalModel, trained: Tensors, length: int) -> int:
    """About how many bytes one example takes: its gradient, which is there twice, and the activations."""
    config = model.config.get_text_config()
    width, layers = config.hidden_size, config.num_hidden_layers
    inner = getattr(config, "intermediate_size", None) or 4 * width
    attention = 3 * getattr(config, "num_attention_heads", 1) * length
    activations = length * (layers * (12 * width + 4 * inner + attention) + 4 * config.vocab_size)
    return int(4 * (2 * sum(value.numel() for value in trained.values()) + activations))


def _checkpoint(model: CausalModel) -> None:
    """Make the model keep few activations. It does so in training mode only, where all dropout must be off."""
    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):  # of attention, of activations, of whole layers
                setattr(module, name, 0.0)
