"""One step of SGD as ``SGD`` describes it, in PyTorch's convention, and what is released in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from lastiterate.optimizer import SGD

if TYPE_CHECKING:
    from jaxtyping import PyTree


class Weights(NamedTuple):
    """Parameters of a chunk of models, with what their optimizer remembers. None: it does not need it."""

    parameters: PyTree[jax.Array]
    momentum: PyTree[jax.Array] | None
    average: PyTree[jax.Array] | None


def start(optimizer: SGD, parameters: PyTree[jax.Array]) -> Weights:
    """The weights before the first step."""
    momentum = jax.tree.map(jnp.zeros_like, parameters) if optimizer.momentum else None
    return Weights(parameters, momentum, None if optimizer.averaging is None else jax.tree.map(jnp.array, parameters))


def update(
    optimizer: SGD, weights: Weights, gradient: PyTree[jax.Array], learning_rate: jax.Array, step: jax.Array
) -> Weights:
    """The weights after one more step.

    Args:
        gradient: the sum in parentheses of Algorithm 1: clipped gradients, the regulariser's gradient and noise.
        learning_rate: that of this step.
        step: the number of this step, from 0.
    """
    tree = jax.tree.map
    parameters, buffer, average = weights
    decay = optimizer.weight_decay
    if decay and not optimizer.decoupled:
        gradient = tree(lambda g, p: g + decay * p, gradient, parameters)
    direction = gradient
    if optimizer.momentum:
        entering = jnp.where(step == 0, 1.0, 1.0 - optimizer.dampening)
        buffer = tree(lambda b, g: optimizer.momentum * b + entering.astype(g.dtype) * g, buffer, gradient)
        direction = tree(lambda g, b: g + optimizer.momentum * b, gradient, buffer) if optimizer.nesterov else buffer
    kept = 1.0 - learning_rate * decay if optimizer.decoupled else 1.0
    parameters = tree(
        lambda p, d: p * jnp.asarray(kept, p.dtype) - learning_rate.astype(p.dtype) * d, parameters, direction
    )
    if optimizer.averaging == "uniform":
        average = tree(lambda a, p: a + (p - a) / (step + 1).astype(p.dtype), average, parameters)
    elif optimizer.averaging is not None:
        rate = float(optimizer.averaging)
        average = tree(lambda a, p: rate * a + (1.0 - rate) * p, average, parameters)
    return Weights(parameters, buffer, average)


def released(weights: Weights) -> PyTree[jax.Array]:
    """The parameters that are released: their average if the optimizer keeps one, else the last iterate."""
    return weights.parameters if weights.average is None else weights.average
