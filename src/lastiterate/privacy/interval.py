"""Probabilities of intervals, however narrow or far out: nothing cancels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import log_ndtr

from lastiterate.values import Array

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_NARROW = 1.0  # times how fast the density changes: there the rule above is exact to the last digit
_HALF_LOG_TAU = float(0.5 * np.log(2.0 * np.pi))
_STEP = 0.08
_CLUSTERED = np.arange(-3.3, 3.3001, _STEP)  # the double exponential rule; beyond, weights are below 1e-17


def log_interval(low: Array, high: Array) -> Array:
    """log of the probability that a standard normal variable lies between; -inf where high <= low."""
    width = high - low
    mirrored = low + high > 0.0  # tails to the right are as good as those to the left, where they are small
    near, far = np.where(mirrored, -low, high), np.where(mirrored, -high, low)
    log_near, log_far = log_ndtr(near), log_ndtr(far)
    wide = log_near + np.log(-np.expm1(np.minimum(log_far - log_near, 0.0)))
    middle, half = 0.5 * (low + high), 0.5 * width
    away = half[..., None] * _NODES
    density = np.exp(-away * (middle[..., None] + 0.5 * away)) @ _WEIGHTS
    narrow = np.log(np.maximum(half, 0.0) * density) - 0.5 * middle * middle - _HALF_LOG_TAU
    result: Array = np.where(width * (1.0 + np.abs(middle)) < _NARROW, narrow, wide)
    return np.where(width > 0.0, result, -np.inf)[()]


def log_integral(log_density: Callable[[Array], Array], low: float, high: float) -> Array:
    """log of the integral of a density, given at single points, that is smooth but for layers of any width at the ends.

    The double exponential rule: its nodes crowd at the ends.
    """
    argument = 0.5 * np.pi * np.sinh(_CLUSTERED)
    share = 1.0 / (1.0 + np.exp(-2.0 * argument))  # of the way from low to high
    weights = np.pi * np.cosh(_CLUSTERED) * share * (1.0 - share) * _STEP * (high - low)
    places = np.where(share < 0.5, low + (high - low) * share, high - (high - low) / (1.0 + np.exp(2.0 * argument)))
    logs = np.array([log_density(np.float64(y)) for y in places.tolist()])
    return np.logaddexp.reduce(logs + np.log(weights))
