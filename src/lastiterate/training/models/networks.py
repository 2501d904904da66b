"""Classifiers: CNN, MLP and WideResNet.

CNN and MLP have tanh, which private training prefers to ReLU (Papernot et al. 2020). WideResNet is the one that De et
al. (2022) train privately, with group normalisation and weight standardisation.
"""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp

from lastiterate.common.validation import integer, told
from lastiterate.training.models.layers import MOST, Conv, Dense, GroupNorm, checked_key, convolve, max_pool

# Kernel, stride and padding of the two convolutions, by height of the image. Those for 28 and 32 are the network of
# Papernot et al. and of Opacus' MNIST example.
_CONVOLUTIONS = {8: ((3, 1, 1), (3, 2, 0)), 28: ((8, 2, 3), (4, 2, 0)), 32: ((8, 2, 3), (4, 2, 0))}


class CNN(eqx.Module):
    """Convolutions with 16 and 32 channels, each with max pooling and tanh, then dense layers of 32 and ``classes``.

    Args:
        shape: the shape of an image, (height, width, channels): 8 x 8, 28 x 28 or 32 x 32, with any number of channels.
        classes: the number of logits.
        key: a JAX key for the initial parameters.
    """

    first: Conv
    second: Conv
    hidden: Dense
    output: Dense

    def __init__(self, shape: tuple[int, int, int], classes: int, key: jax.Array) -> None:
        if not isinstance(shape, (tuple, list)) or len(shape) != 3:
            raise ValueError(f"shape must be (n, n, channels) with n one of 8, 28 and 32, got {told(shape)}")
        for length in shape:
            integer("shape", length, 1, MOST)
        if shape[0] != shape[1] or shape[0] not in _CONVOLUTIONS:
            raise ValueError(f"shape must be (n, n, channels) with n one of 8, 28 and 32, got {tuple(shape)}")
        integer("classes", classes, 1, MOST)
        keys = jax.random.split(checked_key(key), 4)
        first, second = _CONVOLUTIONS[shape[0]]
        self.first = Conv(shape[2], 16, *first, keys[0])
        self.second = Conv(16, 32, *second, keys[1])
        side = _pooled(_pooled(shape[0], *first), *second)
        self.hidden = Dense(side * side * 32, 32, keys[2])
        self.output = Dense(32, classes, keys[3])

    def __call__(self, x: jax.Array) -> jax.Array:
        # Pooling before tanh gives the same result, and a step takes 16 to 23% less time.
        x = jnp.tanh(max_pool(self.first(x)))
        x = jnp.tanh(max_pool(self.second(x)))
        return self.output(jnp.tanh(self.hidden(x.reshape(-1))))


def _pooled(side: int, kernel: int, stride: int, padding: int) -> int:
    """Return the side of an image after a convolution and pooling."""
    return (side + 2 * padding - kernel) // stride


# MLP: the tanh network with dense layers only.


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


# WideResNet: as in the code of De et al. (2022), an activation comes before its normalisation, every group of blocks
# begins with a projection of the skipped branch, and kernels, standardised over their inputs, have a gain and a bias.

_GROUPS = 16
_CUT_DEVIATION = 0.87962566  # standard deviation of a standard normal truncated to [-2, 2]
_LEAST_VARIANCE = 1e-4  # smallest variance of a kernel, times its number of inputs


class StandardisedConv(eqx.Module):
    """A convolution whose kernel has mean 0 and norm ``gain`` for each output, with "same" padding."""

    weight: jax.Array  # [kernel * kernel * inputs, outputs]
    gain: jax.Array
    bias: jax.Array
    kernel: int = eqx.field(static=True)
    stride: int = eqx.field(static=True)

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, key: jax.Array) -> None:
        fan_in = kernel * kernel * inputs
        self.weight = jax.random.normal(key, (fan_in, outputs)) * fan_in**-0.5
        self.gain, self.bias = jnp.ones(outputs), jnp.zeros(outputs)
        self.kernel, self.stride = kernel, stride

    def __call__(self, x: jax.Array) -> jax.Array:
        fan_in = self.weight.shape[0]
        centred = self.weight - jnp.mean(self.weight, axis=0)
        variance = jnp.mean(jnp.square(centred), axis=0)
        scale = jax.lax.rsqrt(jnp.maximum(variance * fan_in, _LEAST_VARIANCE)) * self.gain
        return convolve(self._padded(x), centred * scale, self.kernel, self.stride) + self.bias

    def _padded(self, x: jax.Array) -> jax.Array:
        """Return the image padded with zeros on all sides, the odd one at the end: the convention called "same"."""
        amounts = [max((-(-side // self.stride) - 1) * self.stride + self.kernel - side, 0) for side in x.shape[:2]]
        return jnp.pad(x, [(amount // 2, amount - amount // 2) for amount in amounts] + [(0, 0)])


class Branch(eqx.Module):
    """ReLU, normalisation, convolution."""

    norm: GroupNorm
    conv: StandardisedConv

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, key: jax.Array) -> None:
        self.norm = GroupNorm(inputs, _GROUPS)
        self.conv = StandardisedConv(inputs, outputs, kernel, stride, key)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.conv(self.norm(jax.nn.relu(x)))


class Block(eqx.Module):
    """Two 3x3 branches in sequence, added to the skipped branch, which the first block of a group projects."""

    first: Branch
    second: Branch
    skip: Branch | None

    def __init__(self, inputs: int, outputs: int, stride: int, projects: bool, key: jax.Array) -> None:
        keys = jax.random.split(key, 3)
        self.first = Branch(inputs, outputs, 3, stride, keys[0])
        self.second = Branch(outputs, outputs, 3, 1, keys[1])
        self.skip = Branch(inputs, outputs, 1, stride, keys[2]) if projects else None

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.second(self.first(x)) + (x if self.skip is None else self.skip(x))


class WideResNet(eqx.Module):
    """WideResNet-``depth``-``width`` for images [height, width, 3]; depth is 6 n + 4."""

    stem: StandardisedConv
    blocks: tuple[Block, ...]
    norm: GroupNorm
    output: Dense

    def __init__(self, depth: int, width: int, classes: int, key: jax.Array) -> None:
        integer("depth", depth, 1, MOST)
        integer("width", width, 1, MOST)
        integer("classes", classes, 1, MOST)
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"depth must be 6 n + 4 with n at least 1, such as 16 or 40, got {depth}")
        in_group = (depth - 4) // 6
        keys = iter(jax.random.split(checked_key(key), 3 + 3 * in_group))
        self.stem = StandardisedConv(3, 16, 3, 1, next(keys))
        blocks, channels = [], 16
        for group, outputs in enumerate((16 * width, 32 * width, 64 * width)):
            for position in range(in_group):
                stride = 2 if group and not position else 1
                blocks.append(Block(channels, outputs, stride, position == 0, next(keys)))
                channels = outputs
        self.blocks = tuple(blocks)
        self.norm = GroupNorm(channels, _GROUPS)
        output = Dense(channels, classes, next(keys))
        self.output = eqx.tree_at(lambda n: (n.weight, n.bias), output, _output_weights(channels, classes, next(keys)))

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.output(jnp.mean(self.norm(jax.nn.relu(x)), axis=(0, 1)))


def _output_weights(inputs: int, outputs: int, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return normal weights, cut at two standard deviations and scaled to variance 1 / inputs, and zero biases."""
    cut = jax.random.truncated_normal(key, -2.0, 2.0, (inputs, outputs))
    return cut / (_CUT_DEVIATION * inputs**0.5), jnp.zeros(outputs)
