"""Trees of arrays of any library: dicts, lists and tuples of NumPy, PyTorch or JAX arrays, and JAX's own pytrees.

Only NumPy is imported. If an array of another library exists, that library has already been imported.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from lastiterate.common.types import FloatArray
from lastiterate.common.validation import told

ForeignTree: TypeAlias = Any  # arrays and trees of arrays, of libraries that need not be installed


def library_of(leaf: ForeignTree) -> ForeignTree:
    """Return the module whose functions, such as ``where``, accept this array: numpy, torch or jax.numpy."""
    names = {kind.__module__.partition(".")[0] for kind in type(leaf).__mro__}
    if "torch" in names:
        return sys.modules["torch"]
    return sys.modules["jax.numpy"] if names & {"jax", "jaxlib"} else np


def array_like(value: ForeignTree, like: ForeignTree, dtype: ForeignTree = None) -> ForeignTree:
    """Return the value as an array of the same library and on the same device as ``like``."""
    library = library_of(like)
    if library.__name__ == "torch":
        return library.as_tensor(value, dtype=dtype, device=like.device)
    return library.asarray(value, dtype=dtype)


def leaves(tree: ForeignTree) -> list[FloatArray]:
    """Return the arrays in lists, tuples and dicts, in order, as NumPy arrays. A list of numbers is one array."""
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in leaves(value)]
    if isinstance(tree, (list, tuple)) and not all(isinstance(value, (int, float)) for value in tree):
        return [leaf for value in tree for leaf in leaves(value)]
    if library_of(tree).__name__ == "torch":
        tree = tree.detach().cpu().double().numpy()
    return [np.asarray(tree, np.float64)]


def map_arrays(transform: Callable[..., ForeignTree], tree: ForeignTree, *others: ForeignTree) -> ForeignTree:
    """Apply a function to the arrays of a tree and of other trees of the same form."""
    if hasattr(tree, "dtype"):
        return transform(tree, *others)
    if isinstance(tree, Mapping):
        for other in others:
            if not isinstance(other, Mapping) or set(other) != set(tree):
                found = ", ".join(map(str, other)) if isinstance(other, Mapping) else type(other).__name__
                raise ValueError(
                    f"canary must have the names of the parameters, {', '.join(map(str, tree))}, got {found}"
                )
        return {name: map_arrays(transform, value, *(other[name] for other in others)) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)) and not hasattr(tree, "_fields"):
        for other in others:
            if not isinstance(other, (list, tuple)) or len(other) != len(tree):
                raise ValueError(
                    f"canary must have the form of the parameters, according to gradients a {type(tree).__name__} of "
                    f"{len(tree)}, got {told(other)}"
                )
        return type(tree)(map_arrays(transform, *values) for values in zip(tree, *others, strict=True))

    import jax

    return jax.tree.map(transform, tree, *others)
