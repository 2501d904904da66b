"""The tanh network with dense layers only."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp

from lastiterate.training.models.layers import MOST, Dense, checked_key
from lastiterate.values import integer, told


class MLP(eqx.Module):
    """Dense layers of these sizes, inputs and outputs included, with tanh between them."""

    layers: tuple[Dense, ...]

    def __init__(self, sizes: Sequence[int], key: jax.Array) -> None:
        if not isinstance(sizes, (list, tuple)) or len(sizes) < 2:
            raise ValueError(f"sizes must be at least two numbers, those of inputs and outputs, got {told(sizes)}")
        for size in sizes:
            integer("sizes", size, 1, MOST)
        keys = jax.random.split(checked_key(key), len(sizes) - 1)
        triples = zip(sizes[:-1], sizes[1:], keys, strict=True)
        self.layers = tuple(Dense(inputs, outputs, key) for inputs, outputs, key in triples)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(-1)
        for layer in self.layers[:-1]:
            x = jnp.tanh(layer(x))
        return self.layers[-1](x)
