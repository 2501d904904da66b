"""Models included in the library: layers for one example, augmentation, cross-entropy, accuracy, and three classifiers.

When models with different weights are trained at once, XLA uses grouped convolutions and scatters, which are slow on
CPUs. So convolutions are written as products of image patches and a kernel matrix, and patches are made of slices.
``training.gradients`` recognises the gradient of such a product if the kernel is used once.

CNN and MLP use tanh, which suits private training better than ReLU (Papernot et al. 2020). WideResNet is the network
of De et al. (2022), with group normalisation and weight standardisation.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from numpy.typing import NDArray

from lastiterate.common.types import NumberArray
from lastiterate.common.validation import as_array, function, integer, told
from lastiterate.training.problem import Loss, Moment

MOST = 2**31 - 1  # largest number of inputs, outputs or channels of a layer: indices are int32


class Dense(eqx.Module):
    """A dense layer. Initial weights and biases are uniform in [-1/sqrt(inputs), 1/sqrt(inputs)], as in PyTorch."""

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
    # Patches are composed of tiles of stride by stride pixels, first along rows, then along columns. No slice skips
    # pixels, and the gradient is a sum of a few shifted blocks.
    rows, columns, channels = x.shape
    height, width = (rows - kernel) // stride + 1, (columns - kernel) // stride + 1
    tiles = -(-kernel // stride)  # number of tiles that a patch touches along each axis
    down, across = height - 1 + tiles, width - 1 + tiles
    fit = ((0, down * stride - rows, 0), (0, across * stride - columns, 0), (0, 0, 0))  # negative padding drops pixels
    x = jax.lax.pad(x, x.dtype.type(0), fit).reshape(down, stride, across, stride * channels).transpose(0, 2, 1, 3)
    line = kernel * channels  # size of one row of a patch
    wide = jnp.concatenate([x[:, j : j + width, :, : line - j * stride * channels] for j in range(tiles)], axis=3)
    wide = wide.reshape(down, width, stride * line)
    parts = [wide[i : i + height, :, : (kernel - i * stride) * line] for i in range(tiles)]
    patches = jnp.concatenate(parts, axis=2).reshape(height * width, -1)
    return (patches @ kernel_matrix).reshape(height, width, -1)


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


def _check_sizes(*pairs: tuple[str, int], **sizes: int) -> None:
    for name, size in (*pairs, *sizes.items()):
        integer(name, size, 1, MOST)


# Augmentation multiplicity (De et al. 2022): the mean gradient over random views of an example is clipped.

_REACH = 4  # largest displacement of a view, in pixels


def random_view(image: jax.Array, key: jax.Array) -> jax.Array:
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

    def mean_loss(parameters: PyTree, example: tuple[jax.Array, jax.Array], moment: Moment) -> jax.Array:
        image, label = example

        def one_view(key: jax.Array) -> jax.Array:
            looking, losing = jax.random.split(key)
            return loss(parameters, (random_view(image, looking), label), Moment(moment.step, losing))

        return jnp.mean(jax.vmap(one_view)(jax.random.split(moment.key, count)))

    return mean_loss


# Loss and accuracy: cross-entropy of one example, and accuracy of a classifier.

_BLOCK = 256  # images that are evaluated at once

Classifier: TypeAlias = Callable[[jax.Array], jax.Array]  # from one example to its logits


def cross_entropy(model: Classifier, example: tuple[jax.Array, jax.Array], moment: Moment) -> jax.Array:
    """Return the softmax cross-entropy of one example ``(x, label)``."""
    x, label = example
    logits = model(x)
    return jax.nn.logsumexp(logits) - logits[label]


def accuracy(model: Classifier, x: NumberArray, y: NDArray[np.integer]) -> float:
    """Return the fraction of examples for which the label has the largest logit."""
    function("model", model, "a function from one example to its logits")
    images, labels = as_array("x", x), as_array("y", y)
    if images.dtype.kind not in "biuf" or images.ndim < 1 or not len(images):
        raise ValueError(f"x must be an array of examples, at least one, got {told(x)}")
    if labels.dtype.kind not in "iu" or labels.shape != (len(images),):
        raise ValueError(f"y must be {len(images)} integers, one for each example, got shape {labels.shape}")
    parts = [np.asarray(_predictions(model, images[begin : begin + _BLOCK])) for begin in range(0, len(images), _BLOCK)]
    return float(np.mean(np.concatenate(parts) == labels))


@eqx.filter_jit
def _predictions(model: Classifier, x: NumberArray) -> jax.Array:
    return jnp.argmax(jax.vmap(model)(jnp.asarray(x)), axis=1)


def squared_error(model: Classifier, example: tuple[jax.Array, jax.Array], moment: Moment) -> jax.Array:
    """Return half the squared distance between the outputs and the unit vector of the label."""
    x, label = example
    outputs = model(x)
    return 0.5 * jnp.sum(jnp.square(outputs - jax.nn.one_hot(label, outputs.size, dtype=outputs.dtype)))


class Scaled(eqx.Module):
    """A model whose inputs are multiplied by a constant first, such as features in uint8."""

    model: Classifier
    scale: float = eqx.field(static=True)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.model(x.astype(float) * self.scale)


# Networks.

# Kernel, stride and padding of the two convolutions, by height of the image. The values for heights 28 and 32 are from
# Papernot et al. and Opacus' MNIST example.
_CONVOLUTIONS = {8: ((3, 1, 1), (3, 2, 0)), 28: ((8, 2, 3), (4, 2, 0)), 32: ((8, 2, 3), (4, 2, 0))}


class CNN(eqx.Module):
    """Convolutions with 16 and 32 channels, each with max pooling and tanh, then dense layers of 32 and ``classes``.

    Images have 8 x 8, 28 x 28 or 32 x 32 pixels, and any number of channels.
    """

    first: Conv
    second: Conv
    hidden: Dense
    output: Dense

    def __init__(self, shape: tuple[int, int, int], classes: int, key: jax.Array) -> None:
        if not isinstance(shape, (tuple, list)) or len(shape) != 3:
            raise ValueError(f"shape must be (n, n, channels) with n one of 8, 28 and 32, got {told(shape)}")
        _check_sizes(*(("shape", length) for length in shape), classes=classes)
        if shape[0] != shape[1] or shape[0] not in _CONVOLUTIONS:
            raise ValueError(f"shape must be (n, n, channels) with n one of 8, 28 and 32, got {tuple(shape)}")
        keys = jax.random.split(checked_key(key), 4)
        first, second = _CONVOLUTIONS[shape[0]]
        self.first = Conv(shape[2], 16, *first, keys[0])
        self.second = Conv(16, 32, *second, keys[1])
        side = shape[0]
        for kernel, stride, padding in (first, second):
            side = (side + 2 * padding - kernel) // stride  # after the convolution and pooling
        self.hidden = Dense(side * side * 32, 32, keys[2])
        self.output = Dense(32, classes, keys[3])

    def __call__(self, x: jax.Array) -> jax.Array:
        # Pooling before tanh gives the same result, and a step takes 16 to 23% less time.
        x = jnp.tanh(max_pool(self.first(x)))
        x = jnp.tanh(max_pool(self.second(x)))
        return self.output(jnp.tanh(self.hidden(x.reshape(-1))))


class MLP(eqx.Module):
    """Dense layers with tanh between them. ``sizes`` includes the inputs and the outputs."""

    layers: tuple[Dense, ...]

    def __init__(self, sizes: Sequence[int], key: jax.Array) -> None:
        if not isinstance(sizes, (list, tuple)) or len(sizes) < 2:
            raise ValueError(f"sizes must be at least two numbers, those of inputs and outputs, got {told(sizes)}")
        _check_sizes(*(("sizes", size) for size in sizes))
        keys = jax.random.split(checked_key(key), len(sizes) - 1)
        triples = zip(sizes[:-1], sizes[1:], keys, strict=True)
        self.layers = tuple(Dense(inputs, outputs, key) for inputs, outputs, key in triples)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(-1)
        for layer in self.layers[:-1]:
            x = jnp.tanh(layer(x))
        return self.layers[-1](x)


# WideResNet follows the code of De et al. (2022). Activations come before normalisations. The skip connection of the
# first block of each group is a projection. Kernels are standardised over their inputs and have a gain and a bias.

_GROUPS = 16
_CUT_DEVIATION = 0.87962566  # standard deviation of a standard normal truncated to [-2, 2]
_LEAST_VARIANCE = 1e-4  # smallest variance of a kernel, times its number of inputs


class StandardisedConv(eqx.Module):
    """A convolution with "same" padding. For each output, the kernel has mean 0 and norm ``gain``."""

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
        # "Same" padding: zeros on all sides. If their number is odd, one more is at the end.
        amounts = [max((-(-side // self.stride) - 1) * self.stride + self.kernel - side, 0) for side in x.shape[:2]]
        padded = jnp.pad(x, [(amount // 2, amount - amount // 2) for amount in amounts] + [(0, 0)])
        return convolve(padded, centred * scale, self.kernel, self.stride) + self.bias


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
    """Two 3x3 branches in sequence, plus a skip connection. In the first block of a group, it is a projection."""

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
        _check_sizes(depth=depth, width=width, classes=classes)
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
        # Weights are normal, truncated at two standard deviations and scaled to variance 1 / inputs. Biases are 0.
        cut = jax.random.truncated_normal(next(keys), -2.0, 2.0, (channels, classes))
        weights = cut / (_CUT_DEVIATION * channels**0.5), jnp.zeros(classes)
        self.output = eqx.tree_at(lambda n: (n.weight, n.bias), output, weights)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.output(jnp.mean(self.norm(jax.nn.relu(x)), axis=(0, 1)))
