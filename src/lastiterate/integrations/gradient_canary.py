"""Gradient canaries in a user's training.

``lastiterate.check`` trains with and without a canary, a gradient of one additional example. The training under check
must draw the batches itself, so that faults in its sampling can be seen. The canary therefore takes the place of one
example, usually the last. If the training draws that example, the canary's gradient replaces the example's gradient.
In the world without a canary, the example is left out of the batch.

    planted = PlantedGradient(canary, place=len(data) - 1)
    batch = planted.batch(batch)                        # indices, as they were drawn
    gradients = planted.gradients(gradients, batch)     # one for each index, not yet clipped

Arrays may be NumPy's, PyTorch's (as of ``torch.func``) or JAX's. If gradients are not accessible before clipping, as in
jax-privacy, use ``PlantedGradient.loss``. For Opacus use ``lastiterate.integrations.opacus.plant``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from lastiterate.common.validation import as_array, function, integer, told

ForeignTree: TypeAlias = Any  # arrays and trees of arrays, of libraries that need not be installed


@dataclass(frozen=True, eq=False)
class PlantedGradient:
    """A canary in the place of one example.

    Args:
        canary: False, or a gradient in the form of the parameters, as ``lastiterate.check`` passes it to a trainer.
        place: index of the example that the canary replaces.
    """

    canary: ForeignTree
    place: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", integer("place", self.place, 0))
        if self.canary is None or self.canary is True:
            raise ValueError(f"canary must be False or a gradient in the form of the parameters, got {self.canary}")

    @property
    def is_absent(self) -> bool:
        """True in the world without a canary."""
        return self.canary is False

    def batch(self, indices: ForeignTree) -> ForeignTree:
        """Return the indices of a batch, without the place if there is no canary. NumPy, PyTorch, or a list."""
        if not self.is_absent:
            return indices
        if isinstance(indices, (list, tuple)):
            return [index for index in indices if index != self.place]
        return indices[_indices("indices", indices) != self.place]

    def gradients(self, gradients: ForeignTree, batch: ForeignTree) -> ForeignTree:
        """Return the unclipped gradients of a batch with the canary in its place; zeros there if there is no canary.

        Args:
            gradients: arrays with a leading axis of examples, in the form of the parameters.
            batch: index of each example.
        """

        drawn = _indices("batch", batch)
        if gradients is None:
            raise ValueError("gradients must be arrays with one row for each index in batch, got None")

        def put(leaf: ForeignTree, canary: ForeignTree) -> ForeignTree:
            library = _library(leaf)
            if np.shape(leaf)[:1] != (len(drawn),):
                raise ValueError(
                    f"gradients must be arrays with one row for each of the {len(drawn)} indices in batch, got "
                    f"{told(leaf) if not np.shape(leaf) else f'one of shape {tuple(np.shape(leaf))}'}"
                )
            if np.shape(canary) not in ((), np.shape(leaf)[1:]):
                raise ValueError(
                    f"canary must have the form of the parameters, of shape {tuple(np.shape(leaf)[1:])} where it has "
                    f"{tuple(np.shape(canary))}, as gradients show"
                )
            rows = _as(library, drawn == self.place, leaf).reshape((-1,) + (1,) * (leaf.ndim - 1))
            return library.where(rows, _as(library, canary, leaf, leaf.dtype), leaf)

        canary = _map(lambda leaf: 0.0, gradients) if self.is_absent else self.canary
        return _map(put, gradients, canary)

    def loss(self, loss: Callable[..., ForeignTree]) -> Callable[..., ForeignTree]:
        """Return a JAX loss that takes the index of its example as an additional last argument.

        At the canary's place the loss is the inner product of parameters and canary, whose gradient is the canary.
        """
        function("loss", loss, "a function of parameters and an example")
        import jax
        import jax.numpy as jnp

        def planted(parameters: ForeignTree, *example: ForeignTree) -> ForeignTree:
            *example_alone, index = example
            value = loss(parameters, *example_alone)
            along = 0.0
            if not self.is_absent:
                products = jax.tree.map(lambda leaf, canary: jnp.sum(leaf * canary), parameters, self.canary)
                along = sum(jax.tree.leaves(products))
            return jnp.where(jnp.reshape(index, ()) == self.place, along, value)

        return planted


def _indices(name: str, value: ForeignTree) -> ForeignTree:
    """Return an array of indices, of any library. Raise if the value is not one."""
    array = value if hasattr(value, "dtype") else as_array(name, value)
    if getattr(array, "ndim", 0) != 1 or (len(array) and "int" not in str(array.dtype)):
        raise ValueError(f"{name} must be the indices of a batch, a list or array of integers, got {told(value)}")
    return array


def _library(leaf: ForeignTree) -> ForeignTree:
    """Return the module whose ``where`` takes this array."""
    name = type(leaf).__module__.partition(".")[0]
    if name in ("jax", "jaxlib"):
        return sys.modules["jax.numpy"]
    return sys.modules["torch"] if name == "torch" else np


def _as(library: ForeignTree, value: ForeignTree, like: ForeignTree, dtype: ForeignTree = None) -> ForeignTree:
    """Return the value as an array of the library, on the device of ``like``."""
    if library.__name__ == "torch":
        return library.as_tensor(value, dtype=dtype, device=like.device)
    return library.asarray(value, dtype=dtype)


def _map(transform: Callable[..., ForeignTree], tree: ForeignTree, *others: ForeignTree) -> ForeignTree:
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
        return {name: _map(transform, value, *(other[name] for other in others)) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)) and not hasattr(tree, "_fields"):
        for other in others:
            if not isinstance(other, (list, tuple)) or len(other) != len(tree):
                raise ValueError(
                    f"canary must have the form of the parameters, by gradients a {type(tree).__name__} of "
                    f"{len(tree)}, got {told(other)}"
                )
        return type(tree)(_map(transform, *values) for values in zip(tree, *others, strict=True))

    import jax

    return jax.tree.map(transform, tree, *others)
