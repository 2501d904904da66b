"""Batches of both trainers: random ones, and stretches of an order (full, fixed-size and shuffled batches)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lastiterate.common.errors import BadArgument
from lastiterate.common.types import IntArray
from lastiterate.privacy.mixtures.law import epoch_length
from lastiterate.run import DPSGD
from lastiterate.supported_runs import NO_OPTIMIZER, TRAINED, Support, require_supported


@dataclass(frozen=True)
class BatchOrder:
    """Positions of batches. Step t uses slots ``begins[t]`` to ``begins[t] + sizes[t] - 1`` of the current order.

    A slot holds an example or the canary. In the world without the canary, the canary's slot is empty.
    """

    begins: IntArray  # [steps]
    sizes: IntArray  # [steps]
    steps_per_order: int | None  # steps until a new order is drawn; None if the order never changes


def require_size(run: DPSGD, slots: int) -> int | None:
    """Return the largest batch of a run, or None. Raise unless the run's data set, if it is known, has all slots."""
    if run.dataset_size not in (None, slots):
        raise BadArgument(
            "dataset_size", f"must be {slots}, the number of examples with the canary, got {run.dataset_size}"
        )
    return run.max_batch_size


def drawn_batches(run: DPSGD, slots: int, draws: np.random.Generator) -> Iterator[IntArray]:
    """Yield the slots in the batch of each step. An absent canary also has a slot, which is ignored."""
    most, bins = require_size(run, slots), np.zeros(slots, np.int64)
    for step, rate in enumerate(np.broadcast_to(np.asarray(run.sample_rate, float), run.steps)):
        if run.sampling == "balls-in-bins":
            place = step % epoch_length(run)
            bins = bins if place else draws.integers(epoch_length(run), size=slots)
            yield np.flatnonzero(bins == place)
            continue
        batch = np.flatnonzero(draws.random(slots) < rate)
        yield batch if most is None or batch.size <= most else np.sort(draws.choice(batch, most, replace=False))


def batch_order(run: DPSGD, slots: int) -> BatchOrder:
    """Return the batches of a run over ``slots`` slots. The sampling must be "full", "fixed" or "shuffled"."""
    require_supported(run, Support("batches", TRAINED | {NO_OPTIMIZER}))
    rates = np.broadcast_to(np.asarray(run.sample_rate, np.float64), run.steps)
    if run.sampling == "full":
        nowhere = np.zeros(run.steps, np.int64)
        return BatchOrder(nowhere, nowhere + slots, None)
    if run.sampling == "fixed":
        # Rounded down, so that the canary is in a batch with at most the probability ``sample_rate``.
        sizes = np.floor(rates * slots + 1e-9).astype(np.int64)
        if not sizes.any():
            raise ValueError(
                f"sample_rate must be at least 1/{slots} for batches of fixed size out of {slots} examples, "
                f"got {rates.max():g}"
            )
        return BatchOrder(np.zeros_like(sizes), sizes, 1)
    length = epoch_length(run)
    # Ends are rounded down, so that after k steps of an epoch a slot was used with probability at most k q.
    ends = np.floor(np.arange(1, length) * float(rates[0]) * slots + 1e-9).astype(np.int64)
    begins, ends = np.append(0, ends), np.append(ends, slots)
    where = np.arange(run.steps) % length
    return BatchOrder(begins[where], (ends - begins)[where], length)
