"""Layers for one example, made of matrix products and slices; augmentation, cross-entropy and accuracy.

When models with different weights are trained at once, XLA turns convolutions into grouped ones, which are slow on
CPUs, and the gradient of a gather into a scatter. A product of patches and kernel, with patches made of slices, avoids
both. Its gradient has the form that ``training.gradients`` recognises, as long as a kernel is used once. Kernels are
therefore stored as matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from lastiterate.common.types import RealArray
from lastiterate.common.validation import as_array, function, integer, told
from lastiterate.training.problem import Loss, Moment

if TYPE_CHECKING:
    from jaxtyping import PyTree

MOST = 2**31 - 1  # largest number of inputs, outputs or channels of a layer: indices are int32


class Dense(eqx.Module):
    """A dense layer on vectors. Weights and biases begin uniform within 1/sqrt(inputs), as in PyTorch."""

    weight: jax.Array  # [inputs, outputs]
    bias: jax.Array

    def __init__(self, inputs: int, outputs: int, key: jax.Array) -> None:
        _check_sizes(inputs=inputs, outputs=outputs)
        self.weight, self.bias = _uniform(inputs, outputs, key)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x @ self.weight + self.bias


class Conv(eqx.Module):
    """A convolution on images [height, width, channels], with PyTorch's initialisation."""

    weight: jax.Array  # [kernel * kernel * inputs, outputs]
    bias: jax.Array
    kernel: int = eqx.field(static=True)
    stride: int = eqx.field(static=True)
    padding: int = eqx.field(static=True)

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, padding: int, key: jax.Array) -> None:
        _check_sizes(inputs=inputs, outputs=outputs, kernel=kernel, stride=stride)
        integer("padding", padding, 0, MOST)
        self.kernel, self.stride, self.padding = kernel, stride, padding
        self.weight, self.bias = _uniform(kernel * kernel * inputs, outputs, key)

    def __call__(self, x: jax.Array) -> jax.Array:
        if self.padding:
            x = jnp.pad(x, ((self.padding, self.padding), (self.padding, self.padding), (0, 0)))
        return convolve(x, self.weight, self.kernel, self.stride) + self.bias


class GroupNorm(eqx.Module):
    """Normalisation of groups of channels over the whole image, with a scale and an offset for each channel."""

    scale: jax.Array
    offset: jax.Array
    groups: int = eqx.field(static=True)

    def __init__(self, channels: int, groups: int) -> None:
        _check_sizes(channels=channels, groups=groups)
        if channels % groups:
            raise ValueError(f"groups must divide the number of channels, {channels}, got {groups}")
        self.scale, self.offset, self.groups = jnp.ones(channels), jnp.zeros(channels), groups

    def __call__(self, x: jax.Array) -> jax.Array:
        grouped = x.reshape(*x.shape[:2], self.groups, -1)
        mean = jnp.mean(grouped, axis=(0, 1, 3), keepdims=True)
        variance = jnp.var(grouped, axis=(0, 1, 3), keepdims=True)
        normal = ((grouped - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape)
        return normal * self.scale + self.offset


def convolve(x: jax.Array, kernel_matrix: jax.Array, kernel: int, stride: int) -> jax.Array:
    """Return a padded image convolved with a kernel given as a matrix [kernel^2 * inputs, outputs]."""
    patches = image_patches(x, kernel, stride)
    height, width, size = patches.shape
    return (patches.reshape(-1, size) @ kernel_matrix).reshape(height, width, -1)


def image_patches(x: jax.Array, kernel: int, stride: int) -> jax.Array:
    """Return all patches of an image: [rows, columns, kernel * kernel * channels].

    The image is cut into tiles of stride by stride pixels. Patches are put together from tiles, first along rows, then
    along columns. No slice has to skip pixels, and the gradient is a sum of a few whole blocks, shifted by tiles.
    """
    rows, columns, channels = x.shape
    height, width = (rows - kernel) // stride + 1, (columns - kernel) // stride + 1
    tiles = -(-kernel // stride)  # number of tiles that a patch touches along each axis
    down, across = height - 1 + tiles, width - 1 + tiles
    fit = ((0, down * stride - rows, 0), (0, across * stride - columns, 0), (0, 0, 0))  # negative: pixels in no patch
    x = jax.lax.pad(x, x.dtype.type(0), fit).reshape(down, stride, across, stride * channels).transpose(0, 2, 1, 3)
    line = kernel * channels  # one line of pixels of a patch
    wide = jnp.concatenate([x[:, j : j + width, :, : line - j * stride * channels] for j in range(tiles)], axis=3)
    wide = wide.reshape(down, width, stride * line)
    return jnp.concatenate([wide[i : i + height, :, : (kernel - i * stride) * line] for i in range(tiles)], axis=2)


def max_pool(x: jax.Array) -> jax.Array:
    """Return the largest value in each window of 2 by 2, at stride 1."""
    tall = jnp.maximum(x[:-1], x[1:])
    return jnp.maximum(tall[:, :-1], tall[:, 1:])


def _uniform(inputs: int, outputs: int, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    bound = 1.0 / math.sqrt(inputs)
    first, second = jax.random.split(checked_key(key))
    weight = jax.random.uniform(first, (inputs, outputs), minval=-bound, maxval=bound)
    return weight, jax.random.uniform(second, (outputs,), minval=-bound, maxval=bound)


def checked_key(key: object) -> jax.Array:
    """Return a valid JAX key, new or old style, or raise."""
    if isinstance(key, jax.Array) and (
        (jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ())
        or (key.dtype == jnp.uint32 and key.shape == (2,))
    ):
        return key
    raise ValueError(f"key must be a JAX key, such as jax.random.key(0), got {told(key)}")


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        integer(name, size, 1, MOST)


# Augmentation multiplicity (De et al. 2022): the mean gradient over random views of an example is clipped.

_REACH = 4  # largest displacement of a view, in pixels


def random_view(image: Array, key: Array) -> Array:
    """Return the image moved by up to four pixels, with symmetric padding, and mirrored with probability 1/2."""
    where, mirrored = jax.random.split(key)
    padded = jnp.pad(image, ((_REACH, _REACH), (_REACH, _REACH), (0, 0)), mode="symmetric")
    corner = jax.random.randint(where, (2,), 0, 2 * _REACH + 1)
    moved = jax.lax.dynamic_slice(padded, (corner[0], corner[1], 0), image.shape)
    return jnp.where(jax.random.bernoulli(mirrored), moved[:, ::-1], moved)


def augmentation_multiplicity(loss: Loss, count: int) -> Loss:
    """Return the loss of an example ``(image, label)`` as the mean over ``count`` random views of its image."""

    function("loss", loss, "a function of parameters, example and moment")
    integer("count", count, 1, 2**20)

    def mean_loss(parameters: PyTree, example: tuple[Array, Array], moment: Moment) -> Array:
        image, label = example

        def one_view(key: Array) -> Array:
            looking, losing = jax.random.split(key)
            return loss(parameters, (random_view(image, looking), label), Moment(moment.step, losing))

        return jnp.mean(jax.vmap(one_view)(jax.random.split(moment.key, count)))

    return mean_loss


# Loss and accuracy: cross-entropy of one example, and accuracy of a classifier.

_BLOCK = 256  # images at a time

Classifier: TypeAlias = Callable[[jax.Array], jax.Array]  # from one example to its logits


def cross_entropy(model: Classifier, example: tuple[jax.Array, jax.Array], moment: Moment) -> jax.Array:
    """Return the softmax cross-entropy of one example ``(x, label)``."""
    x, label = example
    logits = model(x)
    return jax.nn.logsumexp(logits) - logits[label]


def accuracy(model: Classifier, x: RealArray, y: NDArray[np.integer]) -> float:
    """Return the fraction of examples whose largest logit is that of their label."""
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
