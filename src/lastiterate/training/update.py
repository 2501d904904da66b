"""One step of SGD or Adam, in PyTorch's convention, and the parameters released in the end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from lastiterate.optimizer import SGD, Adam, Optimizer, is_adam

if TYPE_CHECKING:
    from jaxtyping import PyTree


class Weights(NamedTuple):
    """Parameters of a chunk of models, with the state of their optimizer. None: the optimizer has no such state.

    ``second`` is Adam's running mean of squared gradients, without bias correction.
    """

    parameters: PyTree[jax.Array]
    momentum: PyTree[jax.Array] | None
    average: PyTree[jax.Array] | None
    second: PyTree[jax.Array] | None = None


def start(optimizer: Optimizer, parameters: PyTree[jax.Array]) -> Weights:
    """Return the weights before the first step."""
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    if is_adam(optimizer):
        return Weights(parameters, zeros, None, zeros)
    momentum = zeros if optimizer.momentum else None
    return Weights(parameters, momentum, None if optimizer.averaging is None else jax.tree.map(jnp.array, parameters))


def update(
    optimizer: Optimizer,
    weights: Weights,
    gradient: PyTree[jax.Array],
    learning_rate: jax.Array,
    step: jax.Array,
) -> Weights:
    """Return the weights after one more step.

    Args:
        gradient: the sum in parentheses of Algorithm 1: clipped gradients, the regulariser's gradient and noise.
        learning_rate: the learning rate of this step.
        step: the number of this step, from 0.
    """
    if is_adam(optimizer):
        return _adam(optimizer, weights, gradient, learning_rate, step)
    return _sgd(optimizer, weights, gradient, learning_rate, step)


def _sgd(
    optimizer: SGD, weights: Weights, gradient: PyTree[jax.Array], learning_rate: jax.Array, step: jax.Array
) -> Weights:
    tree = jax.tree.map
    parameters, buffer, average, _ = weights
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


def _adam(
    adam: Adam, weights: Weights, gradient: PyTree[jax.Array], learning_rate: jax.Array, step: jax.Array
) -> Weights:
    tree, decay = jax.tree.map, adam.weight_decay
    parameters = weights.parameters
    if decay and not adam.decoupled:
        gradient = tree(lambda g, p: g + decay * p, gradient, parameters)
    mean = tree(lambda m, g: m + (1.0 - adam.beta1) * (g - m), weights.momentum, gradient)
    second = tree(lambda v, g: adam.beta2 * v + (1.0 - adam.beta2) * g * g, weights.second, gradient)
    kept = 1.0 - learning_rate * decay if adam.decoupled else 1.0

    def moved(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        count = (step + 1).astype(p.dtype)
        size = learning_rate.astype(p.dtype) / bias(adam.beta1, count)
        divisor = jnp.sqrt(v) / jnp.sqrt(bias(adam.beta2, count)) + adam.eps
        return p * jnp.asarray(kept, p.dtype) - size * m / divisor

    return Weights(tree(moved, parameters, mean, second), mean, None, second)


def bias(beta: float, count: jax.Array) -> jax.Array:
    """Return 1 - beta^count. Computed directly in float32, it would lose four digits for beta = 0.999."""
    return -jnp.expm1(count * math.log(beta)) if beta else jnp.ones_like(count)


def released(weights: Weights) -> PyTree[jax.Array]:
    """Return the released parameters: their average if the optimizer keeps one, otherwise the last iterate."""
    return weights.parameters if weights.average is None else weights.average
