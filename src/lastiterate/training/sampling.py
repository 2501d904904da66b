"""Which examples are in the batch of each step, for a chunk of models at once.

The examples and the canary occupy *slots*: 0 to n - 1 are the examples, n is the canary. A batch comes as blocks of
fixed shape [models, block], as many as it takes until every model has its whole batch. So shapes are static, and no
batch is ever too large: there is nothing to overflow and nothing to truncate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import binom

from lastiterate.batch_order import batch_order
from lastiterate.run import DPSGD
from lastiterate.training.binomial_draws import binomial_counts, binomial_tables
from lastiterate.training.draws import exponentials, words
from lastiterate.values import Array

MOST_SLOTS = 2**23  # positions are computed in float32, which is exact for integers up to 2^24


class Sampler(Protocol):
    """Draws batches. ``arguments`` are arrays that the compiled program takes as inputs; ``memory`` lives in its state.

    A step calls ``begin`` once, then ``take`` while there is ``more``; the cursor is what is carried between blocks.
    """

    @property
    def block(self) -> int: ...
    @property
    def arguments(self) -> Any: ...
    def memory(self, models: int) -> Any: ...
    def begin(self, arguments: Any, memory: Any, keys: Array, step: Array) -> Any: ...
    def cursor(self, models: int) -> Array: ...
    def more(self, arguments: Any, cursor: Array, step: Array) -> Array: ...
    def take(self, arguments: Any, memory: Any, keys: Array, step: Array, cursor: Array) -> tuple[Array, Array, Array]:
        """Slots [models, block], how often each counts (0 for padding), and the next cursor."""


@dataclass(frozen=True)
class PoissonSampler:
    """Each slot independently with probability q, by drawing the geometric gaps between the slots that are taken.

    Gaps come from uniforms that float32 holds to 2^-25 or better, so a slot's probability is off by no more than that:
    by 3e-5 of itself at q = 0.001, and by less where several gaps add up.
    """

    slots: int
    block: int
    sample_rate: Array  # [steps]

    @property
    def arguments(self) -> Array:
        with np.errstate(divide="ignore"):
            return (-np.log1p(-self.sample_rate)).astype(np.float32)

    def memory(self, models: int) -> tuple[()]:
        return ()

    def begin(self, arguments: Array, memory: tuple[()], keys: Array, step: Array) -> tuple[()]:
        return memory

    def cursor(self, models: int) -> tuple[Array, Array]:
        return jnp.uint32(0), jnp.full(models, -1.0, jnp.float32)

    def more(self, arguments: Array, cursor: tuple[Array, Array], step: Array) -> Array:
        return jnp.any(cursor[1] < self.slots - 1)

    def take(
        self, arguments: Array, memory: tuple[()], keys: Array, step: Array, cursor: tuple[Array, Array]
    ) -> tuple[Array, Array, tuple[Array, Array]]:
        drawn, last = cursor
        waiting = exponentials(keys, step, drawn + jnp.arange(self.block, dtype=jnp.uint32))
        gaps = jnp.minimum(jnp.floor(waiting / arguments[step]), self.slots)
        # A product with a triangle of ones: XLA's cumulative sum takes quadratic time on CPUs as well, but slower.
        triangle = np.triu(np.ones((self.block, self.block), np.float32))
        slots = last[:, None] + jnp.dot(gaps + 1.0, triangle, precision=jax.lax.Precision.HIGHEST)
        taken = slots < self.slots
        slots = jnp.minimum(slots, self.slots)
        clamped = jnp.minimum(slots, self.slots - 1).astype(jnp.int32)
        return clamped, taken.astype(jnp.float32), (drawn + np.uint32(self.block), slots[:, -1])


@dataclass(frozen=True)
class GroupSampler:
    """Slots that stand for many identical examples: each step takes a binomial number of copies of every slot."""

    multiplicity: Array  # [slots]
    sample_rate: Array  # [steps]

    @property
    def block(self) -> int:
        return int(self.multiplicity.size)

    @property
    def arguments(self) -> Any:
        return binomial_tables(self.multiplicity, self.sample_rate).arrays

    def memory(self, models: int) -> tuple[()]:
        return ()

    def begin(self, arguments: Any, memory: tuple[()], keys: Array, step: Array) -> tuple[()]:
        return memory

    def cursor(self, models: int) -> Array:
        return jnp.int32(0)

    def more(self, arguments: Any, cursor: Array, step: Array) -> Array:
        return cursor == 0

    def take(
        self, arguments: Any, memory: tuple[()], keys: Array, step: Array, cursor: Array
    ) -> tuple[Array, Array, Array]:
        counts = binomial_counts(keys, step, arguments).astype(float)  # the widest that JAX is set to
        slots = jnp.broadcast_to(jnp.arange(self.block, dtype=jnp.int32), counts.shape)
        return slots, counts, cursor + 1


@dataclass(frozen=True)
class OrderSampler:
    """Batches that are stretches of an order of all slots: a new order at each step, each epoch, or the natural one."""

    slots: int
    block: int
    begins: Array  # [steps]
    sizes: Array  # [steps]
    steps_per_order: int | None  # None: the natural order throughout

    @property
    def arguments(self) -> tuple[Array, Array]:
        return self.begins.astype(np.int32), self.sizes.astype(np.int32)

    def memory(self, models: int) -> Array:
        natural = np.pad(np.arange(self.slots, dtype=np.int32), (0, self.block))
        return jnp.asarray(np.tile(natural, (models if self.steps_per_order else 1, 1)))

    def begin(self, arguments: Any, memory: Array, keys: Array, step: Array) -> Array:
        if self.steps_per_order is None:
            return memory

        def shuffle(_: Array) -> Array:
            first, second = words(keys, step, jnp.arange(self.slots))
            order = jax.lax.sort((first, second, jax.lax.broadcasted_iota(jnp.int32, first.shape, 1)), num_keys=2)[2]
            return jnp.pad(order, ((0, 0), (0, self.block)))

        return jax.lax.cond(step % self.steps_per_order == 0, shuffle, lambda order: order, memory)

    def cursor(self, models: int) -> Array:
        return jnp.int32(0)

    def more(self, arguments: tuple[Array, Array], cursor: Array, step: Array) -> Array:
        return cursor < arguments[1][step]

    def take(
        self, arguments: tuple[Array, Array], memory: Array, keys: Array, step: Array, cursor: Array
    ) -> tuple[Array, Array, Array]:
        begins, sizes = arguments
        slots = jax.lax.dynamic_slice_in_dim(memory, begins[step] + cursor, self.block, axis=1)
        taken = cursor + jnp.arange(self.block) < sizes[step]
        shape = (keys.shape[0], self.block)
        weights = jnp.broadcast_to(taken.astype(jnp.float32), shape)
        return jnp.broadcast_to(slots, shape), weights, cursor + self.block


def make_sampler(run: DPSGD, slots: int, chunk_size: int, most: int, multiplicity: Array | None = None) -> Sampler:
    """The sampler of a run over so many slots, in blocks of at most ``most``."""
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
    order = batch_order(run, slots)
    return OrderSampler(slots, min(int(order.sizes.max()), most), order.begins, order.sizes, order.steps_per_order)


def poisson_block(slots: int, rate: float, chunk_size: int) -> int:
    """A block that in 19 of 20 steps holds the batches of all models of a chunk; a multiple of 8, or all slots."""
    size = int(binom.isf(0.05 / chunk_size, slots, rate))
    return min(max(8, -(-size // 8) * 8), slots)
