"""What a classifier loses on one example, and how often it is right."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.training.problem import Moment
from lastiterate.values import Array

_BLOCK = 256  # images at a time


def cross_entropy(model: Any, example: tuple[Array, Array], moment: Moment) -> Array:
    """Softmax cross-entropy of one example ``(x, label)``."""
    x, label = example
    logits = model(x)
    return jax.nn.logsumexp(logits) - logits[label]


def accuracy(model: Any, x: Array, y: Array) -> float:
    """The fraction of examples whose largest logit is that of their label."""
    parts = [np.asarray(_predictions(model, x[begin : begin + _BLOCK])) for begin in range(0, len(x), _BLOCK)]
    return float(np.mean(np.concatenate(parts) == np.asarray(y)))


@eqx.filter_jit
def _predictions(model: Any, x: Array) -> Array:
    return jnp.argmax(jax.vmap(model)(x), axis=1)
