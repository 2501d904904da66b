"""Problems that ship: linear losses, and classifiers of images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from lastiterate.arrays import Float32Array, FloatArray, Int32Array
from lastiterate.data import Dataset
from lastiterate.training.models import CNN, MLP, Dense, WideResNet, augmentation_multiplicity, cross_entropy
from lastiterate.training.problem import Moment, Problem
from lastiterate.values import as_array, instance, integer, number, numbers

if TYPE_CHECKING:
    from jaxtyping import PyTree


def linear(gradients: ArrayLike | None = None, dimension: int = 1) -> Problem:
    """Linear losses, for which the heuristic is exact: the gradient of example i is ``gradients[i]`` at all parameters.

    Without gradients there are no examples but the canary, and ``dimension`` parameters. All parameters begin at 0.
    """
    if gradients is None:
        return Problem(np.zeros(integer("dimension", dimension), np.float32))
    given = as_array("gradients", gradients)
    if given.ndim != 2 or given.dtype.kind != "f":
        raise ValueError(f"gradients must be numbers of shape [examples, dimension], got shape {given.shape}")
    return Problem(np.zeros(given.shape[1], given.dtype), given, gradient=_constant_gradient)


def logistic(dataset: Dataset) -> Problem:
    """Multinomial logistic regression, begun at 0."""
    model = Dense(int(np.prod(_checked(dataset).x_train.shape[1:])), dataset.classes, jax.random.key(0))
    zeros = jax.tree.map(jnp.zeros_like, model)
    return Problem(zeros, _flat_examples(dataset), cross_entropy)


@dataclass(frozen=True, eq=False)
class ScalarLink(Problem):
    """A regression whose loss is a convex function of one number, the product of parameters and features.

    Its gradient is that function's derivative times the features. Clipping bounds the derivative, which leaves it
    increasing: a clipped example is a convex loss still.
    """

    curvature: float = 1.0  # largest second derivative of that function


def binary_logistic(features: ArrayLike, labels: ArrayLike) -> ScalarLink:
    """Logistic regression with labels -1 and 1, begun at 0. Add a feature that is 1 for an intercept."""
    x, y = _regression(features, "labels", labels)
    if not np.all(np.abs(y) == 1.0):
        raise ValueError("labels must be -1 or 1 for logistic regression")
    return ScalarLink(np.zeros(x.shape[1], np.float32), (x, y), _logistic_loss, curvature=0.25)


def ridge(features: ArrayLike, targets: ArrayLike) -> ScalarLink:
    """Linear regression by half the squared error, begun at 0; the penalty is the optimizer's weight decay."""
    x, y = _regression(features, "targets", targets)
    return ScalarLink(np.zeros(x.shape[1], np.float32), (x, y), _squared_loss, curvature=1.0)


def clip_features(problem: Problem, feature_norm: float) -> Problem:
    """Return the problem with the features of every example scaled down to a norm of at most ``feature_norm``.

    Each example is clipped by itself, so no example changes another. Features are the first array of the examples.
    """
    instance("problem", problem, Problem, "a lastiterate.training.Problem")
    most = number("feature_norm", feature_norm, 0.0, open_low=True)
    arrays, tree = jax.tree.flatten(problem.examples)
    if not arrays:
        return problem
    features = np.asarray(arrays[0])
    norms = np.maximum(feature_norms(problem), 1e-300).reshape(-1, *[1] * (features.ndim - 1))
    clipped = (features * np.minimum(1.0, most / norms)).astype(features.dtype)
    return replace(problem, examples=jax.tree.unflatten(tree, [clipped, *arrays[1:]]))


def feature_norms(problem: Problem) -> FloatArray:
    """Return the norm of each example's features, in 64 bits."""
    features = np.asarray(jax.tree.leaves(problem.examples)[0], dtype=np.float64)
    norms: FloatArray = np.linalg.norm(features.reshape(len(features), -1), axis=1)
    return norms


def mlp(dataset: Dataset, hidden: int = 128, seed: int = 0) -> Problem:
    """A tanh network with one hidden layer; ``seed`` chooses its initial parameters, the same for all models."""
    inputs = int(np.prod(_checked(dataset).x_train.shape[1:]))
    model = MLP((inputs, integer("hidden", hidden), dataset.classes), _key(seed))
    return Problem(model, _flat_examples(dataset), cross_entropy)


def cnn(dataset: Dataset, seed: int = 0) -> Problem:
    """A small convolutional network for images of 8x8, 28x28 or 32x32 pixels."""
    model = CNN(_checked(dataset).x_train.shape[1:], dataset.classes, _key(seed))
    return Problem(model, (dataset.x_train, dataset.y_train), cross_entropy)


def wide_resnet(dataset: Dataset, augmentations: int = 16, seed: int = 0) -> Problem:
    """WideResNet-16-4 as De et al. (2022) train it; each example counts as the mean over its augmentations."""
    model = WideResNet(16, 4, _checked(dataset).classes, _key(seed))
    count = integer("augmentations", augmentations)
    loss = augmentation_multiplicity(cross_entropy, count)
    return Problem(model, (dataset.x_train, dataset.y_train), loss)


def _regression(features: ArrayLike, name: str, labels: ArrayLike) -> tuple[Float32Array, Float32Array]:
    x, y = (numbers(*given).astype(np.float32) for given in (("features", features), (name, labels)))
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise ValueError(
            f"features must have shape [examples, features] and {name} [examples], got {x.shape}, {y.shape}"
        )
    return x, y


def _logistic_loss(parameters: jax.Array, example: tuple[jax.Array, jax.Array], moment: Moment) -> jax.Array:
    return jax.nn.softplus(-example[1] * jnp.dot(example[0], parameters))


def _squared_loss(parameters: jax.Array, example: tuple[jax.Array, jax.Array], moment: Moment) -> jax.Array:
    return 0.5 * jnp.square(jnp.dot(example[0], parameters) - example[1])


def _checked(dataset: Dataset) -> Dataset:
    return instance("dataset", dataset, Dataset, "a lastiterate.data.Dataset")


def _key(seed: int) -> jax.Array:
    return jax.random.key(integer("seed", seed, 0, 2**63 - 1))


def _flat_examples(dataset: Dataset) -> tuple[Float32Array, Int32Array]:
    return dataset.x_train.reshape(len(dataset.x_train), -1), dataset.y_train


def _constant_gradient(parameters: PyTree, example: jax.Array, moment: Moment) -> jax.Array:
    return example
