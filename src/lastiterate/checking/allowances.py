"""Allowances of a check: the faults that it must be able to find, and the deviations that it tolerates."""

from __future__ import annotations

from dataclasses import dataclass, fields

from lastiterate.common.validation import number


@dataclass(frozen=True)
class Allowances:
    """Numbers that were chosen, not computed. A row is ``ok`` only if it would have found the faults stated here.

    Args:
        power: probability with which a stated fault must be found.
        noise: stated fault of the noise, as a share of the declared standard deviation.
        norm: stated fault of clipping, as a multiple of the declared norm.
        rate: stated fault of participation, as a multiple of the declared sample rate.
        exact: relative deviation that counts as equal: rounding, and constants such as Opacus' 1e-6 in the divisor.
        curvature: relative change that curvature may cause in the sum of three steps, or in the noise of a whole run.
        largest_batch: batch size beyond which ``batch_size`` must be given. It bounds the variance of sampling.
        kurtosis: excess kurtosis that sampling may add to normal noise.
        sampling: relative variance that sampling may add where the law of the noise is tested. The excess kurtosis of
            sampling is multiplied by the square of this number, so that an excess of 50 adds ``kurtosis``.
        pattern: relative deviation within which advice names a known pattern. Verdicts do not depend on it.
        rounding: multiple of the size of rounding errors below which an effect counts as zero.
        whole: largest distance of batch counts from whole numbers for which the counts are taken as whole.
        unseen: probability that the planned one-step pairs never show the canary.
        equal: distance between models that counts as zero, in units of the noise between two models. Sums that are
            computed in another order differ by rounding errors.
        short: largest number of steps for which more full-length models are trained than requested.
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
