"""Allowances of a check: the faults that it must be able to find, and the deviations that it tolerates."""

from __future__ import annotations

from dataclasses import dataclass, fields

from lastiterate.common.validation import number


@dataclass(frozen=True)
class Allowances:
    """Numbers that are a choice, not a quantile. A row is ``ok`` only if it would have found the faults stated here.

    Args:
        power: probability with which a stated fault must be found.
        noise: stated fault of the noise, as a share of the declared standard deviation.
        norm: stated fault of clipping, as a multiple of the declared norm.
        rate: stated fault of participation, as a multiple of the declared sample rate.
        exact: relative deviation that counts as equal: rounding, and constants such as Opacus' 1e-6 in the divisor.
        curvature: relative change by curvature of what three steps, or the noise of a whole run, add up to.
        largest_batch: batch size beyond which ``batch_size`` must be given. It bounds the variance of sampling.
        kurtosis: excess kurtosis that sampling may add to normal noise.
        sampling: relative variance that sampling may add where the law of the noise is tested. Excess kurtosis of
            sampling counts by the square of this, so that one of 50 adds ``kurtosis``.
        pattern: relative deviation within which advice names a known pattern. Verdicts do not depend on it.
        rounding: multiple of the size of rounding errors below which an effect counts as none.
        whole: distance from whole numbers, at all seeds, below which counts of batches are these numbers.
        unseen: probability that the planned one-step pairs never show the canary.
        equal: distance between models that counts as none, in units of the noise between two models: sums that are
            not always taken in one order differ by roundings.
        short: number of steps up to which more trainings of the declared length are made than the given models.
        most_seeds: largest number of one-step pairs that are trained to count the canary's batches.
        most_copies: largest number of one-step pairs that are trained to find several copies in a batch.
    """

    power: float = 0.8
    noise: float = 0.7
    norm: float = 1.5
    rate: float = 2.0
    exact: float = 0.01
    curvature: float = 0.2
    largest_batch: float = 1000.0
    kurtosis: float = 0.5
    sampling: float = 0.1
    pattern: float = 0.03
    rounding: float = 10.0
    whole: float = 0.1
    unseen: float = 0.003
    equal: float = 1e-4
    short: int = 5
    most_seeds: int = 1024
    most_copies: int = 256

    def __post_init__(self) -> None:
        for field in fields(self):
            number(f"allowances.{field.name}", getattr(self, field.name), 0.0, open_low=True)
