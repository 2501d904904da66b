"""What a user's trainer says about the training it has done, to be compared with the run that was declared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, bdtrc, gammainc, gammaincc

from lastiterate.arrays import FloatArray
from lastiterate.run import DPSGD
from lastiterate.values import integer, noise_multipliers, numbers

IMPLAUSIBLE = 1e-6  # batch sizes that are rarer than this under the declared run are no accident
_LARGE_ENOUGH = 5.0  # mean batch size from which the spread of sizes is close to chi-square


@dataclass(frozen=True, eq=False)
class Trained:
    """What a trainer returns if it also wants to be compared with its run: a mismatch stops the audit.

    Args:
        result: the score, or the parameters that the attack scores.
        steps: how many updates were made.
        batch_sizes: how many examples each batch really had, empty ones included.
        noise_multiplier: that was really used, one number or one for each step.
        dataset_size: how many examples there were, the canary included where it was there. With it, batch sizes are
            compared with the declared rate itself; without it only with each other.
    """

    result: object
    steps: int | None = None
    batch_sizes: ArrayLike | None = None
    noise_multiplier: ArrayLike | None = None
    dataset_size: int | None = None

    def check(self, run: DPSGD) -> None:
        """Refuse a training that was not this run."""
        if self.steps is not None:
            _check_steps("steps", integer("Trained.steps", self.steps, 0), run)
        if self.noise_multiplier is not None:
            used = noise_multipliers(self.noise_multiplier, run.steps)
            if not np.allclose(used, run.noise_multiplier, rtol=1e-6, atol=0.0):
                raise ValueError(
                    f"noise_multiplier must be what was trained with, {_shown(used)}, but the run declares "
                    f"{_shown(run.noise_multiplier)}"
                )
        if self.batch_sizes is not None:
            sizes = numbers("Trained.batch_sizes", self.batch_sizes, 0.0)
            _check_steps("batches", sizes.size, run)
            examples = None if self.dataset_size is None else integer("Trained.dataset_size", self.dataset_size)
            _check_sizes(sizes.reshape(-1), run, examples)


def _check_steps(what: str, done: int, run: DPSGD) -> None:
    if done != run.steps:
        raise ValueError(
            f"steps must be those of the training, which made {done} {what}, but the run declares {run.steps}"
        )


def _check_sizes(sizes: FloatArray, run: DPSGD, examples: int | None) -> None:
    """Refuse batch sizes that the declared sampling gives with a probability below ``IMPLAUSIBLE``."""
    rates = np.broadcast_to(np.asarray(run.sample_rate, np.float64), sizes.shape)
    if examples is not None:
        _check_total(sizes, rates, run, examples)
    if run.sampling == "poisson":
        _check_spread(sizes, rates)
    elif run.sampling != "shuffled" and np.ndim(run.sample_rate) == 0 and np.ptp(sizes) > 1.0:
        # Of a shuffled data set the last batch of an epoch may be smaller.
        raise ValueError(
            f"sampling {run.sampling!r} has batches of one size, but those of the training have "
            f"{sizes.min():g} to {sizes.max():g} examples"
        )


def _check_total(sizes: FloatArray, rates: FloatArray, run: DPSGD, examples: int) -> None:
    """Sums of batch sizes are binomial where sampling is Poisson, and known otherwise."""
    total, expected = float(sizes.sum()), examples * float(rates.sum())
    rate = float(rates.mean())
    if run.sampling == "poisson" and rate < 1.0:
        # Where rates differ by step the sum is less spread than this binomial (Hoeffding 1956): the test stays safe.
        trials = examples * sizes.size
        at_least = bdtrc(total - 1.0, trials, rate) if total else 1.0
        plausible = 2.0 * min(bdtr(total, trials, rate), at_least) >= IMPLAUSIBLE
    else:
        plausible = abs(total - expected) <= sizes.size  # batches are whole numbers
    if not plausible:
        mean = total / sizes.size
        raise ValueError(
            f"sample_rate must be that of the training, whose batches had {mean:.6g} of {examples:,} examples on "
            f"average, a rate of {mean / examples:.4g}, but the run declares {_shown(run.sample_rate)}"
        )


def _check_spread(sizes: FloatArray, rates: FloatArray) -> None:
    """The spread of binomial batch sizes around their mean follows from the rate, whatever the number of examples."""
    mean = sizes.sum() * rates / rates.sum()
    variance = mean * (1.0 - rates)
    if sizes.size < 2 or mean.mean() < _LARGE_ENOUGH or np.any(variance <= 0.0):
        return
    # Chi-square, but for rounding: a size may have been up to half an example away, in favour of the training.
    distance, rounding = np.sqrt(np.sum((sizes - mean) ** 2 / variance)), np.sqrt(np.sum(0.25 / variance))
    most, least = 0.5 * (distance + rounding) ** 2, 0.5 * max(distance - rounding, 0.0) ** 2
    half = 0.5 * (sizes.size - 1.0)
    if 2.0 * min(gammainc(half, most), gammaincc(half, least)) < IMPLAUSIBLE:
        how = "less" if most < half else "more"
        raise ValueError(
            f"sampling 'poisson' at the declared sample_rate {_shown(rates)} gives batches whose sizes vary with a "
            f"standard deviation of {np.sqrt(variance.mean()):.3g}, but those of the training vary {how}, with "
            f"{sizes.std():.3g} (from {sizes.min():g} to {sizes.max():g} examples)"
        )


def _shown(value: ArrayLike) -> str:
    distinct = np.unique(np.asarray(value, np.float64))
    return f"{distinct[0]:g}" if distinct.size == 1 else f"{distinct[0]:g} to {distinct[-1]:g}"
