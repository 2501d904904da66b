"""A gradient canary in a training: the place of one example is the canary's.

`lastiterate.check` trains with the gradients that it makes up as one more example's, and without. The batches must be
drawn by the training that is checked, or the draws would be ours and no fault of them could be seen. So an example of
its data gives up its place, the last one as a rule: where the training draws it, the canary's gradient counts instead
of the example's, and in the world without a canary it is left out of the batch.

    planted = PlantedGradient(canary, place=len(data) - 1)
    batch = planted.batch(batch)                        # indices, as they were drawn
    gradients = planted.gradients(gradients, batch)     # one for each index, not yet clipped

Arrays may be NumPy's, PyTorch's (as of ``torch.func``) or JAX's. Where nobody sees gradients before they are clipped,
as in jax-privacy, a loss does the same (`PlantedGradient.loss`); Opacus has a line of its own (`canary_opacus`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

import jax
import numpy as np
from numpy.typing import ArrayLike

from lastiterate.common.types import RealArray
from lastiterate.common.validation import as_array, function, instance, integer, told
from lastiterate.run import DPSGD, require_run
from lastiterate.training.problem import GradientCanary, Problem
from lastiterate.training.trainer import Trainer

ForeignTree: TypeAlias = Any  # arrays, and trees of them, of libraries that need not be installed


@dataclass(frozen=True, eq=False)
class PlantedGradient:
    """What a training does with its canary.

    Args:
        canary: False, or a gradient in the form of the parameters, as ``lastiterate.check`` hands it to a trainer.
        place: the index of the example whose place is the canary's.
    """

    canary: ForeignTree
    place: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", integer("place", self.place, 0))
        if self.canary is None or self.canary is True:
            raise ValueError(f"canary must be False or a gradient in the form of the parameters, got {self.canary}")

    @property
    def is_absent(self) -> bool:
        """Whether this is the world without a canary."""
        return self.canary is False

    def batch(self, indices: ForeignTree) -> ForeignTree:
        """The indices of a batch without the place, if there is no canary. NumPy, PyTorch, or a list."""
        if not self.is_absent:
            return indices
        if isinstance(indices, (list, tuple)):
            return [index for index in indices if index != self.place]
        return indices[_indices("indices", indices) != self.place]

    def gradients(self, gradients: ForeignTree, batch: ForeignTree) -> ForeignTree:
        """Gradients of a batch, before clipping, with the canary's in its place; zeros, if there is no canary.

        Args:
            gradients: arrays with a leading axis of examples, in the form of the parameters.
            batch: for each example its index.
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
        """A loss in JAX that also takes the index of its example, behind its other arguments.

        At the canary's place it is the inner product of parameters and canary, whose gradient is the canary.
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
    """An array of indices, of whatever library; refused, if it is none."""
    array = value if hasattr(value, "dtype") else as_array(name, value)
    if getattr(array, "ndim", 0) != 1 or (len(array) and "int" not in str(array.dtype)):
        raise ValueError(f"{name} must be the indices of a batch, a list or array of integers, got {told(value)}")
    return array


def _library(leaf: ForeignTree) -> ForeignTree:
    """The module whose ``where`` takes this array."""
    name = type(leaf).__module__.partition(".")[0]
    if name in ("jax", "jaxlib"):
        return sys.modules["jax.numpy"]
    return sys.modules["torch"] if name == "torch" else np


def _as(library: ForeignTree, value: ForeignTree, like: ForeignTree, dtype: ForeignTree = None) -> ForeignTree:
    """An array of the library, where ``like`` lies."""
    if library.__name__ == "torch":
        return library.as_tensor(value, dtype=dtype, device=like.device)
    return library.asarray(value, dtype=dtype)


def _map(transform: Callable[..., ForeignTree], tree: ForeignTree, *others: ForeignTree) -> ForeignTree:
    """The tree with a function applied to its arrays, and to those of others of its form."""
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


# Our own trainer as one that `lastiterate.check` takes.
#
#     train = own_trainer(run, problems.logistic(digits()))
#     lastiterate.check(run, train)
#
# Both worlds have the canary in their program, as a gradient of zero where there is none: a seed then gives both the
# same batches and the same noise.

Gradient = Mapping[str, RealArray]


def own_trainer(run: DPSGD, problem: Problem) -> Callable[[int, Gradient | Literal[False]], Gradient]:
    """A trainer ``train(seed, canary)`` that trains this problem by this run and returns the released parameters.

    They are arrays by name, as a canary must be: the names say where in ``problem.trainable`` an array is.
    """
    instance("problem", problem, Problem, "a training.Problem")
    # A canary is one example here, and is there or not.
    run = require_run(run).replace(group_size=1, neighbours=None)
    leaves = jax.tree_util.tree_leaves_with_path(problem.trainable)
    shapes = {jax.tree_util.keystr(path).lstrip(".") or "parameters": np.shape(leaf) for path, leaf in leaves}
    size = sum(int(np.prod(shape)) for shape in shapes.values())
    trainer = cache(lambda: Trainer(run, problem, _canary(np.zeros(size)), models=1, chunk_size=1, workers=1))

    def train(seed: int, canary: Gradient | Literal[False]) -> Gradient:
        gradient = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()} if canary is False else canary
        found = {name: np.shape(array) for name, array in gradient.items()}
        if found != shapes:
            raise ValueError(f"canary must have the form of the parameters, {shapes}, got {found}")
        planted = trainer().with_canary(_canary(np.concatenate([np.ravel(gradient[name]) for name in shapes])))
        (chunk,) = planted.chunks(np.zeros(1, np.int64), np.ones(1, np.bool_), seed)
        return {name: leaf[0] for name, leaf in zip(shapes, jax.tree.leaves(chunk.parameters), strict=True)}

    return train


def _canary(gradient: ArrayLike) -> GradientCanary:
    return GradientCanary(np.asarray(gradient, np.float32))
