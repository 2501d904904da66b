"""Problems included in the library: linear losses, regressions, image classifiers; contraction of regressions.

A guarantee must not depend on private data. So the caller of `contraction_of` states a public bound on the norms of the
features, and the features are only compared with this bound. If the L2 penalty is outside of the clipped sum, a step
without the canary is w -> (1 - eta lambda) w - eta sum of clipped gradients. If the clipped gradients are those of
convex functions of smoothness beta, the step contracts by max(|1 - eta lambda|, |1 - eta lambda - eta b beta|) for a
batch of b examples (docs/method.md, "Convex losses").
"""

import math
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from numpy.typing import ArrayLike
from scipy.special import bdtrc

from lastiterate.common.search import first_integer
from lastiterate.common.types import Float32Array, FloatArray
from lastiterate.common.validation import as_array, instance, integer, number, numbers
from lastiterate.data import Dataset
from lastiterate.privacy.convex.distances import Contraction
from lastiterate.run import DPSGD
from lastiterate.supported_runs import (
    AVERAGING,
    CORRELATED_NOISE,
    GROUPS,
    NOISE_MULTIPLIERS,
    RELEASES,
    REPLACEMENT,
    WEIGHT_DECAY,
    Support,
    require_supported,
)
from lastiterate.training.models import (
    CNN,
    MLP,
    Classifier,
    Dense,
    Scaled,
    WideResNet,
    augmentation_multiplicity,
    cross_entropy,
    squared_error,
)
from lastiterate.training.problem import Loss, Moment, Problem


def linear(gradients: ArrayLike | None = None, dimension: int = 1) -> Problem:
    """Return linear losses, for which the heuristic is exact. The gradient of example i is always ``gradients[i]``.

    Without ``gradients``, the canary is the only example, and there are ``dimension`` parameters. All start at 0.
    """
    if gradients is None:
        return Problem(np.zeros(integer("dimension", dimension), np.float32))
    given = as_array("gradients", gradients)
    if given.ndim != 2 or given.dtype.kind != "f":
        raise ValueError(f"gradients must be numbers of shape [examples, dimension], got shape {given.shape}")
    return Problem(np.zeros(given.shape[1], given.dtype), given, gradient=_constant_gradient)


def logistic(dataset: Dataset) -> Problem:
    """Return multinomial logistic regression. All parameters start at 0."""
    return _linear_classifier(dataset, cross_entropy)


def least_squares(dataset: Dataset) -> Problem:
    """Return linear regression on the unit vectors of the labels, a ridge classifier. All parameters start at 0.

    The ridge penalty is the optimizer's weight decay.
    """
    return _linear_classifier(dataset, squared_error)


def _linear_classifier(dataset: Dataset, loss: Loss) -> Problem:
    model = Dense(int(np.prod(_checked(dataset).x_train.shape[1:])), dataset.classes, jax.random.key(0))
    return _on_vectors(dataset, jax.tree.map(jnp.zeros_like, model), loss)


@dataclass(frozen=True, eq=False)
class ScalarLink(Problem):
    """A regression whose loss is a convex function of the inner product of parameters and features.

    The gradient is the derivative of this function times the features. Clipping bounds the derivative and keeps it
    increasing, so a clipped gradient is also the gradient of a convex loss.
    """

    curvature: float = 1.0  # largest second derivative of the convex function


def binary_logistic(features: ArrayLike, labels: ArrayLike) -> ScalarLink:
    """Return logistic regression with labels -1 and 1, starting at 0. For an intercept, add a feature that is 1."""
    x, y = _regression(features, "labels", labels)
    if not np.all(np.abs(y) == 1.0):
        raise ValueError("labels must be -1 or 1 for logistic regression")
    return ScalarLink(np.zeros(x.shape[1], np.float32), (x, y), _logistic_loss, curvature=0.25)


def ridge(features: ArrayLike, targets: ArrayLike) -> ScalarLink:
    """Return linear regression with half the squared error, starting at 0. Weight decay is set in the optimizer."""
    x, y = _regression(features, "targets", targets)
    return ScalarLink(np.zeros(x.shape[1], np.float32), (x, y), _squared_loss, curvature=1.0)


def clip_features(problem: Problem, feature_norm: float) -> Problem:
    """Return the problem with the features of every example scaled down to a norm of at most ``feature_norm``.

    Clipping of one example does not depend on other examples. Features are the first array of ``problem.examples``.
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
    """Return the norm of each example's features, in 64 bits, after a scaling of the problem's model."""
    features = np.asarray(jax.tree.leaves(problem.examples)[0], dtype=np.float64)
    scale = problem.parameters.scale if isinstance(problem.parameters, Scaled) else 1.0
    norms: FloatArray = scale * np.linalg.norm(features.reshape(len(features), -1), axis=1)
    return norms


def mlp(dataset: Dataset, hidden: int = 128, seed: int = 0) -> Problem:
    """Return a tanh network with one hidden layer. All models start from the same parameters, drawn with ``seed``."""
    inputs = int(np.prod(_checked(dataset).x_train.shape[1:]))
    model = MLP((inputs, integer("hidden", hidden), dataset.classes), _key(seed))
    return _on_vectors(dataset, model, cross_entropy)


def cnn(dataset: Dataset, seed: int = 0) -> Problem:
    """Return a small convolutional network for images of 8x8, 28x28 or 32x32 pixels."""
    model = CNN(_images(dataset).x_train.shape[1:], dataset.classes, _key(seed))
    return Problem(model, (dataset.x_train, dataset.y_train), cross_entropy)


def wide_resnet(dataset: Dataset, augmentations: int = 16, seed: int = 0) -> Problem:
    """Return the WideResNet-16-4 of De et al. (2022). The loss is the mean over augmentations of an example."""
    model = WideResNet(16, 4, _images(dataset).classes, _key(seed))
    loss = augmentation_multiplicity(cross_entropy, integer("augmentations", augmentations))
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


def _images(dataset: Dataset) -> Dataset:
    if _checked(dataset).feature_norm is not None:
        raise ValueError(f"model must be mlp, logistic or ridge, because {dataset.name} holds features, not images")
    return dataset


def _on_vectors(dataset: Dataset, model: Classifier, loss: Loss) -> Problem:
    examples = dataset.x_train.reshape(len(dataset.x_train), -1), dataset.y_train
    scale = dataset.feature_scale
    return Problem(model if scale is None else Scaled(model, scale), examples, loss)


def _constant_gradient(parameters: PyTree, example: jax.Array, moment: Moment) -> jax.Array:
    return example


# Contraction: the factor by which a step of DP-SGD brings two models closer, for convex and smooth regressions.

_OF_SOFTMAX = 0.5  # largest eigenvalue of diag(p) - p p^T
_ROUNDING = 1e-6  # relative rounding of features and gradients in 32 bits


_CONTRACTION = Support(
    "contraction_of",
    frozenset({WEIGHT_DECAY, AVERAGING, NOISE_MULTIPLIERS, CORRELATED_NOISE, GROUPS, RELEASES, REPLACEMENT}),
)


def contraction_of(problem: Problem, run: DPSGD, *, feature_norm: float, failure: float = 1e-12) -> Contraction:
    """Return the contraction of an included regression under a run, for ``lastiterate.convex``.

    The contraction depends on the run, ``feature_norm`` and the number of examples, which is assumed to be public.

    Args:
        problem: made by ``binary_logistic``, ``ridge`` or ``logistic`` of ``lastiterate.training.problems``. For
            ``logistic``, the clipping norm must be so large that nothing is clipped: a step with clipped softmax
            gradients may not contract.
        run: a run whose optimizer states learning rate and weight decay.
        feature_norm: a public bound on the norm of every example's features, chosen without looking at private data.
            An error is raised if an example exceeds the bound. This error reveals that such examples exist. To
            avoid it, use ``clip_features`` both for training and here.
        failure: largest probability that any batch of the run is larger than the batch size assumed here.
    """
    instance("problem", problem, Problem, "a lastiterate.training.Problem")
    most = number("feature_norm", feature_norm, 0.0, 1e100, open_low=True)
    allowed = number("failure", failure, 0.0, 1.0, open_low=True, open_high=True)
    optimizer = require_supported(run, _CONTRACTION).optimizer
    assert optimizer is not None
    if problem.regulariser is not None or problem.regulariser_gradient is not None:
        raise ValueError("regulariser must be None: tell L2 by the optimizer's weight_decay, from which it contracts")
    smoothness = (1.0 + _ROUNDING) * _smoothness(problem, run, most)
    if problem.size and feature_norms(problem).max() > most * (1.0 + 0.25 * _ROUNDING):
        raise ValueError(
            f"feature_norm must bound the norm of every example's features, but some exceed {feature_norm!r}: give a"
            " larger public bound, or clip them by lastiterate.training.problems.clip_features and train with these"
        )
    batch, missed = _largest_batch(problem, run, allowed)
    rate, decay = float(optimizer.learning_rate), optimizer.weight_decay
    value = max(abs(1.0 - rate * decay), abs(1.0 - rate * (decay + batch * smoothness)))
    if value > 1.0 or value == 0.0:
        raise ValueError(
            f"learning_rate must be at most {2.0 / (decay + batch * smoothness):.6g} for steps to contract, got {rate}:"
            f" learning_rate * (weight_decay + {batch} examples * smoothness {smoothness:.6g}) must be at most 2"
        )
    return Contraction(value, missed)


def _smoothness(problem: Problem, run: DPSGD, most: float) -> float:
    if isinstance(problem, ScalarLink):
        return problem.curvature * most**2
    model = problem.parameters.model if isinstance(problem.parameters, Scaled) else problem.parameters
    if problem.loss is cross_entropy and isinstance(model, Dense):
        largest = math.hypot(most, 1.0)  # norm of features and bias
        if run.clip_norm * (1.0 + 1e-12) < math.sqrt(2.0) * largest:  # sqrt(2)^2 is above 2 by rounding
            raise ValueError(
                f"clip_norm must be at least {math.sqrt(2.0) * largest:.6g} with softmax, which is sqrt(2) times the "
                f"largest norm of features and bias, got {run.clip_norm!r}: with a smaller clip_norm, a step may "
                "increase the distance between two models"
            )
        return _OF_SOFTMAX * largest**2
    raise ValueError(
        "problem must be binary_logistic, ridge or logistic of lastiterate.training.problems: of others it is not known"
        " that losses are convex and stay so when they are clipped; state the contraction yourself if you can prove it"
    )


def _largest_batch(problem: Problem, run: DPSGD, allowed: float) -> tuple[int, float]:
    copies = np.ones(problem.size) if problem.multiplicity is None else np.asarray(problem.multiplicity)
    size, rate = int(np.sum(copies, dtype=np.int64)), float(run.sample_rate)
    if size == 0 or rate == 1.0:
        return size, 0.0
    high = first_integer(lambda batch: run.steps * float(bdtrc(batch, size, rate)) <= allowed, -1, size)
    return high, run.steps * float(bdtrc(high, size, rate)) if high < size else 0.0
