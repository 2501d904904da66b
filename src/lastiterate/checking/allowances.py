"""Allowances of a check: the faults that it must be able to find, and the deviations that it tolerates."""

from __future__ import annotations

from dataclasses import dataclass, fields

from lastiterate.common.validation import number


@dataclass(frozen=True)
class Allowances:
    """Numbers that were chosen, not computed. A row is ``ok`` only if it would have found the faults stated here."""

    power: float = 0.8  # probability with which a stated fault must be found
    noise: float = 0.7  # stated fault of the noise, as a share of the declared standard deviation
    norm: float = 1.5  # stated fault of clipping, as a multiple of the declared norm
    rate: float = 2.0  # stated fault of participation, as a multiple of the declared sample rate
    exact: float = 0.01  # relative deviation that counts as equal, such as by Opacus' 1e-6 in the divisor
    curvature: float = 0.2  # relative change by curvature of the sum of three steps, or of the noise of a whole run
    largest_batch: float = 1000.0  # batches beyond this size need ``batch_size``, which bounds the variance of sampling
    # Variance that sampling may add where the law of the noise is tested, relative to the noise. The excess kurtosis of
    # sampling is multiplied by the square of this number, so that an excess of 50 adds ``kurtosis``.
    sampling: float = 0.1
    kurtosis: float = 0.5  # excess kurtosis that sampling may add to normal noise
    pattern: float = 0.03  # relative deviation within which advice names a known pattern; verdicts do not depend on it
    rounding: float = 10.0  # multiple of the size of rounding errors below which an effect counts as zero
    whole: float = 0.1  # share of a clipped gradient that rounding and curvature may hide where batches are counted
    unseen: float = 0.003  # probability that the planned one-step pairs never show the canary
    equal: float = 1e-4  # distance of models that counts as zero, in units of the noise between two models
    short: int = 5  # largest number of steps for which more full-length models are trained than requested
    most_seeds: int = 1024  # largest number of one-step pairs that are trained to count the canary's batches
    most_copies: int = 256  # largest number of one-step pairs that are trained to find several copies in a batch

    def __post_init__(self) -> None:
        for field in fields(self):
            number(f"allowances.{field.name}", getattr(self, field.name), 0.0, open_low=True)
