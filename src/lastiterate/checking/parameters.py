"""Parameters as one vector: flatten the result of a trainer, and convert a vector to the same form.

Results are arrays, PyTorch modules and state dicts, dicts, lists and tuples of these, and trees that JAX can flatten.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise, zip_longest

import numpy as np

from lastiterate.auditing.experiments.user_trainer import Trained
from lastiterate.common.trees import ForeignTree, array_like, leaves
from lastiterate.common.types import FloatArray, IntArray
from lastiterate.common.validation import told

_TAKEN = "arrays, a dict, list or tuple of them, a PyTorch module or a state dict"
_DEEPEST = 100  # levels of a tree; a list that contains itself has no end
_LARGEST = 1e150  # sums of squares of larger numbers overflow
_ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


@dataclass(frozen=True, eq=False)
class Parameters:
    """Parameters as one vector, with names and shapes of the tensors."""

    vector: FloatArray
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    precision: float  # the coarsest relative rounding of the tensors' number types
    tree: ForeignTree  # the result of the trainer
    trained: Trained | None = None  # the trainer's own record
    to_train: tuple[bool, ...] = ()  # whether each tensor requires gradients, which only PyTorch's tensors say

    @cached_property
    def slices(self) -> list[slice]:
        """The place of each tensor in the vector."""
        ends = accumulate((int(np.prod(shape)) for shape in self.shapes), initial=0)
        return [slice(begin, end) for begin, end in pairwise(ends)]

    def columns(self, tensors: Sequence[int]) -> IntArray:
        """Return the places of all numbers of these tensors in the vector."""
        return np.concatenate([np.arange(len(self.vector))[self.slices[tensor]] for tensor in tensors])


def flatten(result: ForeignTree) -> Parameters:
    """Return the parameters that a trainer returned. Raise if there are none."""
    trained = result if isinstance(result, Trained) else None
    tree = result.result if isinstance(result, Trained) else result
    names, arrays, rounding, to_train = list[str](), list[FloatArray](), list[float](), list[bool]()

    def collect(name: str, leaf: ForeignTree) -> ForeignTree:
        (array,) = leaves(leaf)
        names.append(name or "parameters")
        arrays.append(array)
        to_train.append(bool(getattr(leaf, "requires_grad", False)))
        kind = str(getattr(leaf, "dtype", "float64")).removeprefix("torch.")
        rounding.append(_ROUNDING.get(kind, max(_ROUNDING.values())))
        return leaf

    _mapped(tree, collect)
    if not arrays:
        raise ValueError(f"the trainer must return parameters ({_TAKEN}), got {told(tree)}")
    vector = np.concatenate([array.ravel() for array in arrays])
    if not vector.size:
        raise ValueError("the trainer must return at least one number, got empty parameters")
    shapes = tuple(array.shape for array in arrays)
    return Parameters(vector, tuple(names), shapes, max(rounding), tree, trained, tuple(to_train))


def require_finite(parameters: Parameters) -> None:
    """Raise if parameters are NaN, infinite, or too large to square."""
    for name, where in zip(parameters.names, parameters.slices, strict=True):
        if bad := np.count_nonzero(~(np.abs(parameters.vector[where]) <= _LARGEST)):
            raise ValueError(
                f"parameters must be finite, but {bad:,} of tensor {name!r} are NaN, infinite or too large"
            )


def require_same_form(parameters: Parameters, first: Parameters) -> None:
    """Raise if the tensors or shapes differ from those of the first training."""
    for had, has in zip_longest(*(zip(each.names, each.shapes, strict=True) for each in (first, parameters))):
        if had != has:
            was, now = ("no more tensors" if pair is None else f"{pair[0]!r} of shape {pair[1]}" for pair in (had, has))
            raise ValueError(
                f"parameters must have the same form in every training: the first had {was}, this one {now}"
            )


def in_form(vector: FloatArray, like: Parameters) -> ForeignTree:
    """Return a vector in the form of the trainer's result. For a PyTorch module, it is a dict of tensors by name."""
    parts = iter([vector[where].reshape(shape) for where, shape in zip(like.slices, like.shapes, strict=True)])

    def put(_: str, leaf: ForeignTree) -> ForeignTree:
        part = next(parts)
        return float(part) if isinstance(leaf, float) else array_like(part, leaf, leaf.dtype)

    return _mapped(like.tree, put)


def _mapped(
    tree: ForeignTree, change: Callable[[str, ForeignTree], ForeignTree], name: str = "", depth: int = _DEEPEST
) -> ForeignTree:
    """Return a tree whose floating-point arrays are changed. Counters and flags of a state dict are kept."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(tree, torch.nn.Module):
        tree = {key: value for key, value in tree.named_parameters() if value.requires_grad}
    if isinstance(tree, float) or hasattr(tree, "dtype"):
        return change(name, tree) if "float" in str(getattr(tree, "dtype", "float")) else tree
    if not depth:
        raise ValueError(f"the trainer must return parameters ({_TAKEN}), got a tree more than {_DEEPEST} levels deep")
    if isinstance(tree, Mapping):
        named = [(key, f"{name}.{key}" if name else str(key)) for key in tree]
        return {key: _mapped(tree[key], change, longer, depth - 1) for key, longer in named}
    if isinstance(tree, (list, tuple)):
        parts = [_mapped(value, change, f"{name}[{index}]", depth - 1) for index, value in enumerate(tree)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    if jax is None or jax.tree_util.all_leaves([tree]):
        return tree

    def change_below(path: ForeignTree, leaf: ForeignTree) -> ForeignTree:
        return _mapped(leaf, change, f"{name}{jax.tree_util.keystr(path)}".removeprefix("."), depth - 1)

    return jax.tree_util.tree_map_with_path(change_below, tree)
