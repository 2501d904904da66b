"""Random numbers of a training: counter-based, so that every draw has an address and none depends on another.

The generator is Threefry-2x32 with 20 rounds, bit for bit JAX's own. It is written out here because JAX rolls its
rounds into a loop on CPUs and uses only half of the bits, which makes it several times slower than one fused loop.
A draw is addressed by (seed, model, world, stream, step, index). Uniforms have 32 bits; normals come from them by
Box and Muller's transform and so end at 6.8 standard deviations, beyond which lies a mass of 1e-11.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from scipy.stats import binom

from lastiterate.common.types import BoolArray, FloatArray, Int32Array, IntArray, UInt32Array, UInt64Array

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


# How many of m identical examples are in a batch: exact binomial draws by inverting the distribution function.
#
# JAX's own binomial works in float32 by rejection, which cannot resolve counts in the millions. Here a table of the
# distribution function, made once in float64, is searched with a uniform of 64 bits.

MOST_ENTRIES = 2**26

HostTables = tuple[Int32Array, Int32Array, UInt32Array, UInt32Array]  # the fields of ``BinomialTables``
Tables = tuple[jax.Array, jax.Array, jax.Array, jax.Array]  # the same on the device


@dataclass(frozen=True)
class BinomialTables:
    """For each distinct sample rate and each group, the binomial distribution function as integers out of 2^64.

    Entry k of a table is the probability of at most ``lows + k`` copies, split into a high and a low word of 32 bits.
    With a uniform draw of 64 bits, group g has at step t ``lows[rate, g]`` copies plus one for each entry of its table
    that is at most the draw, where rate is ``rate_of_step[t]``.
    """

    rate_of_step: Int32Array  # [steps]
    lows: Int32Array  # [rates, groups]
    high_words: UInt32Array  # [rates, groups, entries]
    low_words: UInt32Array

    @property
    def arrays(self) -> HostTables:
        """All of it, for ``binomial_counts`` to take."""
        return self.rate_of_step, self.lows, self.high_words, self.low_words


def binomial_tables(multiplicity: IntArray, sample_rate: FloatArray) -> BinomialTables:
    """Tables for groups of these multiplicities and the sample rates of all steps."""
    rates, rate_of_step = np.unique(sample_rate, return_inverse=True)
    trials, group = np.unique(multiplicity, return_inverse=True)
    mean = trials * rates[:, None]
    reach = 9.0 * np.sqrt(mean * (1.0 - rates[:, None])) + 40.0  # a mass below 2^-64 lies beyond
    low = np.maximum(np.floor(mean - reach), 0).astype(np.int64)
    entries = int(np.max(np.minimum(np.ceil(mean + reach), trials) - low)) or 1
    if entries * rates.size * multiplicity.size > MOST_ENTRIES:
        raise ValueError(
            f"multiplicity and sample_rate need {rates.size} x {multiplicity.size} tables of {entries} numbers, which "
            f"is more than {MOST_ENTRIES}: use fewer groups, or fewer different sample rates"
        )
    counts = low[..., None] + np.arange(entries)
    below = binom.cdf(counts, trials[:, None], rates[:, None, None])
    thresholds = _as_words(below)
    return BinomialTables(
        rate_of_step.astype(np.int32),
        low[:, group].astype(np.int32),
        (thresholds >> np.uint64(32)).astype(np.uint32)[:, group],
        (thresholds & np.uint64(0xFFFFFFFF)).astype(np.uint32)[:, group],
    )


def binomial_counts(keys: jax.Array, step: jax.Array, tables: Tables) -> jax.Array:
    """How many copies of each group each model draws at a step: [models, groups]."""
    rate_of_step, lows, high_words, low_words = tables
    rate = rate_of_step[step]
    groups, entries = high_words.shape[1:]
    high, low = words(keys, step, jnp.arange(groups))
    first = jnp.arange(groups) * entries
    high_table, low_table = high_words[rate].reshape(-1), low_words[rate].reshape(-1)

    def search(reached: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """How many entries of each table are reached. Tables ascend, so bisection finds it, bit by bit.

        A loop of the compiled program: written out, XLA fuses all bits, and is ten times as slow on CPUs.
        """

        def bisect(bit: jax.Array, found: jax.Array) -> jax.Array:
            candidate = found + (largest >> bit)
            is_reached = reached(first + jnp.minimum(candidate, entries) - 1)
            return jnp.where((candidate <= entries) & is_reached, candidate, found)

        largest = 1 << (entries.bit_length() - 1)
        found: jax.Array = jax.lax.fori_loop(0, entries.bit_length(), bisect, jnp.zeros(high.shape, jnp.int32))
        return found

    def both_words(at: jax.Array) -> jax.Array:
        return (high_table[at] < high) | ((high_table[at] == high) & (low_table[at] <= low))

    # Reading tables takes most of the time, and low words matter only if a draw's high word is equal to an entry's.
    found = search(lambda at: high_table[at] < high)
    tied = high_table[first + jnp.minimum(found, entries - 1)] == high
    counts: jax.Array = jax.lax.cond(jnp.any(tied), lambda: search(both_words), lambda: found)
    return lows[rate] + counts


def _as_words(probability: FloatArray) -> UInt64Array:
    """Probabilities as integers out of 2^64. 1 becomes the largest one, which a draw reaches once in 2^64 times."""
    largest = np.nextafter(2.0**64, 0.0)
    whole = np.minimum(np.ldexp(probability, 64), largest).astype(np.uint64)
    return np.where(probability >= 1.0, np.uint64(2**64 - 1), whole)
