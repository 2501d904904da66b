"""Per-example gradients of a language model's loss, clipped and summed, and the choice of ghost parameters.

An example's loss is the mean cross-entropy of its tokens. Padding is on the right and does not affect earlier tokens.
The per-example gradients of a ghost parameter are never stored as a whole; clipped sums are computed without them.
``_choose`` accepts a parameter only if this gives the same gradients as autograd on two random examples, in float64.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.overrides import TorchFunctionMode

from lastiterate.common.types import Foreign
from lastiterate.lm.ghost.norms_and_sums import add_weighted, squared_norms
from lastiterate.lm.ghost.parameter_uses import Tensors as Tensors
from lastiterate.lm.ghost.parameter_uses import UnforeseenUse, Uses
from lastiterate.lm.ghost.watching import follow
from lastiterate.lm.tokens import CausalModel, by_length, token_weights

_LENGTH = 6  # tokens of the longer of the two random examples
_MOVED = 0.02  # standard deviation of a random change of parameters, because gradients vanish where an adapter starts
# Tolerances, as fractions of the largest entry of a parameter's gradient and of all gradients. In float64 a rounding is
# 1e-16; 30 layers amplify its effect to 1e-12. In float32 they amplify it to 1e-3, as large as that of a wrong formula.
_RELATIVE, _ABSOLUTE = 1e-7, 1e-10


def _agrees(uses: Uses, example: int, name: str, expected: Tensor, largest: float) -> bool:
    norm = float(squared_norms(uses, 0.0)[example].sqrt())
    factors = torch.zeros(uses.examples, dtype=torch.float64, device=uses.device)
    factors[example] = 1.0
    found: Tensors = {}
    add_weighted(found, {name: expected}, uses, factors)
    if name not in found:
        return not bool(expected.any())
    bound = _RELATIVE * _largest(expected) + _ABSOLUTE * largest
    near = _largest(found[name].sub_(expected)) <= bound
    return near and abs(norm - float(expected.norm())) <= bound * expected.numel() ** 0.5


def _largest(value: Tensor) -> float:
    return float(torch.linalg.vector_norm(value, float("inf")))


def _exact(value: Tensor) -> Tensor:
    return value.detach().double() if value.is_floating_point() else value.detach()


class _InFloat64(TorchFunctionMode):
    """A function mode that computes in float64 what models and sums compute in float32, such as softmax and norms."""

    def __torch_function__(
        self, func: Callable[..., Foreign], types: object, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Foreign:
        given = {key: _float64(value) for key, value in (kwargs or {}).items()}
        called: Callable[..., Foreign] = torch.Tensor.double if func is torch.Tensor.float else func
        return called(*map(_float64, args), **given)


def _float64(given: object) -> object:
    return torch.float64 if given is torch.float32 else given


MOST_AT_ONCE = 32  # larger batches are no faster
_BUDGET = 2 * 2**30  # bytes for gradients and activations of all examples computed at once


class ExampleGradients:
    """Gradients with respect to the parameters ``trained``, for examples of at most ``length`` tokens.

    ``ghosts`` are the ghost parameters; with ``written_out`` there are none. ``microbatch`` is the number of examples
    computed at once, by default as many as fit in memory. It is halved when memory runs out. It is 1 for models that
    ``vmap`` does not support. ``checkpointing`` saves memory: activations are computed twice, one example at a time.
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
            ghosts = self._choose(trained, length)
            sizes = {name: value.numel() for name, value in trained.items()}
            if sum(sizes[name] for name in ghosts) > 0.5 * sum(sizes.values()):  # otherwise there is little to gain
                self.ghosts = ghosts
        written = sum(value.numel() for name, value in trained.items() if name not in self.ghosts)
        fits = max(1, min(MOST_AT_ONCE, _BUDGET // _bytes_an_example(model, written, length)))
        self.microbatch = 1 if checkpointing else microbatch or fits
        self._one_by_one = False

    def _choose(self, trained: Tensors, length: int) -> frozenset[str]:
        try:
            with _InFloat64():
                return self._understood(trained, length)
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError):
            return frozenset()  # the model may accept only one example or no float64; other errors occur again later

    def _understood(self, trained: Tensors, length: int) -> frozenset[str]:
        named = dict(self._model.named_parameters()) | dict(self._model.named_buffers())
        others = {name: _exact(value) for name, value in named.items() if name not in trained}
        device = next(iter(trained.values())).device
        source = torch.Generator().manual_seed(0)
        watched = {
            name: _exact(value) + _MOVED * torch.randn(value.shape, generator=source).to(device)
            for name, value in trained.items()
        }
        long = min(length, _LENGTH)
        lengths = torch.tensor([long, max(2, long - 2)], device=device)
        rows = self._model.get_input_embeddings().weight.shape[0]
        tokens = torch.randint(rows, (2, long), generator=source).to(device)
        tokens[:, 1] = tokens[:, 0]  # a repeated token: one row of the table is used twice
        understood, uses, weights = set(watched), None, token_weights(lengths, long)
        while uses is None:
            part = {name: value for name, value in watched.items() if name in understood}
            try:
                uses = follow(self._model, part, {**others, **watched}, tokens, weights)
            except UnforeseenUse as found:
                understood -= found.names
        for example, count in enumerate(lengths.tolist()):
            expected = self.one(watched, tokens[example, :count], others)
            largest = max(map(_largest, expected.values()))
            understood = {
                name for name in understood if _agrees(uses.only(name), example, name, expected[name], largest)
            }
        return frozenset(understood)

    def with_model(self, model: CausalModel) -> ExampleGradients:
        other = copy.copy(self)
        other._model = model
        return other

    def losses(self, parameters: Tensors, tokens: Tensor, lengths: Tensor) -> Tensor:
        found = []
        with torch.no_grad():
            for rows in by_length(lengths, self.microbatch):
                trimmed = tokens[rows, : int(lengths[rows].max())]
                logits = functional_call(self._model, parameters, (trimmed,), {"use_cache": False}).logits[:, :-1]
                each = torch.log_softmax(logits.float(), -1).gather(2, trimmed[:, 1:, None])[:, :, 0]
                found.append(-(each * token_weights(lengths[rows], trimmed.shape[1])).sum(1))
            order = torch.cat(by_length(lengths, self.microbatch))
        return torch.cat(found)[torch.argsort(order)]

    def one(self, parameters: Tensors, tokens: Tensor, fixed: Tensors | None = None) -> Tensors:
        """Return the gradient of one example without padding. The parameters ``fixed`` get no gradient."""
        leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        weights = token_weights(torch.tensor([len(tokens)]), len(tokens))[0].to(tokens.device)
        inside = {f"model.{name}": leaf for name, leaf in {**(fixed or {}), **leaves}.items()}
        found = functional_call(_Gradient(self._model), inside, (tokens, weights, list(leaves.values())))
        pairs = zip(leaves.items(), found, strict=True)
        return {name: torch.zeros_like(leaf) if each is None else each for (name, leaf), each in pairs}

    def several(self, parameters: Tensors, tokens: Tensor, lengths: Tensor, fixed: Tensors | None = None) -> Tensors:
        weights = token_weights(lengths, tokens.shape[1])

        def loss(varied: Tensors, tokens: Tensor, weights: Tensor) -> Tensor:
            inside = {**(fixed or {}), **varied}
            logits = functional_call(self._model, inside, (tokens[None],), {"use_cache": False}).logits
            return _loss(logits[0], tokens, weights)

        found: Tensors = vmap(grad(loss), (None, 0, 0))(parameters, tokens, weights)
        return found

    def clipped_sum(self, parameters: Tensors, tokens: Tensor, lengths: Tensor, clip_norm: float) -> Tensors:
        """Return the sum of clipped gradients in float32. The norm is over all parameters together."""
        while True:
            try:
                return self._sum(parameters, tokens, lengths, clip_norm)
            except torch.OutOfMemoryError:
                if self.microbatch == 1:
                    raise
                self.microbatch //= 2
            except UnforeseenUse:
                self.ghosts = frozenset()
            except RuntimeError:  # vmap refuses data-dependent code; any other error occurs again
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
    """A module that contains a model and returns the gradient of its loss.

    ``functional_call`` replaces a model's parameters only during the call. With checkpointing, the backward pass needs
    the same parameters, so it must run inside the call.
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
    """Return each example's clipping factor. Norms are over all parameters together."""
    flat = [each.flatten(1) for each in gradients.values()]
    squares = [torch.linalg.vector_norm(each, dim=1, dtype=torch.float32).square() for each in flat]
    norms = torch.stack(squares).sum(0).sqrt()
    return torch.clamp(clip_norm / norms, max=1.0)  # 1 for a gradient of zero


def _bytes_an_example(model: CausalModel, written: int, length: int) -> int:
    config = model.config.get_text_config()
    width, layers = config.hidden_size, config.num_hidden_layers
    inner = getattr(config, "intermediate_size", None) or 4 * width
    attention = 3 * getattr(config, "num_attention_heads", 1) * length
    activations = length * (layers * (12 * width + 4 * inner + attention) + 4 * config.vocab_size)
    return int(4 * (2 * written + activations))


def _checkpoint(model: CausalModel) -> None:
    """Turn on activation checkpointing. It needs training mode, so all dropout is turned off."""
    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):  # dropout of attention, activations or whole layers
                setattr(module, name, 0.0)
