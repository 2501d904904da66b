"""A PyTorch function mode that records each use of a model's parameters, and one pass of a model under that mode.

PyTorch passes every function call to a function mode. A call that uses a watched parameter in a known way is replaced
by an operation that keeps its inputs and gradients. Names of modules do not matter. The shape of a tensor shows where
its examples are: along the first axis, or along one axis with the tokens after ``view``, ``reshape`` or ``flatten``.
``lm/example_gradients.py`` compares the gradients with autograd before they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from lastiterate.lm.ghost.parameter_uses import (
    LookUp,
    Multiply,
    MultiplyFixed,
    Names,
    Scale,
    Shift,
    UnforeseenUse,
    Uses,
)
from lastiterate.lm.tokens import logit_gradient

if TYPE_CHECKING:
    from lastiterate.lm.tokens import CausalModel

Foreign: TypeAlias = Any  # arguments and results of PyTorch's functions

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
    """A watched parameter with one axis, or an entrywise function of it (Gemma's norms multiply with 1 + w)."""

    name: str
    parameter: Tensor
    value: Tensor

    def slope(self) -> Tensor | None:
        """Return the derivative of each entry in the parameter's entry; None if the value is the parameter itself."""
        if self.value is self.parameter:
            return None
        (found,) = torch.autograd.grad(self.value.sum(), self.parameter, retain_graph=True)
        return found.float()


class Watch(TorchFunctionMode):
    """A function mode that records uses of the parameters in ``uses`` while it is active.

    Args:
        parameters: parameters by name. Those with one axis must require a gradient, and no other may.
        shape: number of examples and tokens of the model's input.

    Attributes:
        unforeseen: names of parameters that were used in an unknown way.
    """

    def __init__(self, parameters: dict[str, Tensor], shape: Sequence[int], uses: Uses) -> None:
        super().__init__()
        self._examples, self._length = shape
        self._uses = uses
        self._matrices = {id(value): name for name, value in parameters.items() if value.dim() != 1}
        vectors = [Vector(name, value, value) for name, value in parameters.items() if value.dim() == 1]
        self._vectors = {id(vector.value): vector for vector in vectors}
        self._anchor = torch.zeros((), device=uses.device, requires_grad=True)
        self._known: dict[Callable[..., Foreign], Callable[..., Tensor | None]] = {
            functional.linear: self._linear,
            torch.addmm: self._addmm,
            functional.embedding: self._embedding,
            functional.layer_norm: self._layer_norm,
            functional.rms_norm: self._rms_norm,
            **dict.fromkeys(_MUL, self._scale),
            **dict.fromkeys(_ADD, self._shift),
        }
        self.unforeseen: set[str] = set()

    @property
    def anchor(self) -> Tensor:
        """The tensor to differentiate in, so that autograd passes through all uses."""
        return self._anchor

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
        """Call a function that uses no watched parameter. Results of laid out tensors are marked as laid out, too."""
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

    def _linear(self, inputs: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor | None:
        return self._multiply(inputs, matrix, bias, transposed=False)

    def _addmm(self, bias: Tensor, inputs: Tensor, matrix: Tensor, **scaled: float) -> Tensor | None:
        return None if scaled else self._multiply(inputs, matrix, bias, transposed=True)

    def _multiply(self, inputs: Tensor, matrix: Tensor, bias: Tensor | None, *, transposed: bool) -> Tensor | None:
        rows = self._by_example(inputs)
        if rows is None or matrix.dim() != 2 or id(inputs) in self._vectors or id(inputs) in self._matrices:
            return None
        vector = None if bias is None else self._vectors.get(id(bias))
        if vector is not None and vector.value is not vector.parameter:
            return None
        names = Names(self._uses, self._matrices.get(id(matrix)), vector and vector.name)
        plain = None if bias is None else bias.detach()
        flat = rows.flatten(1, -2) if rows.dim() > 3 else rows
        found: Tensor = Multiply.apply(flat, matrix, plain, self._anchor, names, transposed)  # type: ignore[no-untyped-call]
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
        rows = rows.expand(expected)
        found: Tensor = LookUp.apply(rows, table, self._anchor, names, padding_idx)  # type: ignore[no-untyped-call]
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
        for operation, vector in ((self._scale, weight), (self._shift, bias)):
            if vector is not None and found is not None:
                found = operation(found, vector)
        return found

    def _scale(self, one: Tensor, other: Tensor) -> Tensor | None:
        return self._entrywise(Scale, one, other)

    def _shift(self, one: Tensor, other: Tensor) -> Tensor | None:
        return self._entrywise(Shift, one, other)

    def _entrywise(self, operation: type[Scale | Shift], one: Tensor, other: Tensor) -> Tensor | None:
        """Apply the operation to a tensor and a vector, in either order."""
        inputs, value = (other, one) if id(one) in self._vectors else (one, other)
        rows = self._by_example(inputs) if isinstance(inputs, Tensor) and id(inputs) not in self._vectors else None
        if rows is None or rows.shape[-1:] != value.shape:
            return None
        if id(value) not in self._vectors:  # not trained
            return inputs * value if operation is Scale else inputs + value
        vector = self._vectors[id(value)]
        names = Names(self._uses, None, vector.name)
        found = operation.apply(rows, value.detach(), self._anchor, names, vector.slope())  # type: ignore[no-untyped-call]
        return self._like(inputs, found)

    def _by_example(self, inputs: Tensor) -> Tensor | None:
        """Return the tensor with examples along the first axis and tokens along others; None if unknown."""
        if getattr(inputs, _LAID_OUT, False):
            return inputs.view(self._examples, self._length, *inputs.shape[1:])
        if inputs.dim() < 3 or inputs.shape[0] not in (self._examples, 1):
            return None
        return inputs.expand(self._examples, *inputs.shape[1:])

    def _like(self, inputs: Tensor, found: Tensor) -> Tensor:
        """Return the result in the layout of the inputs."""
        if not getattr(inputs, _LAID_OUT, False):
            return found
        if found.dim() > inputs.dim():
            found = found.flatten(0, 1)
        setattr(found, _LAID_OUT, True)
        return found


def _multiply_fixed(inputs: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """Multiply with a matrix that is not trained; None if autograd has to see the product."""
    trained = matrix.requires_grad or (bias is not None and bias.requires_grad)
    if trained or not inputs.requires_grad or matrix.dim() != 2:
        return None
    found: Tensor = MultiplyFixed.apply(inputs, matrix, bias)  # type: ignore[no-untyped-call]
    return found


def _flat(given: object) -> list[Tensor]:
    """Return all tensors among the arguments, also inside lists and dictionaries."""
    if isinstance(given, Tensor):
        return [given]
    if isinstance(given, (list, tuple)):
        return [each for part in given for each in _flat(part)]
    if isinstance(given, dict):
        return [each for part in given.values() for each in _flat(part)]
    return []


# One pass: forwards and backwards through a model, with all uses of its parameters.

Tensors = dict[str, Tensor]


def follow(model: CausalModel, watched: Tensors, others: Tensors, tokens: Tensor, weights: Tensor) -> Uses:
    """Run the model forwards and backwards once, and return the uses of the parameters ``watched``.

    The uses hold the gradients of the sum of the examples' losses.

    Args:
        watched, others: parameters and buffers that replace the model's own.
        tokens: tokens of the examples, [examples, tokens].
        weights: weight of each prediction.
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
