"""Gradients of a language model's loss, one for each example, clipped and added up.

An example's loss is the mean over its own tokens of what the model loses on predicting them. Examples are padded on the
right: attention is causal, so no token of an example sees the padding, and its predictions count for nothing.
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


# For which parameters of a model gradients need not be written out: those for which autograd says the same.
#
# Two short examples of random tokens go through the model, and the gradients in each parameter are compared with
# those that autograd finds for either example alone. So whatever a model's code does, nothing is taken for granted.

_LENGTH = 6  # tokens of the longer example
_MOVED = 0.02  # by which parameters are moved at random: an adapter begins with zeros, whose gradients tell nothing
_RELATIVE = 1e-4  # of a parameter's largest entry, hundreds of roundings of float32
_ABSOLUTE = 1e-6  # of all parameters' largest entry: some gradients are nothing but rounding


def choose(model: CausalModel, trained: Tensors, length: int) -> frozenset[str]:
    """The names of those trained parameters whose gradients are found without being written out.

    Args:
        length: how many tokens an example may have at most.
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
    tokens[:, 1] = tokens[:, 0]  # one row of the table twice
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
        return frozenset()  # code that takes a single example only; if it is broken, that comes up again
    return frozenset(understood)


def _follow_all(
    model: CausalModel, watched: Tensors, others: Tensors, tokens: Tensor, weights: Tensor
) -> tuple[Uses, set[str]]:
    """The uses of all parameters but those that are used in ways that are not known."""
    understood = set(watched)
    while True:
        rest = {name: value for name, value in watched.items() if name not in understood}
        part = {name: value for name, value in watched.items() if name in understood}
        try:
            return follow(model, part, others | rest, tokens, weights), understood
        except UnforeseenUse as found:
            understood -= found.names


def _alone(model: CausalModel, watched: Tensors, others: Tensors, tokens: Tensor) -> Tensors:
    """The gradient of one example, by autograd alone."""
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
    """Whether both the norm and the gradient of one example in one parameter are those of autograd."""
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

MOST_AT_ONCE = 32  # more are no faster
_BUDGET = 2 * 2**30  # bytes for the gradients and activations of the examples that are computed at once


class ExampleGradients:
    """The gradients of a model in its parameters ``trained``; all others stay as the model has them.

    Args:
        microbatch: how many examples at once. None: as many as fit.
        checkpointing: compute activations twice instead of keeping them, one example at a time.
        written_out: write out the gradients of every example in all parameters. Otherwise only in those that the model
            uses in a way that is not understood.

    Attributes:
        microbatch: how many examples are computed at once. It is halved when memory runs out, and 1 for models whose
            code cannot be mapped over examples.
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
            for rows in by_length(lengths, self.microbatch or 1):
                trimmed = tokens[rows, : int(lengths[rows].max())]
                logits = functional_call(self._model, parameters, (trimmed,), {"use_cache": False}).logits[:, :-1]
                each = torch.log_softmax(logits.float(), -1).gather(2, trimmed[:, 1:, None])[:, :, 0]
                found.append(-(each * token_weights(lengths[rows], trimmed.shape[1])).sum(1))
            order = torch.cat(by_length(lengths, self.microbatch or 1))
        return torch.cat(found)[torch.argsort(order)]

    def one(self, parameters: Tensors, tokens: Tensor, fixed: Tensors | None = None) -> Tensors:
        """The gradient of one example that has no padding; ``fixed`` are parameters in which it is not wanted."""
        leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        weights = token_weights(torch.tensor([len(tokens)]), len(tokens))[0].to(tokens.device)
        inside = {f"model.{name}": leaf for name, leaf in {**(fixed or {}), **leaves}.items()}
        found = functional_call(_Gradient(self._model), inside, (tokens, weights, list(leaves.values())))
        return {
            name: torch.zeros_like(leaf) if each is None else each
            for (name, leaf), each in zip(leaves.items(), found, strict=True)
        }

    def several(self, parameters: Tensors, tokens: Tensor, lengths: Tensor, fixed: Tensors | None = None) -> Tensors:
        """The gradients of some examples at once, along a leading axis."""
        weights = token_weights(lengths, tokens.shape[1])

        def loss(varied: Tensors, tokens: Tensor, weights: Tensor) -> Tensor:
            return self.loss({**(fixed or {}), **varied}, tokens, weights)

        found: Tensors = vmap(grad(loss), (None, 0, 0))(parameters, tokens, weights)
        return found

    def clipped_sum(self, parameters: Tensors, tokens: Tensor, lengths: Tensor, clip_norm: float) -> Tensors:
        """The sum of the clipped gradients in float32: each has a norm over all parameters of at most ``clip_norm``."""
        while True:
            try:
                return self._sum(parameters, tokens, lengths, clip_norm)
            except torch.OutOfMemoryError:
                if self.microbatch == 1:
                    raise
                self.microbatch //= 2
            except UnforeseenUse:
                self.ghosts = frozenset()
            except RuntimeError:  # code that looks at its data; where it is a fault of another kind, it comes again
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
        if len(each) == 1:  # without a copy
            return {name: value[None] for name, value in each[0].items()}
        return {name: torch.stack([gradient[name] for gradient in each]) for name in parameters}


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


def _worthwhile(understood: frozenset[str], trained: Tensors) -> frozenset[str]:
    """None, if most parameters would have to be written out all the same, in a pass of their own."""
    sizes = {name: value.numel() for name, value in trained.items()}
    share = sum(sizes[name] for name in understood) / sum(sizes.values())
    return understood if share > 0.5 else frozenset()


def _bytes_an_example(model: CausalModel, written: int, length: int) -> int:
    """About how many bytes one example takes: activations, and gradients written out, which are there twice."""
    config = model.config.get_text_config()
    width, layers = config.hidden_size, config.num_hidden_layers
    inner = getattr(config, "intermediate_size", None) or 4 * width
    attention = 3 * getattr(config, "num_attention_heads", 1) * length
    activations = length * (layers * (12 * width + 4 * inner + attention) + 4 * config.vocab_size)
    return int(4 * (2 * written + activations))


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
