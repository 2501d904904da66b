"""Per-example gradients of a language model's loss, clipped and summed, and the choice of ghost parameters.

An example's loss is the mean cross-entropy of its own tokens. Examples are padded on the right. Attention is causal, so
no token of an example sees the padding, and predictions of padding have weight 0. Ghost parameters are those whose
per-example gradients are never written out. ``choose`` accepts a parameter only if its ghost gradient agrees with
autograd on two short examples of random tokens, so nothing is assumed about a model's code.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from lastiterate.lm.ghost.norms_and_sums import add_weighted, squared_norms
from lastiterate.lm.ghost.parameter_uses import UnforeseenUse, Uses
from lastiterate.lm.ghost.watching import follow
from lastiterate.lm.tokens import by_length, token_weights

if TYPE_CHECKING:
    from lastiterate.lm.tokens import CausalModel


# Ghost parameters: chosen by comparing their gradients with autograd.

_LENGTH = 6  # tokens of the longer example
_MOVED = 0.02  # standard deviation of a random change of parameters: an adapter starts at 0, where gradients vanish
_RELATIVE = 1e-4  # times the largest entry of a parameter's gradient: hundreds of roundings of float32
_ABSOLUTE = 1e-6  # times the largest entry of all gradients: some gradients are only rounding errors


def choose(model: CausalModel, trained: Tensors, length: int) -> frozenset[str]:
    """Return the names of the trained parameters whose gradients can be computed without being written out.

    Args:
        length: the largest number of tokens of an example.
    """
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    others = {name: _exact(value) for name, value in named.items() if name not in trained}
    device = next(iter(trained.values())).device
    source = torch.Generator().manual_seed(0)
    watched = {
        name: _exact(value) + _MOVED * torch.randn(value.shape, generator=source).to(device)
        for name, value in trained.items()
    }
    long = min(length, _LENGTH)
    lengths = [long, max(2, long - 2)]
    rows = model.get_input_embeddings().weight.shape[0]
    tokens = torch.randint(rows, (2, long), generator=source).to(device)
    tokens[:, 1] = tokens[:, 0]  # looks up one row of the table twice
    weights = torch.zeros(2, long - 1, device=device)
    for example, count in enumerate(lengths):
        weights[example, : count - 1] = 1.0 / (count - 1)
    try:
        uses, understood = _follow_all(model, watched, others, tokens, weights)
        for example, count in enumerate(lengths):
            expected = _alone(model, watched, others, tokens[example, :count])
            largest = max(float(value.abs().max()) for value in expected.values())
            understood = {
                name for name in understood if _agrees(uses.only(name), example, name, expected[name], largest)
            }
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError):
        return frozenset()  # code that takes one example only; a real fault is raised again later
    return frozenset(understood)


def _follow_all(
    model: CausalModel, watched: Tensors, others: Tensors, tokens: Tensor, weights: Tensor
) -> tuple[Uses, set[str]]:
    """Return the uses of all parameters whose uses are known, and the names of these parameters."""
    understood = set(watched)
    while True:
        rest = {name: value for name, value in watched.items() if name not in understood}
        part = {name: value for name, value in watched.items() if name in understood}
        try:
            return follow(model, part, others | rest, tokens, weights), understood
        except UnforeseenUse as found:
            understood -= found.names


def _alone(model: CausalModel, watched: Tensors, others: Tensors, tokens: Tensor) -> Tensors:
    """Return the gradient of one example by autograd."""
    leaves = {name: value.detach().requires_grad_() for name, value in watched.items()}
    with torch.enable_grad():
        logits = functional_call(model, others | leaves, (tokens[None],), {"use_cache": False}).logits[0, :-1]
        loss = torch.nn.functional.cross_entropy(logits, tokens[1:])
        found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if each is None else each
        for (name, leaf), each in zip(leaves.items(), found, strict=True)
    }


def _agrees(uses: Uses, example: int, name: str, expected: Tensor, largest: float) -> bool:
    """Return whether norm and gradient of one example in one parameter agree with autograd."""
    norm = float(squared_norms(uses, 0.0)[example].sqrt())
    factors = torch.zeros(uses.examples, device=uses.device)
    factors[example] = 1.0
    found: Tensors = {}
    add_weighted(found, {name: expected}, uses, factors)
    if name not in found:
        return not bool(expected.any())
    bound = _RELATIVE * float(expected.abs().max()) + _ABSOLUTE * largest
    near = float((found[name] - expected).abs().max()) <= bound
    return near and abs(norm - float(expected.norm())) <= bound * expected.numel() ** 0.5


def _exact(value: Tensor) -> Tensor:
    return value.detach().float() if value.is_floating_point() else value.detach()


Tensors = dict[str, Tensor]

MOST_AT_ONCE = 32  # larger batches are no faster
_BUDGET = 2 * 2**30  # bytes for the gradients and activations of the examples that are computed at once


class ExampleGradients:
    """Gradients of a model in its parameters ``trained``; the other parameters stay fixed.

    Args:
        microbatch: number of examples at once. None: as many as fit in memory.
        checkpointing: compute activations twice instead of keeping them, one example at a time.
        written_out: write out the gradients of every example in all parameters. Otherwise they are written out only in
            parameters whose use by the model is not known.

    Attributes:
        microbatch: number of examples that are computed at once. It is halved when memory runs out. It is 1 for models
            whose code ``vmap`` cannot map over examples.
        ghosts: the parameters whose gradients are not written out.
    """

    def __init__(
        self,
        model: CausalModel,
        trained: Tensors,
        length: int,
        *,
        microbatch: int | None = None,
        checkpointing: bool = False,
        written_out: bool = False,
    ) -> None:
        self._model = model
        self.ghosts: frozenset[str] = frozenset()
        if checkpointing:
            _checkpoint(model)
        elif not written_out:
            self.ghosts = _worthwhile(choose(model, trained, length), trained)
        written = sum(value.numel() for name, value in trained.items() if name not in self.ghosts)
        fits = max(1, min(MOST_AT_ONCE, _BUDGET // _bytes_an_example(model, written, length)))
        self.microbatch = 1 if checkpointing else microbatch or fits
        self._one_by_one = False

    def with_model(self, model: CausalModel) -> ExampleGradients:
        """Return the same for a copy of the model."""
        other = copy.copy(self)
        other._model = model
        return other

    def loss(self, parameters: Tensors, tokens: Tensor, weights: Tensor) -> Tensor:
        """Return the loss of one example; ``weights[i]`` is the weight of the prediction of token i + 1."""
        logits = functional_call(self._model, parameters, (tokens[None],), {"use_cache": False}).logits
        return _loss(logits[0], tokens, weights)

    def losses(self, parameters: Tensors, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Return the loss of every example."""
        found = []
        with torch.no_grad():
            for rows in by_length(lengths, self.microbatch or 1):
                trimmed = tokens[rows, : int(lengths[rows].max())]
                logits = functional_call(self._model, parameters, (trimmed,), {"use_cache": False}).logits[:, :-1]
                each = torch.log_softmax(logits.float(), -1).gather(2, trimmed[:, 1:, None])[:, :, 0]
                found.append(-(each * token_weights(lengths[rows], trimmed.shape[1])).sum(1))
            order = torch.cat(by_length(lengths, self.microbatch or 1))
        return torch.cat(found)[torch.argsort(order)]

    def one(self, parameters: Tensors, tokens: Tensor, fixed: Tensors | None = None) -> Tensors:
        """Return the gradient of one example without padding. No gradient is computed in the parameters ``fixed``."""
        leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        weights = token_weights(torch.tensor([len(tokens)]), len(tokens))[0].to(tokens.device)
        inside = {f"model.{name}": leaf for name, leaf in {**(fixed or {}), **leaves}.items()}
        found = functional_call(_Gradient(self._model), inside, (tokens, weights, list(leaves.values())))
        return {
            name: torch.zeros_like(leaf) if each is None else each
            for (name, leaf), each in zip(leaves.items(), found, strict=True)
        }

    def several(self, parameters: Tensors, tokens: Tensor, lengths: Tensor, fixed: Tensors | None = None) -> Tensors:
        """Return the gradients of several examples, along a leading axis."""
        weights = token_weights(lengths, tokens.shape[1])

        def loss(varied: Tensors, tokens: Tensor, weights: Tensor) -> Tensor:
            return self.loss({**(fixed or {}), **varied}, tokens, weights)

        found: Tensors = vmap(grad(loss), (None, 0, 0))(parameters, tokens, weights)
        return found

    def clipped_sum(self, parameters: Tensors, tokens: Tensor, lengths: Tensor, clip_norm: float) -> Tensors:
        """Return the sum of clipped gradients in float32. Each has a norm over all parameters of at most ``clip_norm``.

        It halves the microbatch when memory runs out, and writes gradients out one by one if the model's code requires
        it.
        """
        while True:
            try:
                return self._sum(parameters, tokens, lengths, clip_norm)
            except torch.OutOfMemoryError:
                if self.microbatch == 1:
                    raise
                self.microbatch //= 2
            except UnforeseenUse:
                self.ghosts = frozenset()
            except RuntimeError:  # data-dependent code, which vmap refuses; any other fault is raised again
                if self._one_by_one or self.microbatch == 1 or self.ghosts.issuperset(parameters):
                    raise
                self._one_by_one = True
                if not self.ghosts:
                    self.microbatch = 1

    def _sum(self, parameters: Tensors, tokens: Tensor, lengths: Tensor, clip_norm: float) -> Tensors:
        total: Tensors = {}
        ghosts = {name: value for name, value in parameters.items() if name in self.ghosts}
        rest = {name: value for name, value in parameters.items() if name not in self.ghosts}
        for rows in by_length(lengths, self.microbatch):
            trimmed, counts = tokens[rows, : int(lengths[rows].max())], lengths[rows]
            written = self._written_out(rest, trimmed, counts, ghosts) if rest else {}
            uses = Uses(len(rows), tokens.device)
            if ghosts:
                uses = follow(self._model, ghosts, rest, trimmed, token_weights(counts, trimmed.shape[1]))
            uses.written.update(written)
            norms = squared_norms(uses, clip_norm).sqrt()
            factors = torch.clamp(clip_norm / norms, max=1.0).float()  # 1 for a gradient of zero
            add_weighted(total, parameters, uses, factors)
        return {
            name: total.pop(name) if name in total else torch.zeros_like(value, dtype=torch.float32)
            for name, value in parameters.items()
        }

    def _written_out(self, parameters: Tensors, tokens: Tensor, lengths: Tensor, fixed: Tensors) -> Tensors:
        if self.microbatch > 1 and not self._one_by_one:
            return self.several(parameters, tokens, lengths, fixed)
        each = [self.one(parameters, row[:length], fixed) for row, length in zip(tokens, lengths.tolist(), strict=True)]
        if len(each) == 1:  # avoids a copy
            return {name: value[None] for name, value in each[0].items()}
        return {name: torch.stack([gradient[name] for gradient in each]) for name in parameters}


class _Gradient(torch.nn.Module):
    """A module whose output is the gradient of the loss of the model inside it.

    ``functional_call`` replaces a model's parameters only during the call. Checkpointing computes activations again in
    the backward pass and needs the same parameters then, so the gradient is computed inside the call.
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
    """Return each example's clipping factor. The norm is over all parameters together."""
    squares = [
        torch.linalg.vector_norm(each.flatten(1), dim=1, dtype=torch.float32).square() for each in gradients.values()
    ]
    norms = torch.stack(squares).sum(0).sqrt()
    return torch.clamp(clip_norm / norms, max=1.0)  # 1 for a gradient of zero


def _worthwhile(understood: frozenset[str], trained: Tensors) -> frozenset[str]:
    """Return the ghost parameters, or none if most parameters would be written out in a second pass anyway."""
    sizes = {name: value.numel() for name, value in trained.items()}
    share = sum(sizes[name] for name in understood) / sum(sizes.values())
    return understood if share > 0.5 else frozenset()


def _bytes_an_example(model: CausalModel, written: int, length: int) -> int:
    """Estimate the bytes of one example: its activations, and two copies of its written out gradients."""
    config = model.config.get_text_config()
    width, layers = config.hidden_size, config.num_hidden_layers
    inner = getattr(config, "intermediate_size", None) or 4 * width
    attention = 3 * getattr(config, "num_attention_heads", 1) * length
    activations = length * (layers * (12 * width + 4 * inner + attention) + 4 * config.vocab_size)
    return int(4 * (2 * written + activations))


def _checkpoint(model: CausalModel) -> None:
    """Turn on activation checkpointing. It works only in training mode, so all dropout is turned off."""
    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):  # dropout of attention, activations or whole layers
                setattr(module, name, 0.0)
