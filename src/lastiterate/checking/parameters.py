"""Parameters as one vector: flatten what a trainer returns, and put a vector into the same form.

A trainer may return NumPy and JAX arrays, PyTorch tensors, modules and state dicts, dicts, lists and tuples of them.
JAX, if it is loaded, takes other trees apart, such as equinox modules.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np

from lastiterate.auditing.experiments.user_trainer import Trained
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import told

Foreign: TypeAlias = Any  # arrays, and trees of them, of libraries that need not be installed
_TAKEN = "arrays, a dict, list or tuple of them, a PyTorch module or a state dict"
_DEEPEST = 100  # dicts, lists and tuples in each other; a list that contains itself has no bottom
_LARGEST = 1e150  # whose square is a number


@dataclass(frozen=True, eq=False)
class Parameters:
    """Parameters as one vector, with the place of each tensor.

    Attributes:
        vector: all numbers, one tensor after the other.
        names: of the tensors.
        shapes: of the tensors.
        precision: the coarsest relative rounding of the tensors' number types.
        tree: what the trainer returned.
        trained: what the trainer said about its training, if it did.
    """

    vector: FloatArray
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    precision: float
    tree: Foreign
    trained: Trained | None = None

    @cached_property
    def slices(self) -> list[slice]:
        """The place of each tensor in the vector."""
        ends = accumulate((int(np.prod(shape)) for shape in self.shapes), initial=0)
        return [slice(begin, end) for begin, end in pairwise(ends)]


def flatten(result: Foreign) -> Parameters:
    """Return the parameters that a trainer returned. Raise if there are none."""
    trained = result if isinstance(result, Trained) else None
    tree = result.result if isinstance(result, Trained) else result
    leaves = [(name, leaf) for name, leaf in _leaves(_opened(tree), "", _DEEPEST) if _is_float(leaf)]
    if not leaves:
        raise ValueError(f"the trainer must return parameters ({_TAKEN}), got {told(tree)}")
    arrays = [(name or "parameters", _numbers(leaf)) for name, leaf in leaves]
    if not any(array.size for _, array in arrays):
        raise ValueError("the trainer must return at least one number, got empty parameters")
    return Parameters(
        np.concatenate([array.astype(np.float64).ravel() for _, array in arrays]),
        tuple(name for name, _ in arrays),
        tuple(array.shape for _, array in arrays),
        max(_rounding(leaf) for _, leaf in leaves),
        tree,
        trained,
    )


def require_finite(parameters: Parameters) -> None:
    """Raise if parameters are NaN, infinite, or too large to square."""
    if np.all(np.abs(parameters.vector) <= _LARGEST):
        return
    for name, where in zip(parameters.names, parameters.slices, strict=True):
        tensor = parameters.vector[where]
        if bad := np.count_nonzero(~np.isfinite(tensor)):
            raise ValueError(f"parameters must be finite, but {bad:,} of tensor {name!r} are NaN or infinite")
        if bad := np.count_nonzero(np.abs(tensor) > _LARGEST):
            raise ValueError(f"parameters must be in [-1e150, 1e150], but {bad:,} of tensor {name!r} are not")


def require_same_form(parameters: Parameters, first: Parameters) -> None:
    """Raise if the tensors or shapes differ from those of the first training."""
    if parameters.names != first.names:
        raise ValueError(
            f"parameters must have the same tensors in every training: the first had {_listed(first.names)}, "
            f"this one {_listed(parameters.names)}"
        )
    for name, one, other in zip(first.names, first.shapes, parameters.shapes, strict=True):
        if one != other:
            raise ValueError(
                f"parameters must have the same shapes in every training: {name!r} had {one}, and now has {other}"
            )


def in_form(vector: FloatArray, like: Parameters) -> Foreign:
    """Return a vector in the form of what the trainer returned; for a PyTorch module, a dict from names to tensors."""
    parts = iter([vector[where].reshape(shape) for where, shape in zip(like.slices, like.shapes, strict=True)])

    def put(leaf: Foreign) -> Foreign:
        return _like(next(parts), leaf) if _is_float(leaf) else leaf

    return _rebuilt(_opened(like.tree), put)


def _opened(tree: Foreign) -> Foreign:
    """Return a PyTorch module as the dict of its trained parameters."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tree, torch.nn.Module):
        return {name: value for name, value in tree.named_parameters() if value.requires_grad}
    return tree


def _leaves(tree: Foreign, name: str, depth: int) -> Iterator[tuple[str, Foreign]]:
    if _is_leaf(tree):
        yield name, tree
    elif not depth:
        raise ValueError(f"the trainer must return parameters ({_TAKEN}), got a tree more than {_DEEPEST} levels deep")
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _leaves(value, f"{name}.{key}" if name else str(key), depth - 1)
    elif isinstance(tree, (list, tuple)):
        for index, value in enumerate(tree):
            yield from _leaves(value, f"{name}[{index}]", depth - 1)
    elif (jax := _jax()) is not None:
        for path, value in jax.tree_util.tree_flatten_with_path(tree)[0]:
            if value is tree:
                return
            yield f"{name}{jax.tree_util.keystr(path)}".removeprefix("."), value


def _rebuilt(tree: Foreign, put: Callable[[Foreign], Foreign]) -> Foreign:
    if _is_leaf(tree):
        return put(tree)
    if isinstance(tree, Mapping):
        return {key: _rebuilt(value, put) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        parts = [_rebuilt(value, put) for value in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    jax = _jax()
    return tree if jax is None else jax.tree_util.tree_map(put, tree)


def _jax() -> Foreign:
    return sys.modules.get("jax")


def _is_leaf(value: Foreign) -> bool:
    return value is None or hasattr(value, "dtype") or isinstance(value, (bool, int, float, complex, str, bytes))


def _is_float(leaf: Foreign) -> bool:
    """Return whether a leaf is trained. Counters and flags in a state dict are not."""
    kind = getattr(leaf, "dtype", None)
    return isinstance(leaf, float) or (kind is not None and "float" in str(kind))


def _is_torch(leaf: Foreign) -> bool:
    return type(leaf).__module__.partition(".")[0] == "torch"


def _numbers(leaf: Foreign) -> FloatArray:
    if _is_torch(leaf):
        return np.array(leaf.detach().cpu().double().numpy(), np.float64)
    return np.asarray(leaf, np.float64)


def _like(array: FloatArray, leaf: Foreign) -> Foreign:
    """Return the array in the library and number type of the leaf."""
    if _is_torch(leaf):
        return sys.modules["torch"].as_tensor(array, dtype=leaf.dtype, device=leaf.device)
    jax = _jax()
    if jax is not None and isinstance(leaf, jax.Array):
        return jax.numpy.asarray(array, leaf.dtype)
    return float(array) if isinstance(leaf, float) else np.asarray(array, leaf.dtype)


_ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def _rounding(leaf: Foreign) -> float:
    return _ROUNDING.get(str(getattr(leaf, "dtype", "float64")).removeprefix("torch."), 2.0**-8)


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(map(repr, names[:4]))
    return f"{shown}, ..." if len(names) > 4 else shown
