"""What a classifier loses on one example, and how often it is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from lastiterate.arrays import RealArray
from lastiterate.training.problem import Moment
from lastiterate.values import as_array, function, told

_BLOCK = 256  # images at a time

Classifier: TypeAlias = Callable[[jax.Array], jax.Array]  # from one example to its logits


def cross_entropy(model: Classifier, example: tuple[jax.Array, jax.Array], moment: Moment) -> jax.Array:
    """Softmax cross-entropy of one example ``(x, label)``."""
    x, label = example
    logits = model(x)
    return jax.nn.logsumexp(logits) - logits[label]


def accuracy(model: Classifier, x: RealArray, y: NDArray[np.integer]) -> float:
    """The fraction of examples whose largest logit is that of their label."""
    function("model", model, "a function from one example to its logits")
    images, labels = as_array("x", x), as_array("y", y)
    if images.dtype.kind not in "biuf" or images.ndim < 1 or not len(images):
        raise ValueError(f"x must be an array of examples, at least one, got {told(x)}")
    if labels.dtype.kind not in "iu" or labels.shape != (len(images),):
        raise ValueError(f"y must be {len(images)} integers, one for each example, got shape {labels.shape}")
    parts = [np.asarray(_predictions(model, images[begin : begin + _BLOCK])) for begin in range(0, len(images), _BLOCK)]
    return float(np.mean(np.concatenate(parts) == labels))


@eqx.filter_jit
def _predictions(model: Classifier, x: RealArray) -> jax.Array:
    return jnp.argmax(jax.vmap(model)(jnp.asarray(x)), axis=1)
