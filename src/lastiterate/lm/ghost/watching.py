"""A PyTorch function mode that records each use of a model's parameters, and one pass of a model under that mode.

If a call uses a watched parameter in a known way, it is replaced by an operation that records inputs and gradients. The
first axis of a tensor has the examples or, after ``view``, ``reshape`` or ``flatten``, all tokens of all examples. The
shape shows which. ``lm/example_gradients.py`` compares the gradients with autograd before they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from lastiterate.common.types import Foreign
from lastiterate.lm.ghost import parameter_uses
from lastiterate.lm.ghost.parameter_uses import Names, Tensors, UnforeseenUse, Uses
from lastiterate.lm.tokens import CausalModel, logit_gradient

_LAID_OUT = "_lastiterate_laid_out"  # mark of tensors whose first axis is examples times tokens, example by example

_RESHAPES = {torch.Tensor.view, torch.Tensor.reshape, torch.Tensor.flatten, torch.reshape, torch.flatten}
_ENTRYWISE = {
    *(functional.relu, functional.gelu, functional.silu, functional.dropout, functional.tanh, functional.mish),
    *(torch.relu, torch.tanh, torch.sigmoid, torch.Tensor.relu, torch.Tensor.tanh, torch.Tensor.sigmoid),
    *(torch.Tensor.to, torch.Tensor.float, torch.Tensor.contiguous),
}
_MUL: set[Callable[..., Foreign]] = {torch.Tensor.mul, torch.mul}
_ADD: set[Callable[..., Foreign]] = {torch.Tensor.add, torch.add}
_VECTOR_CHANGES = {torch.Tensor.to, torch.Tensor.float, torch.Tensor.type_as, torch.Tensor.contiguous} | _MUL | _ADD


class Vector(NamedTuple):
    """A watched parameter with one axis, or an entrywise function of it, such as 1 + w in Gemma's norms."""

    name: str
    parameter: Tensor
    value: Tensor

    def slope(self) -> Tensor | None:
        """Return the derivative of each entry by the parameter's entry, or None for the parameter itself."""
        if self.value is self.parameter:
            return None
        (found,) = torch.autograd.grad(self.value.sum(), self.parameter, retain_graph=True)
        return found.float()


class Watch(TorchFunctionMode):
    """A function mode that records uses of watched parameters in ``uses``. ``shape`` is the shape of the model's
    inputs.

    Parameters with one axis must require a gradient, and other parameters must not. ``unforeseen`` names the
    parameters that were used in an unknown way. Differentiate by ``anchor``, so that autograd visits all uses.
    """

    def __init__(self, parameters: Tensors, shape: Sequence[int], uses: Uses) -> None:
        super().__init__()
        self._examples, self._length = shape
        self._uses = uses
        self._matrices = {id(value): name for name, value in parameters.items() if value.dim() != 1}
        vectors = [Vector(name, value, value) for name, value in parameters.items() if value.dim() == 1]
        self._vectors = {id(vector.value): vector for vector in vectors}
        self.anchor = torch.zeros((), device=uses.device, requires_grad=True)
        self._known: dict[Callable[..., Foreign], Callable[..., Tensor | None]] = {
            functional.linear: self._multiply,
            torch.addmm: self._addmm,
            functional.embedding: self._embedding,
            functional.layer_norm: self._layer_norm,
            functional.rms_norm: self._rms_norm,
            **dict.fromkeys(_MUL, partial(self._entrywise, True)),
            **dict.fromkeys(_ADD, partial(self._entrywise, False)),
        }
        self.unforeseen: set[str] = set()

    def __torch_function__(
        self,
        func: Callable[..., Foreign],
        types: object,
        args: tuple[Foreign, ...] = (),
        kwargs: dict[str, Foreign] | None = None,
    ) -> Foreign:
        kwargs = kwargs or {}
        matrices, vectors = self._matrices, self._vectors
        named = [each for each in _flat((args, kwargs)) if id(each) in matrices or id(each) in vectors]
        if not named:
            return self._without(func, args, kwargs)
        if func in self._known:
            found = self._known[func](*args, **kwargs)
            if found is not None:
                return found
        result = func(*args, **kwargs)
        harmless = not isinstance(result, Tensor) or any(result is each for each in named)
        if not harmless and not self._becomes_vector(func, args, result):
            self.unforeseen.update(matrices.get(id(each)) or vectors[id(each)].name for each in named)
        return result

    def _without(self, func: Callable[..., Foreign], args: tuple[Foreign, ...], kwargs: dict[str, Foreign]) -> Foreign:
        if func is functional.linear and (found := _multiply_fixed(*args, **kwargs)) is not None:
            return found
        result = func(*args, **kwargs)
        if func in _RESHAPES:
            before, rows = args[0], self._examples * self._length
            begins = before.shape[:2] == (self._examples, self._length) and result.shape == (rows, *before.shape[2:])
            if begins or (getattr(before, _LAID_OUT, False) and result.shape[0] == rows):
                setattr(result, _LAID_OUT, True)
        elif func in _ENTRYWISE and getattr(args[0] if args else None, _LAID_OUT, False):
            setattr(result, _LAID_OUT, True)
        return result

    def _becomes_vector(self, func: Callable[..., Foreign], args: tuple[Foreign, ...], result: Tensor) -> bool:
        vector = next((self._vectors[id(each)] for each in args if id(each) in self._vectors), None)
        if vector is None or func not in _VECTOR_CHANGES or result.shape != vector.parameter.shape:
            return False
        others = [each for each in args if isinstance(each, Tensor) and id(each) not in self._vectors]
        if (others and func is not torch.Tensor.type_as) or sum(id(each) in self._vectors for each in args) != 1:
            return False
        self._vectors[id(result)] = Vector(vector.name, vector.parameter, result)
        return True

    def _addmm(self, bias: Tensor, inputs: Tensor, matrix: Tensor, **scaled: float) -> Tensor | None:
        return None if scaled else self._multiply(inputs, matrix, bias, transposed=True)

    def _multiply(
        self, inputs: Tensor, matrix: Tensor, bias: Tensor | None = None, *, transposed: bool = False
    ) -> Tensor | None:
        rows = self._by_example(inputs)
        if rows is None or matrix.dim() != 2 or id(inputs) in self._vectors or id(inputs) in self._matrices:
            return None
        vector = None if bias is None else self._vectors.get(id(bias))
        if vector is not None and vector.value is not vector.parameter:
            return None
        names = Names(self._uses, self._matrices.get(id(matrix)), vector and vector.name)
        plain = None if bias is None else bias.detach()
        flat = rows.flatten(1, -2) if rows.dim() > 3 else rows
        multiply: Foreign = parameter_uses.Multiply
        found = multiply.apply(flat, matrix, plain, self.anchor, names, transposed)
        return self._like(inputs, found.view(*rows.shape[:-1], found.shape[-1]))

    def _embedding(
        self,
        rows: Tensor,
        table: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor | None:
        if max_norm is not None or scale_grad_by_freq or sparse or id(table) not in self._matrices:
            return None
        expected = (self._examples, self._length)
        if rows.shape not in (expected, expected[1:], (1, self._length)):
            return None
        if padding_idx is not None and padding_idx < 0:
            padding_idx += len(table)
        names = Names(self._uses, self._matrices[id(table)])
        embed: Foreign = parameter_uses.Embed
        found: Tensor = embed.apply(rows.expand(expected), table, self.anchor, names, padding_idx)
        return found

    def _layer_norm(
        self,
        inputs: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor | None:
        return self._affine(inputs, functional.layer_norm(inputs, normalized_shape, None, None, eps), weight, bias)

    def _rms_norm(
        self,
        inputs: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        eps: float | None = None,
    ) -> Tensor | None:
        return self._affine(inputs, functional.rms_norm(inputs, normalized_shape, None, eps), weight, None)

    def _affine(self, inputs: Tensor, normal: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor | None:
        found: Tensor | None = self._like(inputs, normal)
        for times, vector in ((True, weight), (False, bias)):
            if vector is not None and found is not None:
                found = self._entrywise(times, found, vector)
        return found

    def _entrywise(self, times: bool, one: Tensor, other: Tensor) -> Tensor | None:
        inputs, value = (other, one) if id(one) in self._vectors else (one, other)
        rows = self._by_example(inputs) if isinstance(inputs, Tensor) and id(inputs) not in self._vectors else None
        if rows is None or rows.shape[-1:] != value.shape:
            return None
        if id(value) not in self._vectors:  # not trained
            return inputs * value if times else inputs + value
        vector = self._vectors[id(value)]
        names = Names(self._uses, None, vector.name)
        operation: Foreign = parameter_uses.Entrywise
        return self._like(inputs, operation.apply(rows, value.detach(), self.anchor, names, vector.slope(), times))

    def _by_example(self, inputs: Tensor) -> Tensor | None:
        if getattr(inputs, _LAID_OUT, False):
            return inputs.view(self._examples, self._length, *inputs.shape[1:])
        if inputs.dim() < 3 or inputs.shape[0] not in (self._examples, 1):
            return None
        return inputs.expand(self._examples, *inputs.shape[1:])

    def _like(self, inputs: Tensor, found: Tensor) -> Tensor:
        if not getattr(inputs, _LAID_OUT, False):
            return found
        if found.dim() > inputs.dim():
            found = found.flatten(0, 1)
        setattr(found, _LAID_OUT, True)
        return found


def _multiply_fixed(inputs: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor | None:
    trained = matrix.requires_grad or (bias is not None and bias.requires_grad)
    if trained or not inputs.requires_grad or matrix.dim() != 2:
        return None
    multiply: Foreign = parameter_uses.MultiplyFixed
    found: Tensor = multiply.apply(inputs, matrix, bias)
    return found


def _flat(given: object) -> list[Tensor]:
    if isinstance(given, Tensor):
        return [given]
    inside = given.values() if isinstance(given, dict) else given if isinstance(given, (list, tuple)) else ()
    return [each for part in inside for each in _flat(part)]


def follow(model: CausalModel, watched: Tensors, others: Tensors, tokens: Tensor, weights: Tensor) -> Uses:
    """Run one forward and one backward pass, and return the uses of the parameters ``watched``.

    ``watched`` and ``others`` replace the model's parameters and buffers. ``weights`` has the weight of each
    prediction in the loss.
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
    """Return whether the logits are directly the result of a product, whose backward pass does not read them."""
    node = logits.grad_fn
    while node is not None and node.name() in ("ViewBackward0", "UnsafeViewBackward0"):
        node = node.next_functions[0][0]
    return node is not None and node.name() in ("MultiplyBackward", "MultiplyFixedBackward")
