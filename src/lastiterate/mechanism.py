"""The mechanism of DP-SGD: how batches are drawn and how noise is added. It does not depend on the optimizer."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from lastiterate.common.errors import BadArgument
from lastiterate.common.validation import (
    LEAST_NOISE,
    MAX_STEPS,
    MOST_NOISE,
    PerStep,
    integer,
    noise_multipliers,
    number,
    numbers,
    one_of,
    per_step,
    shape,
    told,
)

Sampling = Literal["poisson", "truncated-poisson", "balls-in-bins", "fixed", "shuffled", "full"]
Neighbours = Literal["add-remove", "zero-out", "replace"]
LastBatch = Literal["keep", "drop"]
Guarantee = Literal["composition", "no_amplification"]
MOST_COEFFICIENTS = 10**6


@dataclass(frozen=True)
class SamplingScheme:
    """A method of drawing batches.

    Attributes:
        words: name in messages and tables.
        neighbours: the neighbouring relation for which the analyses hold, unless the run's relation is "replace".
        guarantee: the analysis that is a guarantee. It is not proved that shuffled batches or batches of fixed size
            have the same amplification by sampling as Poisson sampling.
        once_per_epoch: True if every example is in exactly one batch of each epoch.
        whole_batches: True if an epoch has exactly 1 / sample rate batches, so that no batch is smaller by design.
    """

    words: str
    neighbours: Neighbours
    guarantee: Guarantee
    once_per_epoch: bool = False
    whole_batches: bool = False


SAMPLINGS: dict[Sampling, SamplingScheme] = {
    "poisson": SamplingScheme("Poisson sampling", "add-remove", "composition"),
    # A full batch drops examples, so that adding an example removes others. The size of the data set is public.
    "truncated-poisson": SamplingScheme("truncated Poisson sampling", "zero-out", "composition"),
    # Each example draws its batch of an epoch by itself, so no example moves others (Chua et al. 2024).
    "balls-in-bins": SamplingScheme("balls in bins", "add-remove", "composition", True, True),
    # Adding or removing an example moves others between batches of fixed size and shuffled batches.
    "fixed": SamplingScheme("batches of fixed size", "zero-out", "no_amplification"),
    "shuffled": SamplingScheme("shuffled batches", "zero-out", "no_amplification", True),
    "full": SamplingScheme("full batches", "add-remove", "composition"),
}


@dataclass(frozen=True, eq=False)
class Mechanism:
    """Steps, rates, noise, sampling and correlation of noise. ``DPSGD`` has the same fields and describes them."""

    steps: int
    sample_rate: PerStep
    noise_multiplier: PerStep
    sampling: Sampling
    clip_norm: float
    noise_filter: tuple[float, ...] | None
    min_separation: int
    batches_per_epoch: int | None
    max_batch_size: int | None
    dataset_size: int | None

    def __post_init__(self) -> None:
        fix = partial(object.__setattr__, self)
        fix("steps", integer("steps", self.steps))
        fix("sample_rate", per_step("sample_rate", self.sample_rate, self.steps, 0.0, 1.0))
        fix("noise_multiplier", noise_multipliers(self.noise_multiplier, self.steps))
        fix("clip_norm", number("clip_norm", self.clip_norm, 0.0, open_low=True))
        fix("noise_filter", _noise_filter(self.noise_filter))
        fix("min_separation", integer("min_separation", self.min_separation))
        one_of("sampling", self.sampling, get_args(Sampling))
        if self.sampling == "full" and np.any(np.asarray(self.sample_rate) != 1.0):
            raise BadArgument("sample_rate", f"must be 1 with sampling 'full', got {self.sample_rate}")
        if SAMPLINGS[self.sampling].once_per_epoch and (np.ndim(self.sample_rate) or not self.sample_rate):
            raise BadArgument(
                "sample_rate", f"must be one number in (0, 1] with sampling {self.sampling!r}, got {self.sample_rate}"
            )
        if self.min_separation > 1 and (self.noise_filter is None or self.sampling == "full"):
            where = "without noise_filter" if self.noise_filter is None else "with sampling 'full'"
            raise BadArgument("min_separation", f"must be 1 {where}, got {self.min_separation}")
        fix("batches_per_epoch", self._batches_per_epoch())
        self._check_truncation()
        if self.batches_per_epoch is not None and self.min_separation > self.batches_per_epoch:
            raise BadArgument(
                "min_separation",
                f"must be at most {self.batches_per_epoch}, the number of batches per epoch, with sampling "
                f"{self.sampling!r}, got {self.min_separation}",
            )

    def _check_truncation(self) -> None:
        sizes = {"dataset_size": self.dataset_size, "max_batch_size": self.max_batch_size}
        if self.sampling != "truncated-poisson":
            for name, size in sizes.items():
                if size is not None:
                    raise BadArgument(name, f"must be None with sampling {self.sampling!r}, got {told(size)}")
            return
        most = MAX_STEPS
        for name, size in sizes.items():
            if size is None:
                raise BadArgument(name, "must be given with sampling 'truncated-poisson', got None")
            most = integer(name, size, 1, most)
            object.__setattr__(self, name, most)
        if np.ndim(self.sample_rate) or not 0.0 < self.sample_rate < 1.0:
            raise BadArgument(
                "sample_rate", f"must be one number in (0, 1) with sampling {self.sampling!r}, got {self.sample_rate}"
            )
        if self.min_separation > 1:
            raise BadArgument(
                "min_separation", f"must be 1 with sampling 'truncated-poisson', got {self.min_separation}"
            )

    def _batches_per_epoch(self) -> int | None:
        given = self.batches_per_epoch
        scheme = SAMPLINGS[self.sampling]
        if not scheme.once_per_epoch:
            if given is not None:
                raise BadArgument(
                    "batches_per_epoch", f"must be None with sampling {self.sampling!r}, got {told(given)}"
                )
            return None
        rate, whole = float(self.sample_rate), whole_batches(self.sample_rate)
        if given is None and whole is not None:
            return whole
        most = whole or math.ceil(1.0 / rate)
        if whole is None and scheme.whole_batches:
            raise BadArgument(
                "sample_rate",
                f"must be 1 / (a whole number of batches) with sampling {self.sampling!r}, got {rate!r}: write "
                f"1/{round(1.0 / rate)}",
            )
        if given is None:
            raise BadArgument(
                "sample_rate",
                f"must be 1 / (a whole number of batches) with sampling 'shuffled', got {rate!r}: write "
                f"1/{round(1.0 / rate)}, or add batches_per_epoch={most} if the last batch of an epoch is smaller",
            )
        count = integer("batches_per_epoch", given)
        if count != whole if scheme.whole_batches else not (count - 1) * rate < 1.0 <= count * rate * (1.0 + 1e-9):
            raise BadArgument(
                "batches_per_epoch",
                f"must be {most} with sample_rate {rate!r}, got {count}: an epoch has 1 / sample_rate batches"
                f"{'' if scheme.whole_batches else ', rounded up if the last batch is smaller'}",
            )
        return count


def parts_of(run: object, kind: type[Any]) -> dict[str, Any]:
    """Return the fields of a run that ``kind``, such as ``Mechanism``, has too."""
    return {field.name: getattr(run, field.name) for field in fields(kind)}


def batches_of_epoch(
    dataset_size: int, batch_size: float, last_batch: LastBatch | None = None, sampling: Sampling = "poisson"
) -> tuple[float, float]:
    """Return the number of batches in an epoch, and the probability that an example is in a given batch.

    If the last batch is dropped, the probability is 1 / batches. It is exact for an example that is not dropped, and an
    upper bound for every other example. Opacus' Poisson sampling uses the same probability. Balls in bins have a whole
    number of batches: the nearest one if ``last_batch`` is None. The expected batch size changes a little.
    """
    size = integer("dataset_size", dataset_size)
    batch = number("batch_size", batch_size, 0.0, size, open_low=True)
    one_of("sampling", sampling, get_args(Sampling))
    whole = SAMPLINGS[sampling].whole_batches
    if last_batch is None:
        if sampling == "shuffled" and size % batch:
            raise BadArgument(
                "last_batch",
                "must be 'keep' or 'drop' with sampling 'shuffled' if batch_size does not divide "
                f"dataset_size, got None with batches of {batch:g} out of {size} examples",
            )
        batches = max(1, round(size / batch)) if whole else size / batch
    else:
        one_of("last_batch", last_batch, get_args(LastBatch))
        batches = -(-size // batch) if last_batch == "keep" else size // batch
    return batches, 1.0 / batches if whole or last_batch == "drop" else batch / size


def whole_batches(rate: PerStep) -> int | None:
    """Return 1 / rate if it is a whole number up to rounding errors, else None."""
    if np.ndim(rate) or not rate:
        return None
    clear = max(float(rate), 1e-300)
    batches = round(1.0 / clear)
    return batches if abs(batches * clear - 1.0) <= max(min(1e-9, 0.1 / batches), 4e-16) else None


def _noise_filter(value: object) -> tuple[float, ...] | None:
    if value is None:
        return None
    if isinstance(value, (str, bytes)) or len(shape("noise_filter", value)) != 1:
        raise BadArgument("noise_filter", f"must be None or a sequence of numbers, got {told(value)}")
    given = numbers("noise_filter", value, -MOST_NOISE, MOST_NOISE)
    if not 1 <= given.size <= MOST_COEFFICIENTS:
        raise BadArgument("noise_filter", f"must have from 1 to {MOST_COEFFICIENTS} coefficients, got {given.size}")
    if abs(given[0]) < LEAST_NOISE:
        raise BadArgument(
            "noise_filter", f"must not begin with 0, got {float(given[0])!r}: a step would add no new noise"
        )
    return tuple(given.tolist())
