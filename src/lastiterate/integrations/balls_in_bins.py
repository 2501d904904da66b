"""Balls in bins for PyTorch's data loaders: every epoch, each example picks one of the batches by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from lastiterate.common.errors import BadArgument
from lastiterate.common.types import Foreign
from lastiterate.common.validation import integer, told
from lastiterate.integrations.opacus import extra, kept_of

_STATE = ("examples", "batches", "seed", "epoch", "position")


class BallsInBinsSampler:
    """A batch sampler for ``torch.utils.data.DataLoader(data, batch_sampler=...)``.

    Every example is in exactly one batch of each epoch, uniformly and independently of the others. Batch sizes are
    binomial, and a batch may be empty. An epoch's batches depend only on the seed and the number of the epoch. Every
    complete iteration is one epoch.

    Args:
        examples: number of examples in the data set.
        batches: number of batches in an epoch, t. The gradients of a batch must be divided by the fixed number
            ``examples`` / t, not by the size of the batch.
        seed: seed of all epochs. It must stay secret, because it tells the batches. None draws one from the system.
    """

    def __init__(self, examples: int, batches: int, seed: int | None = None) -> None:
        self.examples, self.batches = integer("examples", examples), integer("batches", batches)
        entropy = np.random.SeedSequence().entropy if seed is None else integer("seed", seed, 0, 2**128 - 1)
        self.seed: int = cast("int", entropy)
        self.epoch = self._position = 0

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self.batches

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the rest of the current epoch, from the first batch that was not yet taken."""
        begins, order = self._epoch_of_batches()
        epoch, start = self.epoch, self._position
        for place in range(start, self.batches):
            self.epoch, self._position = (epoch, place + 1) if place + 1 < self.batches else (epoch + 1, 0)
            yield order[begins[place] : begins[place + 1]].tolist()

    def _epoch_of_batches(self) -> tuple[Any, Any]:
        bins = np.random.default_rng([self.seed, self.epoch]).integers(self.batches, size=self.examples)
        order = np.argsort(bins, kind="stable")
        return np.searchsorted(bins[order], np.arange(self.batches + 1)), order

    @property
    def taken(self) -> int:
        """The number of batches taken, since the first one of epoch 0."""
        return self.epoch * self.batches + self._position

    def set_epoch(self, epoch: int, position: int = 0) -> None:
        """Go on with this epoch, after its first ``position`` batches. A loader with workers takes batches ahead.

        After k steps of training go on with ``set_epoch(*divmod(k, len(sampler)))``.
        """
        self.epoch = integer("epoch", epoch, 0)
        self._position = integer("position", position, 0, self.batches - 1)

    def state_dict(self) -> dict[str, int]:
        """Return the state of the sampler. It contains the seed, so keep it secret."""
        values = (self.examples, self.batches, self.seed, self.epoch, self._position)
        return dict(zip(_STATE, values, strict=True))

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where ``state_dict`` was called. The data set and the number of batches must be the same."""
        if not isinstance(state, dict) or set(state) != set(_STATE):
            raise BadArgument("state", f"must be what state_dict returned, got {told(state)}")
        for name in ("examples", "batches"):
            if state[name] != getattr(self, name):
                raise BadArgument("state", f"must have {getattr(self, name)} {name}, got {told(state[name])}")
        self.seed = integer("seed", state["seed"], 0, 2**128 - 1)
        self.set_epoch(state["epoch"], state["position"])


def balls_in_bins_loader(loader: Foreign, seed: int | None = None) -> Foreign:
    """Return a loader like ``loader`` that draws balls in bins, for ``make_private(poisson_sampling=False)`` of Opacus.

    An epoch has as many batches as before, with the same expected size. As with Opacus' own loader for Poisson
    sampling, an empty batch has tensors of length 0.
    """
    data = extra("torch.utils.data")
    if not isinstance(loader, data.DataLoader) or loader.batch_sampler is None:
        raise BadArgument("loader", f"must be a torch.utils.data.DataLoader with batches, got {type(loader).__name__}")
    first, of_opacus = loader.dataset[0], extra("opacus.data_loader")
    collate = of_opacus.wrap_collate_with_empty(
        collate_fn=loader.collate_fn,
        sample_empty_shapes=[(0, *of_opacus.shape_safe(part)) for part in first],
        dtypes=[of_opacus.dtype_safe(part) for part in first],
    )
    sampler = BallsInBinsSampler(len(loader.dataset), len(loader), seed)
    return data.DataLoader(loader.dataset, batch_sampler=sampler, **(kept_of(loader) | {"collate_fn": collate}))
