"""For which parameters of a model gradients need not be written out: those for which autograd says the same.

Two short examples of random tokens go through the model, and the gradients in each parameter are compared with those
that autograd finds for either example alone. So whatever a model's code does, nothing is taken for granted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import functional_call

from lastiterate.lm.ghost.following import follow
from lastiterate.lm.ghost.norms import squared_norms
from lastiterate.lm.ghost.sums import add_weighted
from lastiterate.lm.ghost.uses import UnforeseenUse, Uses

if TYPE_CHECKING:
    from lastiterate.lm.causal_model import CausalModel

Tensors = dict[str, Tensor]

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
