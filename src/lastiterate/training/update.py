"""One step of SGD or Adam, with PyTorch's conventions, and the released parameters."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import PyTree

from lastiterate.optimizer import SGD, Adam, Optimizer, is_adam


class Weights(NamedTuple):
    """Parameters of a chunk of models, with the optimizer's state. A field is None if the optimizer does not use it."""

    parameters: PyTree[jax.Array]
    momentum: PyTree[jax.Array] | None
    average: PyTree[jax.Array] | None
    second: PyTree[jax.Array] | None = None  # Adam's mean of squared gradients, without bias correction


def start(optimizer: Optimizer, parameters: PyTree[jax.Array]) -> Weights:
    """Return the weights before the first step."""
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    if optimizer.is_adaptive:
        return Weights(parameters, zeros, None, zeros)
    momentum = zeros if optimizer.momentum else None
    return Weights(parameters, momentum, None if optimizer.averaging is None else jax.tree.map(jnp.array, parameters))


def update(
    optimizer: Optimizer, weights: Weights, gradient: PyTree, learning_rate: jax.Array, step: jax.Array
) -> Weights:
    """Return the weights after step ``step``, counted from 0. ``gradient`` is the noisy sum of Algorithm 1."""
    tree, decay = jax.tree.map, optimizer.weight_decay
    if decay and not optimizer.decoupled:
        gradient = tree(lambda g, p: g + decay * p, gradient, weights.parameters)
    kept = 1.0 - learning_rate * decay if optimizer.decoupled else 1.0
    if is_adam(optimizer):
        return _adam(optimizer, weights, gradient, learning_rate, step, kept)
    return _sgd(optimizer, weights, gradient, learning_rate, step, kept)


def _sgd(
    sgd: SGD, weights: Weights, gradient: PyTree, learning_rate: jax.Array, step: jax.Array, kept: ArrayLike
) -> Weights:
    tree = jax.tree.map
    parameters, buffer, average, _ = weights
    direction = gradient
    if sgd.momentum:
        entering = jnp.where(step == 0, 1.0, 1.0 - sgd.dampening)
        buffer = tree(lambda b, g: sgd.momentum * b + entering.astype(g.dtype) * g, buffer, gradient)
        direction = tree(lambda g, b: g + sgd.momentum * b, gradient, buffer) if sgd.nesterov else buffer
    parameters = tree(
        lambda p, d: p * jnp.asarray(kept, p.dtype) - learning_rate.astype(p.dtype) * d, parameters, direction
    )
    if sgd.averaging == "uniform":
        average = tree(lambda a, p: a + (p - a) / (step + 1).astype(p.dtype), average, parameters)
    elif sgd.averaging is not None:
        rate = float(sgd.averaging)
        average = tree(lambda a, p: rate * a + (1.0 - rate) * p, average, parameters)
    return Weights(parameters, buffer, average)


def _adam(
    adam: Adam, weights: Weights, gradient: PyTree, learning_rate: jax.Array, step: jax.Array, kept: ArrayLike
) -> Weights:
    tree = jax.tree.map
    mean = tree(lambda m, g: m + (1.0 - adam.beta1) * (g - m), weights.momentum, gradient)
    second = tree(lambda v, g: adam.beta2 * v + (1.0 - adam.beta2) * g * g, weights.second, gradient)

    def moved(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        count = (step + 1).astype(p.dtype)
        size = learning_rate.astype(p.dtype) / bias(adam.beta1, count)
        divisor = jnp.sqrt(v) / jnp.sqrt(bias(adam.beta2, count)) + adam.eps
        return p * jnp.asarray(kept, p.dtype) - size * m / divisor

    return Weights(tree(moved, weights.parameters, mean, second), mean, None, second)


def bias(beta: float, count: jax.Array) -> jax.Array:
    """Return 1 - beta^count. The direct formula would lose four digits in float32 for beta = 0.999."""
    return -jnp.expm1(count * math.log(beta)) if beta else jnp.ones_like(count)


def released(weights: Weights) -> PyTree[jax.Array]:
    """Return the released parameters: their average if the optimizer keeps one, otherwise the last iterate."""
    return weights.parameters if weights.average is None else weights.average
