"""Counter-based random numbers for training. No draw depends on another.

The generator is Threefry-2x32 with 20 rounds. JAX's generator gives the same bits. JAX's version is
several times slower on CPUs, because it does not unroll the rounds and uses only half of the bits. A draw is a function
of (seed, model, world, stream, step, index). Uniforms have 32 bits. Normals are made from uniforms by the Box-Muller
transform, so they end at 6.8 standard deviations. The probability beyond is 1e-11.

Binomial draws give the number of copies of an example in a batch. A uniform of 64 bits is looked up in a table of the
distribution function. The table is computed once in float64. JAX's own binomial works in float32 by rejection and is
not exact for counts in the millions.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from scipy.stats import binom

from lastiterate.common.types import BoolArray, FloatArray, Int32Array, IntArray, UInt32Array

_PARITY = np.uint32(0x1BD11BDA)  # this constant and the rotations: Salmon et al. 2011
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))

Words = tuple[jax.Array, jax.Array]  # the generator makes two 32-bit words at a time


class Keys(NamedTuple):
    """The keys of a chunk of models: one array [models, 2] for each stream.

    Streams are independent. A larger batch, for example, does not change the noise.
    """

    sampling: jax.Array
    noise: jax.Array
    loss: jax.Array


def model_keys(seed: int, models: IntArray | jax.Array, present: BoolArray | jax.Array) -> Keys:
    """Return keys that depend only on the audit's seed, the model's number, and whether the canary is present."""
    low, high = jnp.uint32(seed & 0xFFFFFFFF), jnp.uint32(seed >> 32)
    number = jnp.asarray(models, jnp.uint32)
    world = jnp.asarray(present, jnp.uint32)
    return Keys(*(jnp.stack(threefry((low, high), number, 2 * s + world), axis=-1) for s in map(jnp.uint32, range(3))))


def threefry(key: Words, first: jax.Array, second: jax.Array) -> Words:
    """Return the two words of Threefry-2x32-20 at the counter (first, second). All arrays are uint32 and broadcast."""
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
    """Return two random words for each model of ``keys`` [models, 2] and each index, as arrays [models, ...index]."""
    shape = (-1,) + (1,) * index.ndim
    key = keys[:, 0].reshape(shape), keys[:, 1].reshape(shape)
    return threefry(key, jnp.asarray(step, jnp.uint32), index.astype(jnp.uint32)[None])


def normals(
    keys: jax.Array, step: ArrayLike, shape: tuple[int, ...], offset: int = 0, dtype: DTypeLike = jnp.float32
) -> jax.Array:
    """Return standard normals [models, *shape], starting at counter ``offset``. All dtypes use the same random bits."""
    count = math.prod(shape)
    radius_bits, angle_bits = words(keys, step, offset + jnp.arange(normal_counters(count), dtype=jnp.uint32))
    wide: Any = jnp.float64 if dtype == jnp.float64 else jnp.float32
    radius = jnp.sqrt(-2.0 * jnp.log(_uniform(radius_bits, wide)))
    # The upper 23 of the word's lower 30 bits give an angle in (-pi/4, pi/4). The two upper bits add quarter turns.
    fraction = ((angle_bits << np.uint32(2)) >> np.uint32(9)).astype(wide) * wide(2.0**-23)
    angle = (fraction + wide(2.0**-24 - 0.5)) * wide(math.pi / 2)
    pair = (jnp.sin(angle), jnp.cos(angle)) if wide == jnp.float64 else _sine_and_cosine(angle)
    sine, cosine = _turned(angle_bits, *pair)
    flat = jnp.concatenate([radius * sine, radius * cosine], axis=1)
    return flat[:, :count].reshape(keys.shape[0], *shape).astype(dtype)


def normal_counters(count: int) -> int:
    """Return the number of counters used for ``count`` normals."""
    return (count + 1) // 2


def exponentials(keys: jax.Array, step: ArrayLike, index: jax.Array) -> jax.Array:
    """Return standard exponentials [models, ...index]. Small and large values both have the full float32 precision."""
    word, _ = words(keys, step, index)
    small = word < np.uint32(2**31)
    return jnp.where(small, -jnp.log1p(-_uniform(word)), -jnp.log(_uniform(~word)))


def loss_keys(keys: jax.Array, step: ArrayLike, slots: jax.Array) -> jax.Array:
    """Return one JAX key per model and slot, for losses that draw random numbers. ``slots`` is [models, block]."""
    key = keys[:, :1], keys[:, 1:]
    pair = threefry(key, jnp.asarray(step, jnp.uint32), slots.astype(jnp.uint32))
    wrapped: jax.Array = jax.random.wrap_key_data(jnp.stack(pair, axis=-1), impl="threefry2x32")
    return wrapped


def _uniform(word: jax.Array, dtype: Any = jnp.float32) -> jax.Array:
    """Return a word as a number in (0, 1]. Small numbers keep all 32 bits, since floats are dense near 0."""
    number: jax.Array = (word.astype(dtype) + dtype(0.5)) * dtype(2.0**-32)
    return number


def _sine_and_cosine(angle: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return sine and cosine to float32 precision on [-pi/4, pi/4]. These Taylor series are faster than XLA's
    functions."""
    square = angle * angle
    sine = angle * _polynomial(square, [(-1) ** k / math.factorial(2 * k + 1) for k in range(5)])
    return sine, _polynomial(square, [(-1) ** k / math.factorial(2 * k) for k in range(6)])


def _turned(word: jax.Array, sine: jax.Array, cosine: jax.Array) -> tuple[jax.Array, jax.Array]:
    quarters = word >> np.uint32(30)
    odd, half = (quarters & np.uint32(1)) == 1, quarters >= np.uint32(2)
    sine, cosine = jnp.where(odd, cosine, sine), jnp.where(odd, -sine, cosine)
    return jnp.where(half, -sine, sine), jnp.where(half, -cosine, cosine)


def _polynomial(x: jax.Array, coefficients: list[float]) -> jax.Array:
    highest, *lower = (np.float32(coefficient) for coefficient in reversed(coefficients))
    result = highest * x + lower[0]
    for coefficient in lower[1:]:
        result = result * x + coefficient
    return result


# Binomial draws: the number of copies of each of several identical examples in a batch.

MOST_ENTRIES = 2**26


class BinomialTables(NamedTuple):
    """Tables of the binomial distribution function, one for each distinct sample rate and each group of copies.

    Entry k of a table is 2^64 times the probability of at most ``lows + k`` copies, split into a high and a low word
    of 32 bits. ``rate_of_step[t]`` is the index of the rate at step t. Given a uniform draw of 64 bits, group g has
    ``lows[rate, g]`` copies, plus one copy for each entry of its table that is not larger than the draw.
    """

    rate_of_step: Int32Array | jax.Array  # [steps]
    lows: Int32Array | jax.Array  # [rates, groups]
    high_words: UInt32Array | jax.Array  # [rates, groups, entries]
    low_words: UInt32Array | jax.Array


def binomial_tables(multiplicity: IntArray, sample_rate: FloatArray) -> BinomialTables:
    """Return tables for groups with these numbers of copies, and for the sample rates of all steps."""
    rates, rate_of_step = np.unique(sample_rate, return_inverse=True)
    trials, group = np.unique(multiplicity, return_inverse=True)
    mean = trials * rates[:, None]
    reach = 9.0 * np.sqrt(mean * (1.0 - rates[:, None])) + 40.0  # the probability beyond is below 2^-64
    low = np.maximum(np.floor(mean - reach), 0).astype(np.int64)
    entries = int(np.max(np.minimum(np.ceil(mean + reach), trials) - low)) or 1
    if entries * rates.size * multiplicity.size > MOST_ENTRIES:
        raise ValueError(
            f"multiplicity and sample_rate need {rates.size} x {multiplicity.size} tables of {entries} numbers, which "
            f"is more than {MOST_ENTRIES}: use fewer groups, or fewer different sample rates"
        )
    counts = low[..., None] + np.arange(entries)
    below = binom.cdf(counts, trials[:, None], rates[:, None, None])
    # Multiply probabilities with 2^64. Probability 1 becomes the largest integer, which occurs once in 2^64 draws.
    whole = np.minimum(np.ldexp(below, 64), np.nextafter(2.0**64, 0.0)).astype(np.uint64)
    thresholds = np.where(below >= 1.0, np.uint64(2**64 - 1), whole)
    return BinomialTables(
        rate_of_step.astype(np.int32),
        low[:, group].astype(np.int32),
        (thresholds >> np.uint64(32)).astype(np.uint32)[:, group],
        (thresholds & np.uint64(0xFFFFFFFF)).astype(np.uint32)[:, group],
    )


def binomial_counts(keys: jax.Array, step: jax.Array, tables: BinomialTables) -> jax.Array:
    """Draw the number of copies of each group in each model's batch at a step: [models, groups]."""
    rate_of_step, lows, high_words, low_words = tables
    rate = rate_of_step[step]
    groups, entries = high_words.shape[1:]
    high, low = words(keys, step, jnp.arange(groups))
    first = jnp.arange(groups) * entries
    high_table, low_table = high_words[rate].reshape(-1), low_words[rate].reshape(-1)

    def search(reached: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """Count the entries of each table that are reached, by bisection. An unrolled loop is slow on CPUs."""

        def bisect(bit: jax.Array, found: jax.Array) -> jax.Array:
            candidate = found + (largest >> bit)
            is_reached = reached(first + jnp.minimum(candidate, entries) - 1)
            return jnp.where((candidate <= entries) & is_reached, candidate, found)

        largest = 1 << (entries.bit_length() - 1)
        found: jax.Array = jax.lax.fori_loop(0, entries.bit_length(), bisect, jnp.zeros(high.shape, jnp.int32))
        return found

    def both_words(at: jax.Array) -> jax.Array:
        return (high_table[at] < high) | ((high_table[at] == high) & (low_table[at] <= low))

    # Reading tables takes most of the time. Low words are needed only if the high words of draw and entry are equal.
    found = search(lambda at: high_table[at] < high)
    tied = high_table[first + jnp.minimum(found, entries - 1)] == high
    counts: jax.Array = jax.lax.cond(jnp.any(tied), lambda: search(both_words), lambda: found)
    return lows[rate] + counts
