"""Training problems (parameters, examples, their losses or gradients, and a regulariser) and canaries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from numpy.typing import ArrayLike

from lastiterate.common.types import FloatArray, RealArray
from lastiterate.common.validation import as_array, function, shown


class Moment(NamedTuple):
    """The step of a loss evaluation, counted from 0, and a JAX key that is unique to model, step and example."""

    step: jax.Array
    key: jax.Array


Loss: TypeAlias = "Callable[[PyTree, PyTree, Moment], jax.Array]"  # function of parameters, one example and the moment


@dataclass(frozen=True, eq=False)
class Problem:
    """The problem that DP-SGD trains on. All functions are pure JAX functions of one example.

    Args:
        parameters: the initial parameters, any pytree; in an equinox model the floating-point arrays are trained.
        examples: a pytree of arrays with a leading axis of examples, such as ``(x, y)``. If it is None, the
            canary is the only example.
        loss: ``loss(parameters, example, moment)``, a number. ``example`` has no leading axis.
        gradient: ``gradient(parameters, example, moment)``, a pytree like ``parameters``, instead of a loss. It need
            not be the gradient of any function.
        regulariser: ``regulariser(parameters, step)``, a number. Its gradient is neither clipped nor sampled.
        regulariser_gradient: ``regulariser_gradient(parameters, step)``, instead of a regulariser.
        multiplicity: the number of identical copies that each example stands for.
    """

    parameters: PyTree
    examples: PyTree = None
    loss: Loss | None = None
    gradient: Callable[[PyTree, PyTree, Moment], PyTree] | None = None
    regulariser: Callable[[PyTree, jax.Array], jax.Array] | None = None
    regulariser_gradient: Callable[[PyTree, jax.Array], PyTree] | None = None
    multiplicity: ArrayLike | None = None

    def __post_init__(self) -> None:
        for name in ("loss", "gradient", "regulariser", "regulariser_gradient"):
            if getattr(self, name) is not None:
                function(name, getattr(self, name), "a function, or None")
        if self.loss is not None and self.gradient is not None:
            raise ValueError("loss and gradient were both given, but the first determines the second: give one")
        if self.regulariser is not None and self.regulariser_gradient is not None:
            raise ValueError("regulariser and regulariser_gradient were both given: give one")
        if not jax.tree.leaves(self.trainable):
            raise ValueError("parameters must hold at least one floating-point array, got none")
        if self.size and self.loss is None and self.gradient is None:
            raise ValueError("loss or gradient must be given for the examples, got neither")
        if self.multiplicity is not None:
            counts = as_array("multiplicity", self.multiplicity)
            whole = counts.shape == (self.size,) and counts.dtype.kind in "iu"
            if not whole or not np.all((counts >= 1) & (counts < 2**31)):
                raise ValueError(
                    f"multiplicity must be {self.size} integers in [1, 2^31), one for each example, got {shown(counts)}"
                )

    @property
    def size(self) -> int:
        """The number of examples. Copies by ``multiplicity`` are not counted."""
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(self.examples)]
        sizes = {shape[0] if shape else None for shape in shapes}
        if len(sizes) > 1 or None in sizes:
            raise ValueError(f"examples must be arrays of equal length along their first axis, got {shown(shapes)}")
        return int(sizes.pop() or 0) if sizes else 0

    @property
    def trainable(self) -> PyTree:
        """The initial parameters, without leaves that are not trained, such as activation functions."""
        return eqx.filter(self.parameters, is_trained)

    def without_examples(self) -> Problem:
        """Return the same parameters and regulariser without examples."""
        return replace(self, examples=None, loss=None, gradient=None, multiplicity=None)

    def model(self, trained: PyTree) -> PyTree:
        """Combine trained parameters with the untrained leaves. The problem's functions take the result."""
        static = eqx.filter(self.parameters, is_trained, inverse=True)
        return eqx.combine(trained, static)

    def example_gradient(self, trained: PyTree, example: PyTree, moment: Moment) -> PyTree:
        """Return the gradient of one example with respect to the trained parameters, not yet clipped."""
        if self.gradient is not None:
            return self._like_parameters("gradient", self.gradient(self.model(trained), example, moment))
        loss = self.loss
        assert loss is not None

        def value(parameters: PyTree) -> jax.Array:
            result = loss(self.model(parameters), example, moment)
            if jnp.shape(result) != ():
                raise ValueError(f"loss must return one number for one example, got shape {jnp.shape(result)}")
            return result

        return jax.grad(value)(trained)

    def unclipped_gradient(self, trained: PyTree, step: jax.Array) -> PyTree | None:
        """Return the gradient of the regulariser, or None if there is no regulariser."""
        if self.regulariser_gradient is not None:
            given = self.regulariser_gradient(self.model(trained), step)
            return self._like_parameters("regulariser_gradient", given)
        regulariser = self.regulariser
        if regulariser is None:
            return None
        return jax.grad(lambda parameters: regulariser(self.model(parameters), step))(trained)

    def _like_parameters(self, name: str, given: PyTree) -> PyTree:
        result = eqx.filter(given, is_trained)
        expected, found = ([jnp.shape(leaf) for leaf in jax.tree.leaves(tree)] for tree in (self.trainable, result))
        if not same_structure(result, self.trainable) or expected != found:
            raise ValueError(f"{name} must return arrays like those of parameters, {expected}, got {found}")
        return jax.tree.map(lambda leaf, like: jnp.asarray(leaf, jnp.result_type(like)), result, self.trainable)


@dataclass(frozen=True, eq=False)
class ExampleCanary:
    """An extra example: a pytree like one of the problem's examples, without a leading axis.

    Args:
        replacement: the example that takes the place of an absent canary, if neighbouring data sets differ by
            replacement.
        is_group: whether canary and replacement have a leading axis of ``group_size`` examples of one person.
    """

    example: PyTree
    replacement: PyTree = None
    is_group: bool = False

    def rows(self) -> list[PyTree]:
        """Return the canary and its replacement, if there is one, each with a leading axis of examples."""
        both = [self.example] if self.replacement is None else [self.example, self.replacement]
        return both if self.is_group else [jax.tree.map(lambda leaf: np.asarray(leaf)[None], each) for each in both]


@dataclass(frozen=True, eq=False)
class GradientCanary:
    """An injected gradient: a pytree like the parameters, one flat vector, or a function.

    The function takes ``(parameters, moment)`` and returns a pytree or a flat vector. The gradient is clipped like any
    other. If neighbouring data sets differ by replacement, the opposite gradient takes the place of an absent canary.
    """

    gradient: PyTree | Callable[[PyTree, Moment], PyTree]

    def at(self, problem: Problem, trained: PyTree, moment: Moment) -> PyTree:
        """Return the gradient as a pytree like the trained parameters, not yet clipped."""
        given = self.gradient(problem.model(trained), moment) if callable(self.gradient) else self.gradient
        return self._in_form(problem, given)

    def constant(self, problem: Problem) -> PyTree | None:
        """Return the gradient as a pytree, or None if it is a function."""
        return None if callable(self.gradient) else self._in_form(problem, self.gradient)

    def _in_form(self, problem: Problem, given: PyTree) -> PyTree:
        if isinstance(given, (np.ndarray, jax.Array)) and not isinstance(problem.trainable, (np.ndarray, jax.Array)):
            given = unflatten(given, problem.trainable)
        return problem._like_parameters("canary", given)


Canary = ExampleCanary | GradientCanary


def is_trained(leaf: object) -> bool:
    """Return whether a leaf of the parameters is trained: a floating-point array, not a Python number."""
    return isinstance(leaf, (np.ndarray, jax.Array)) and bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def same_structure(first: PyTree, second: PyTree) -> bool:
    """Return whether two pytrees differ only in their leaves."""
    structures: list[object] = [jax.tree.structure(first), jax.tree.structure(second)]
    return structures[0] == structures[1]


def unflatten(vector: RealArray | jax.Array, like: PyTree) -> PyTree:
    """Return a flat vector as a pytree. The vector contains the leaves one after the other, each in C order."""
    leaves, structure = jax.tree.flatten(like)
    sizes = [int(np.size(leaf)) for leaf in leaves]
    if jnp.shape(vector) != (sum(sizes),):
        raise ValueError(f"canary must have {sum(sizes)} numbers, one a parameter, got shape {jnp.shape(vector)}")
    ends = np.cumsum(sizes)
    parts = [
        vector[end - size : end].reshape(np.shape(leaf)) for leaf, size, end in zip(leaves, sizes, ends, strict=True)
    ]
    return jax.tree.unflatten(structure, parts)


def sizes_of(problem: Problem) -> list[int]:
    """Return the number of parameters of each tensor."""
    return [int(np.size(leaf)) for leaf in jax.tree.leaves(problem.trainable)]


def flatten_one(problem: Problem) -> FloatArray:
    """Return the initial parameters of a problem as one vector."""
    flat: FloatArray = flatten(jax.tree.map(lambda leaf: np.asarray(leaf)[None], problem.trainable))[0]
    return flat


def flatten(parameters: PyTree) -> RealArray:
    """Return the parameters of many models as a matrix [models, parameters], in the order of ``unflatten``."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(parameters)]
    return np.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)
