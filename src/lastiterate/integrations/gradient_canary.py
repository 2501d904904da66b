"""Gradient canaries in a user's training.

The training under check must draw the batches itself, so that faults in its sampling can be found. The canary therefore
takes the place of one example, usually the last. If the training draws that example, the canary's gradient replaces the
example's gradient. In the world without a canary, the example is left out of the batch.

    planted = PlantedGradient(canary, place=len(data) - 1)
    batch = planted.batch(batch)                        # the indices of the drawn examples
    gradients = planted.gradients(gradients, batch)     # one gradient per index, before clipping

Arrays may come from NumPy, PyTorch (for example ``torch.func``) or JAX. If gradients are not accessible before
clipping, as in jax-privacy, use ``PlantedGradient.loss``. For Opacus use ``lastiterate.integrations.opacus.plant``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lastiterate.common.trees import ForeignTree, array_like, library_of, map_arrays
from lastiterate.common.validation import as_array, function, integer, told


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
        """Return the indices of a batch, a list or an array. If there is no canary, ``place`` is left out."""
        if not self.is_absent:
            return indices
        if isinstance(indices, (list, tuple)):
            return [index for index in indices if index != self.place]
        return indices[_indices("indices", indices) != self.place]

    def gradients(self, gradients: ForeignTree, batch: ForeignTree) -> ForeignTree:
        """Return the unclipped gradients of a batch with the canary in its place, or zeros if there is no canary.

        Args:
            gradients: arrays with a leading axis of examples, in the form of the parameters.
            batch: index of each example.
        """
        drawn = _indices("batch", batch)
        if gradients is None:
            raise ValueError("gradients must be arrays with one row for each index in batch, got None")

        def put(leaf: ForeignTree, canary: ForeignTree) -> ForeignTree:
            if np.shape(leaf)[:1] != (len(drawn),):
                raise ValueError(
                    f"gradients must be arrays with one row for each of the {len(drawn)} indices in batch, got "
                    f"{told(leaf) if not np.shape(leaf) else f'one of shape {tuple(np.shape(leaf))}'}"
                )
            if np.shape(canary) not in ((), np.shape(leaf)[1:]):
                raise ValueError(
                    f"canary must have the form of the parameters, an array of shape {tuple(np.shape(leaf)[1:])} "
                    f"according to gradients, got shape {tuple(np.shape(canary))}"
                )
            rows = array_like(drawn == self.place, leaf).reshape((-1,) + (1,) * (leaf.ndim - 1))
            return library_of(leaf).where(rows, array_like(canary, leaf, leaf.dtype), leaf)

        canary = map_arrays(lambda leaf: 0.0, gradients) if self.is_absent else self.canary
        return map_arrays(put, gradients, canary)

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
    array = value if hasattr(value, "dtype") else as_array(name, value)
    if getattr(array, "ndim", 0) != 1 or (len(array) and "int" not in str(array.dtype)):
        raise ValueError(f"{name} must be the indices of a batch, a list or array of integers, got {told(value)}")
    return array
