"""How many of m identical examples are in a batch: exact binomial draws by inverting the distribution function.

JAX's own binomial works in float32 by rejection, which cannot resolve counts in the millions. Here a table of the
distribution function, made once in float64, is searched with a uniform of 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import binom

from lastiterate.arrays import FloatArray, Int32Array, IntArray, UInt32Array, UInt64Array
from lastiterate.training.draws import words

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
