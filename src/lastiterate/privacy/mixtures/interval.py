"""Probabilities of intervals, however narrow or far out: nothing cancels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import log_ndtr

from lastiterate.arrays import Floats
from lastiterate.privacy.mixtures.rows import beside_points, pick

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_NARROW = 0.5  # times how fast the density changes: there the rule above is exact to the last digit
_HALF_LOG_TAU = float(0.5 * np.log(2.0 * np.pi))
_STEP = 0.08
_CLUSTERED = np.arange(-3.3, 3.3001, _STEP)  # the double exponential rule; beyond, weights are below 1e-17


def log_interval(middle: Floats, half: Floats) -> Floats:
    """log of the probability that a standard normal variable is within ``half`` of ``middle``.

    The interval is not given by its ends, because the width of a narrow one would lose digits in their difference.
    """
    away = np.abs(middle)
    near, far = log_ndtr(half - away), log_ndtr(-half - away)
    wide = near + np.log(-np.expm1(far - near))
    beside = half * _NODES
    density = np.exp(-beside * (beside_points(away) + 0.5 * beside)) @ _WEIGHTS
    narrow = np.log(half * density) - 0.5 * away * away - _HALF_LOG_TAU
    return pick(half * (1.0 + away) < _NARROW, narrow, wide)


def log_integral(log_density: Callable[[Floats], Floats], low: float, high: float) -> np.float64:
    """log of the integral from ``low`` to ``high`` of a density whose logarithm is given.

    The density has to be smooth inside, but may rise or fall arbitrarily fast at the ends: the nodes of the double
    exponential rule (Takahasi and Mori, 1974) crowd there.
    """
    argument = 0.5 * np.pi * np.sinh(_CLUSTERED)
    share = 1.0 / (1.0 + np.exp(-2.0 * argument))  # of the way from low to high
    weights = np.pi * np.cosh(_CLUSTERED) * share * (1.0 - share) * _STEP * (high - low)
    places = np.where(share < 0.5, low + (high - low) * share, high - (high - low) / (1.0 + np.exp(2.0 * argument)))
    logs = np.array([log_density(np.float64(y)) for y in places.tolist()])
    total: np.float64 = np.logaddexp.reduce(logs + np.log(weights))
    return total
