"""Correlated noise in the last iterate: the noise of step t is the sum of c_j z_(t-j).

What z_s adds to the last iterate, at all steps from s on, is v_s = sum_j c_j w_(s+j) times itself. So the variance is
sum_s sigma_s^2 v_s^2, where only z_s with s >= 0 exist.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.privacy.mixtures.causal import product

if TYPE_CHECKING:
    from lastiterate.arrays import FloatArray
    from lastiterate.run import DPSGD
    from lastiterate.values import PerStep

_MOST_DOUBT = 4e-10  # of the noise's standard deviation, which is then taken as that much smaller


def filtered_noise(run: DPSGD, weights: PerStep) -> float:
    """The standard deviation of the noise in what is released, where each step counts as ``weights`` say.

    Never too large: a bound on the error is taken off.
    """
    assert run.noise_filter is not None
    sigma = np.asarray(run.noise_multiplier)
    largest = float(np.max(sigma))
    if np.ndim(weights) == 0 and sigma.ndim == 0:
        spread, error = _of_equal_steps(run.noise_filter, run.steps)
        spread, error = abs(float(weights)) * spread, abs(float(weights)) * error
    else:
        values, error = influences(run, weights)
        spread = float(np.linalg.norm(sigma / largest * values))
    if not error <= _MOST_DOUBT * spread:
        raise ValueError(
            "noise_filter must not cancel nearly all of the noise of so many steps: what is left of it is not known to "
            "ten digits"
        )
    return largest * (spread - error)


def influences(run: DPSGD, weights: PerStep) -> tuple[FloatArray, float]:
    """How much of z_s is in what is released, for each s, and a bound on the 2-norm of the errors."""
    counts = np.broadcast_to(np.asarray(weights, np.float64), (run.steps,))
    values, error = product(np.array(run.noise_filter), counts[::-1], run.steps)
    return values[::-1], error


def _of_equal_steps(coefficients: tuple[float, ...], steps: int) -> tuple[float, float]:
    """The root of sum_s v_s^2 where all steps count 1, and its error: v_s is then a sum of the first coefficients."""
    sums = prefix_sums(coefficients)[:steps]
    rest = (steps - len(sums)) * sums[-1] ** 2
    size = math.sqrt(math.fsum([each * each for each in sums] + [rest]))
    return size, math.sqrt(steps) * (len(sums) * 2.0**-52) ** 2 * math.fsum(map(abs, coefficients))


@lru_cache(maxsize=8)
def prefix_sums(values: tuple[float, ...]) -> list[float]:
    """Sums of the first values, as if computed with twice the digits."""

    def add(total: tuple[float, float], value: float) -> tuple[float, float]:
        high = total[0] + value
        back = high - total[0]
        return high, total[1] + ((total[0] - (high - back)) + (value - back))

    return [high + low for high, low in accumulate(values, add, initial=(0.0, 0.0))][1:]
