"""Samplers of batches, for a chunk of models at once.

The examples and the canary have numbers, called *slots*: slots 0 to n - 1 are the examples, and slot n is the canary.
With group size m, the canary has slots n to n + m - 1. A batch is split into blocks of fixed shape [models, block].
Blocks are taken until every model has its whole batch, so shapes are static and no batch is truncated.
"""

from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from scipy.stats import binom

from lastiterate.common.types import Float32Array, FloatArray, Int32Array, IntArray
from lastiterate.privacy.mixtures.law import epoch_length
from lastiterate.run import DPSGD
from lastiterate.trainers.batch_order import batch_order, require_size
from lastiterate.training.draws import BinomialTables, binomial_counts, binomial_tables, exponentials, words

Pair = tuple[jax.Array, jax.Array]

MOST_SLOTS = 2**23  # positions are computed in float32, which is exact for integers up to 2^24


class _NoMemory:
    """Default methods for a sampler that carries nothing from step to step.

    ``arguments`` of a sampler are arrays that the compiled program takes as inputs. ``memory`` is carried from step to
    step. A step calls ``begin`` once, which returns the memory of that step. The step then calls ``take`` once for each
    block, as long as ``more`` is true. ``cursor`` is carried from block to block. ``take`` returns slots
    [models, block], the multiplicity of each slot (0 for padding), and the next cursor.
    """

    def memory(self, models: int) -> PyTree:
        return ()

    def begin(self, arguments: PyTree, memory: PyTree, keys: jax.Array, step: jax.Array) -> PyTree:
        return memory

    def cursor(self, models: int) -> PyTree:
        return jnp.int32(0)


@dataclass(frozen=True)
class PoissonSampler(_NoMemory):
    """A sampler that takes each slot independently with probability q. Gaps between these slots are geometric.

    Gaps are computed from float32 uniforms with an error of at most 2^-25. The error of a slot's probability is not
    larger: at q = 0.001 it is at most 3e-5 of the probability.
    """

    slots: int
    block: int
    sample_rate: FloatArray  # [steps]

    @property
    def arguments(self) -> Float32Array:
        with np.errstate(divide="ignore"):
            return (-np.log1p(-self.sample_rate)).astype(np.float32)

    def cursor(self, models: int) -> Pair:
        return jnp.uint32(0), jnp.full(models, -1.0, jnp.float32)

    def more(self, arguments: jax.Array, cursor: Pair, step: jax.Array) -> jax.Array:
        return jnp.any(cursor[1] < self.slots - 1)

    def take(
        self, arguments: jax.Array, memory: tuple[()], keys: jax.Array, step: jax.Array, cursor: Pair
    ) -> tuple[jax.Array, jax.Array, Pair]:
        drawn, last = cursor
        waiting = exponentials(keys, step, drawn + jnp.arange(self.block, dtype=jnp.uint32))
        gaps = jnp.minimum(jnp.floor(waiting / arguments[step]), self.slots)
        # A product with a triangular matrix of ones. On CPUs it is faster than XLA's cumulative sum.
        triangle = np.triu(np.ones((self.block, self.block), np.float32))
        slots = last[:, None] + jnp.dot(gaps + 1.0, triangle, precision=jax.lax.Precision.HIGHEST)
        taken = slots < self.slots
        slots = jnp.minimum(slots, self.slots)
        clamped = jnp.minimum(slots, self.slots - 1).astype(jnp.int32)
        return clamped, taken.astype(jnp.float32), (drawn + np.uint32(self.block), slots[:, -1])


@dataclass(frozen=True)
class GroupSampler(_NoMemory):
    """A sampler for slots that stand for many identical examples. A step takes a binomial number of copies of each."""

    multiplicity: IntArray  # [slots]
    sample_rate: FloatArray  # [steps]

    @property
    def block(self) -> int:
        return int(self.multiplicity.size)

    @property
    def arguments(self) -> BinomialTables:
        return binomial_tables(self.multiplicity, self.sample_rate)

    def more(self, arguments: BinomialTables, cursor: jax.Array, step: jax.Array) -> jax.Array:
        return cursor == 0

    def take(
        self, arguments: BinomialTables, memory: tuple[()], keys: jax.Array, step: jax.Array, cursor: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        counts = binomial_counts(keys, step, arguments).astype(float)  # the widest float type that JAX is set to
        slots = jnp.broadcast_to(jnp.arange(self.block, dtype=jnp.int32), counts.shape)
        return slots, counts, cursor + 1


@dataclass(frozen=True)
class OrderSampler(_NoMemory):
    """A sampler that takes consecutive slots from an order of all slots.

    The order is the natural one, or it is drawn again for each step or each epoch.
    """

    slots: int
    block: int
    begins: IntArray  # [steps]
    sizes: IntArray  # [steps]
    steps_per_order: int | None  # None if the order is always the natural one

    @property
    def arguments(self) -> tuple[Int32Array, Int32Array]:
        return self.begins.astype(np.int32), self.sizes.astype(np.int32)

    def memory(self, models: int) -> jax.Array:
        natural = np.pad(np.arange(self.slots, dtype=np.int32), (0, self.block))
        return jnp.asarray(np.tile(natural, (models if self.steps_per_order else 1, 1)))

    def begin(self, arguments: Pair, memory: jax.Array, keys: jax.Array, step: jax.Array) -> jax.Array:
        if self.steps_per_order is None:
            return memory

        def shuffle(_: jax.Array) -> jax.Array:
            first, second = words(keys, step, jnp.arange(self.slots))
            order = jax.lax.sort((first, second, jax.lax.broadcasted_iota(jnp.int32, first.shape, 1)), num_keys=2)[2]
            return jnp.pad(order, ((0, 0), (0, self.block)))

        order: jax.Array = jax.lax.cond(step % self.steps_per_order == 0, shuffle, lambda order: order, memory)
        return order

    def more(self, arguments: Pair, cursor: jax.Array, step: jax.Array) -> jax.Array:
        return cursor < arguments[1][step]

    def take(
        self, arguments: Pair, memory: jax.Array, keys: jax.Array, step: jax.Array, cursor: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        begins, sizes = arguments
        slots = jax.lax.dynamic_slice_in_dim(memory, begins[step] + cursor, self.block, axis=1)
        taken = cursor + jnp.arange(self.block) < sizes[step]
        shape = (keys.shape[0], self.block)
        weights = jnp.broadcast_to(taken.astype(jnp.float32), shape)
        return jnp.broadcast_to(slots, shape), weights, cursor + self.block


@dataclass(frozen=True)
class RandomSizeSampler(_NoMemory):
    """A sampler of batches with random sizes, for balls in bins and truncated Poisson sampling.

    Balls in bins: every ``bins`` steps each slot draws one of ``bins`` batches. The slots are sorted by their batches.
    Truncated Poisson sampling (``drawn`` is not None): at each step a slot is drawn with this probability. The slots
    that are drawn come first, in random order, and a batch has at most ``most`` of them. A word of 32 bits is drawn for
    each slot. It changes the probability of a batch by less than ``bins`` / 2^32 of itself.
    """

    slots: int
    block: int
    bins: int = 1
    drawn: float | None = None
    most: int | None = None

    @property
    def arguments(self) -> tuple[()]:
        return ()

    def memory(self, models: int) -> Pair:
        return (
            jnp.zeros((models, self.slots + self.block), jnp.int32),
            jnp.zeros((models, self.bins + 1), jnp.int32),
        )

    def begin(self, arguments: tuple[()], memory: Pair, keys: jax.Array, step: jax.Array) -> Pair:
        def draw(_: Pair) -> Pair:
            first, second = words(keys, step, jnp.arange(self.slots))
            if self.drawn is None:
                batch = first % np.uint32(self.bins)
            else:
                batch = (first >= np.uint32(round(self.drawn * 2.0**32))).astype(jnp.uint32)
            numbers = jax.lax.broadcasted_iota(jnp.int32, first.shape, 1)
            batch, second, order = jax.lax.sort((batch, second, numbers), num_keys=2)
            ends = jax.vmap(lambda row: jnp.searchsorted(row, jnp.arange(self.bins + 1, dtype=jnp.uint32)))(batch)
            if self.most is not None:
                ends = jnp.minimum(ends, self.most)
            return jnp.pad(order, ((0, 0), (0, self.block))), ends.astype(jnp.int32)

        drawn: Pair = jax.lax.cond(step % self.bins == 0, draw, lambda memory: memory, memory)
        return drawn

    def cursor(self, models: int) -> Pair:
        return jnp.int32(0), jnp.bool_(True)

    def more(self, arguments: tuple[()], cursor: Pair, step: jax.Array) -> jax.Array:
        return cursor[1]

    def take(
        self, arguments: tuple[()], memory: Pair, keys: jax.Array, step: jax.Array, cursor: Pair
    ) -> tuple[jax.Array, jax.Array, Pair]:
        order, ends = memory
        begins, sizes = ends[:, step % self.bins], ends[:, step % self.bins + 1] - ends[:, step % self.bins]
        slots = jax.vmap(lambda row, begin: jax.lax.dynamic_slice_in_dim(row, begin, self.block))(
            order, begins + cursor[0]
        )
        position = cursor[0] + self.block
        taken = cursor[0] + jnp.arange(self.block) < sizes[:, None]
        return slots, taken.astype(jnp.float32), (position, jnp.any(position < sizes))


Sampler: TypeAlias = PoissonSampler | GroupSampler | OrderSampler | RandomSizeSampler

_BLOCK_COST = 4  # overhead of a block of a convolution, in units of the cost of an example


def make_sampler(run: DPSGD, slots: int, chunk_size: int, most: int, multiplicity: IntArray | None = None) -> Sampler:
    """Return the sampler of a run over ``slots`` slots, in blocks of at most ``most``."""
    rates = np.broadcast_to(np.asarray(run.sample_rate, np.float64), run.steps)
    if multiplicity is not None:
        if run.sampling not in ("poisson", "full"):
            raise ValueError(
                f"sampling must be 'poisson' or 'full' for examples with multiplicity, got {run.sampling!r}"
            )
        return GroupSampler(np.asarray(multiplicity), rates)
    if slots > MOST_SLOTS:
        raise ValueError(
            f"examples must be at most {MOST_SLOTS}, got {slots}: give identical examples once, with a multiplicity"
        )
    if run.sampling == "poisson":
        return PoissonSampler(slots, min(poisson_block(slots, float(rates.max()), chunk_size), most), rates)
    if run.sampling in ("balls-in-bins", "truncated-poisson"):
        rate = float(rates[0])
        block = min(poisson_block(slots, rate, chunk_size), most, require_size(run, slots) or slots)
        if run.sampling == "balls-in-bins":
            return RandomSizeSampler(slots, block, bins=epoch_length(run))
        return RandomSizeSampler(slots, block, drawn=rate, most=run.max_batch_size)
    order = batch_order(run, slots)
    return OrderSampler(slots, min(int(order.sizes.max()), most), order.begins, order.sizes, order.steps_per_order)


def poisson_block(slots: int, rate: float, chunk_size: int) -> int:
    """Return a block size. In 19 of 20 steps, one block holds the whole batch of every model of a chunk."""
    size = int(binom.isf(0.05 / chunk_size, slots, rate))
    return min(max(8, -(-size // 8) * 8), slots)


def tight_block(slots: int, rate: float, chunk_size: int, most: int) -> int:
    """Return the block size between ``most / 2`` and ``most`` with the least expected work, including padding."""
    blocks = np.arange(max(1, most // 2), most + 1)
    sizes = np.arange(slots + 1)
    probabilities = np.diff(binom.cdf(sizes, slots, rate) ** chunk_size, prepend=0.0)
    likely = probabilities > 1e-9
    taken = (sizes[likely] // blocks[:, None] + 1) @ probabilities[likely]  # the last draw is beyond all slots
    return int(blocks[np.argmin(taken * (blocks + _BLOCK_COST))])
