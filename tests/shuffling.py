"""Shuffled runs of any sample rate, whose last batch of an epoch may be smaller."""

import math

from lastiterate import DPSGD


def epoch_length(rate: float) -> int:
    """1 / rate, rounded up unless it is whole within rounding."""
    return math.ceil(1.0 / rate - max(1e-9, 1e-12 / rate))


def epochs_of(sampling: str, rate) -> dict[str, int]:
    """The field of a run that says how many batches an epoch has, if it is shuffled."""
    return {"batches_per_epoch": epoch_length(rate)} if sampling == "shuffled" else {}


def shuffled_run(steps: int, rate: float, noise_multiplier, **more) -> DPSGD:
    """A shuffled run, whatever its rate."""
    return DPSGD(steps, rate, noise_multiplier, "shuffled", **more, **epochs_of("shuffled", rate))
