"""Random numbers of a training: counter-based, so that every draw has an address and none depends on another.

The generator is Threefry-2x32 with 20 rounds, bit for bit JAX's own. It is written out here because JAX rolls its
rounds into a loop on CPUs and uses only half of the bits, which makes it several times slower than one fused loop.
A draw is addressed by (seed, model, world, stream, step, index). Uniforms have 32 bits; normals come from them by
Box and Muller's transform and so end at 6.8 standard deviations, beyond which lies a mass of 1e-11.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from lastiterate.arrays import BoolArray, IntArray

_PARITY = np.uint32(0x1BD11BDA)  # Salmon et al. 2011, as are the rotations
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))

Words = tuple[jax.Array, jax.Array]  # the generator makes 32-bit words two at a time


class Stream(IntEnum):
    """What random numbers are for. Streams are independent: a longer batch does not change the noise."""

    SAMPLING = 0
    NOISE = 1
    LOSS = 2


class Keys(NamedTuple):
    """The keys of a chunk of models: one array [models, 2] for each stream."""

    sampling: jax.Array
    noise: jax.Array
    loss: jax.Array


class _Float(Protocol):
    """``jnp.float32`` or ``jnp.float64``: a type of numbers, which makes an array of what it is called with."""

    @property
    def dtype(self) -> np.dtype[np.floating]: ...
    def __call__(self, value: ArrayLike, /) -> jax.Array: ...


def model_keys(seed: int, models: IntArray | jax.Array, present: BoolArray | jax.Array) -> Keys:
    """Keys that depend on the audit's seed, the model's number and its world, and on nothing else."""
    low, high = jnp.uint32(seed & 0xFFFFFFFF), jnp.uint32(seed >> 32)
    number = jnp.asarray(models, jnp.uint32)
    world = jnp.asarray(present, jnp.uint32)
    return Keys(*(jnp.stack(threefry((low, high), number, 2 * s + world), axis=-1) for s in map(jnp.uint32, Stream)))


def threefry(key: Words, first: jax.Array, second: jax.Array) -> Words:
    """The two words of Threefry-2x32-20 at the counter (first, second). All arrays are uint32 and broadcast."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    x, y = first + keys[0], second + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation)))
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def words(keys: jax.Array, step: ArrayLike, index: jax.Array) -> Words:
    """Two random words for each model of ``keys`` [models, 2] and each index; the result is [models, ...index]."""
    shape = (-1,) + (1,) * index.ndim
    key = keys[:, 0].reshape(shape), keys[:, 1].reshape(shape)
    return threefry(key, jnp.asarray(step, jnp.uint32), index.astype(jnp.uint32)[None])


def normals(
    keys: jax.Array, step: ArrayLike, shape: tuple[int, ...], offset: int = 0, dtype: DTypeLike = jnp.float32
) -> jax.Array:
    """Standard normals [models, *shape], from the counters that begin at ``offset``.

    The random bits are the same for every ``dtype``; float64 keeps more digits of the numbers made from them.
    """
    count = math.prod(shape)
    radius_bits, angle_bits = words(keys, step, offset + jnp.arange(normal_counters(count), dtype=jnp.uint32))
    wide: _Float = jnp.float64 if dtype == jnp.float64 else jnp.float32
    radius = jnp.sqrt(-2.0 * jnp.log(_uniform(radius_bits, wide)))
    angle = _angle_in_quadrant(angle_bits, wide)
    pair = (jnp.sin(angle), jnp.cos(angle)) if wide == jnp.float64 else _sine_and_cosine(angle)
    sine, cosine = _turned(angle_bits, *pair)
    flat = jnp.concatenate([radius * sine, radius * cosine], axis=1)
    return flat[:, :count].reshape(keys.shape[0], *shape).astype(dtype)


def normal_counters(count: int) -> int:
    """How many counters that many normals use up."""
    return (count + 1) // 2


def exponentials(keys: jax.Array, step: ArrayLike, index: jax.Array) -> jax.Array:
    """Standard exponentials [models, ...index], small and large ones alike with all digits that float32 has."""
    word, _ = words(keys, step, index)
    small = word < np.uint32(2**31)
    return jnp.where(small, -jnp.log1p(-_uniform(word)), -jnp.log(_uniform(~word)))


def loss_keys(keys: jax.Array, step: ArrayLike, slots: jax.Array) -> jax.Array:
    """JAX keys for the randomness within a loss, one for each model and slot; ``slots`` is [models, block]."""
    key = keys[:, :1], keys[:, 1:]
    pair = threefry(key, jnp.asarray(step, jnp.uint32), slots.astype(jnp.uint32))
    wrapped: jax.Array = jax.random.wrap_key_data(jnp.stack(pair, axis=-1), impl="threefry2x32")
    return wrapped


def _uniform(word: jax.Array, dtype: _Float = jnp.float32) -> jax.Array:
    """A word as a number in (0, 1]. Small ones keep all 32 bits, since floats are dense near 0."""
    return (word.astype(dtype) + dtype(0.5)) * dtype(2.0**-32)


def _angle_in_quadrant(word: jax.Array, dtype: _Float) -> jax.Array:
    """An angle in (-pi/4, pi/4) from the word's lower 30 bits, as far as float32 can hold them."""
    fraction = ((word << np.uint32(2)) >> np.uint32(9)).astype(dtype) * dtype(2.0**-23)
    return (fraction + dtype(2.0**-24 - 0.5)) * dtype(math.pi / 2)


def _sine_and_cosine(angle: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both by their Taylor series, which on [-pi/4, pi/4] are as precise as float32.

    XLA's own functions take several times as long on CPUs, because they must first reduce an argument of any size.
    """
    square = angle * angle
    sine = angle * _polynomial(square, [(-1) ** k / math.factorial(2 * k + 1) for k in range(5)])
    return sine, _polynomial(square, [(-1) ** k / math.factorial(2 * k) for k in range(6)])


def _turned(word: jax.Array, sine: jax.Array, cosine: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sine and cosine of an angle, turned by as many quarters as the word's two upper bits say."""
    quarters = word >> np.uint32(30)
    odd, half = (quarters & np.uint32(1)) == 1, quarters >= np.uint32(2)
    sine, cosine = jnp.where(odd, cosine, sine), jnp.where(odd, -sine, cosine)
    return jnp.where(half, -sine, sine), jnp.where(half, -cosine, cosine)


def _polynomial(x: jax.Array, coefficients: list[float]) -> jax.Array:
    """By Horner's rule; ``coefficients`` are those of the powers from 0 on, two or more."""
    highest, *lower = (np.float32(coefficient) for coefficient in reversed(coefficients))
    result = highest * x + lower[0]
    for coefficient in lower[1:]:
        result = result * x + coefficient
    return result
