"""The heuristic for whole grids of runs at once."""

from __future__ import annotations

from typing import overload

import numpy as np

from lastiterate.arrays import FloatArray
from lastiterate.privacy.mixtures import mixture
from lastiterate.privacy.mixtures.kernels import BinomialKernel
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.pairs import each_row, pair_of
from lastiterate.values import LEAST_NOISE, MAX_STEPS, MOST_NOISE, SomeNumbers, numbers


@overload
def last_iterate_epsilon(  # type: ignore[overload-overlap]  # four numbers give a number, anything else an array
    steps: float, sample_rate: float, noise_multiplier: float, delta: float
) -> float: ...
@overload
def last_iterate_epsilon(
    steps: float | SomeNumbers,
    sample_rate: float | SomeNumbers,
    noise_multiplier: float | SomeNumbers,
    delta: float | SomeNumbers,
) -> FloatArray: ...
def last_iterate_epsilon(
    steps: float | SomeNumbers,
    sample_rate: float | SomeNumbers,
    noise_multiplier: float | SomeNumbers,
    delta: float | SomeNumbers,
) -> float | FloatArray:
    """Epsilon of the last-iterate heuristic for runs with constant rate and noise; broadcasts like a NumPy ufunc.

    The same values as ``last_iterate(DPSGD(...)).epsilon(delta)``, about ten times as fast for each item of a grid.
    """
    count = numbers("steps", steps, 1.0, float(MAX_STEPS))
    if np.any(count != np.floor(count)):
        raise ValueError(f"steps must be whole numbers, got {float(count[count != np.floor(count)].flat[0])!r}")
    rate = numbers("sample_rate", sample_rate, 0.0, 1.0)
    sigma = numbers("noise_multiplier", noise_multiplier, LEAST_NOISE, MOST_NOISE)
    allowed = numbers("delta", delta, 0.0, 1.0, open_low=True, open_high=True)
    items = np.broadcast_arrays(count, rate, sigma, np.log(allowed))
    flat = [np.ravel(item) for item in items]
    result = np.zeros(flat[0].shape)
    with np.errstate(all="ignore"):
        random = (flat[1] > 0.0) & (flat[1] < 1.0)
        if random.any():
            t, q, s, log_delta = (item[random] for item in flat)
            result[random] = each_row(mixture.epsilon, BinomialKernel(t, q, np.sqrt(t) * s), log_delta)
        for index in np.flatnonzero(flat[1] == 1.0):
            t, _, s, log_delta = (item[index] for item in flat)
            result[index] = pair_of(_certain(float(t), float(s))).epsilon(log_delta)
    return float(result[0]) if items[0].ndim == 0 else result.reshape(items[0].shape)


def _certain(steps: float, sigma: float) -> Law:
    """The canary is in every batch."""
    none = np.empty(0)
    return Law(float(np.sqrt(steps)) * sigma, steps, none, none, none)
