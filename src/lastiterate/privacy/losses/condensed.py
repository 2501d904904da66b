"""A long schedule of noise, or of sample rates, as a few steps: interpolation between Chebyshev nodes of its range.

M, the log-moments of one step's loss, is a smooth function of 1 / sigma^2 and of q, so that its sum over many steps is
a sum over nodes. A strong tilt needs more of them than a weak one, and with too few the sum is silently wrong: whoever
uses it has to look at the checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lastiterate.arrays import FloatArray
from lastiterate.privacy.losses.step_loss import Loss

_CHECKS = 7  # points between the nodes at which interpolation is compared with the truth


@dataclass(frozen=True, eq=False)
class Condensed:
    """A long schedule as a few steps, with counts that are not whole, nor even positive.

    ``between @ values`` interpolates values at the steps to those at ``checks``, by which its error is told.
    """

    counts: FloatArray
    steps: list[Loss]
    between: FloatArray
    checks: list[Loss]


def condensed(
    counts: FloatArray, rates: FloatArray, sigmas: FloatArray, nodes: int, step: Callable[[float, float], Loss]
) -> Condensed | None:
    """The schedule by so many nodes, whose steps ``step(rate, sigma)`` makes; None where there is nothing to gain."""
    by_noise = np.ptp(rates) == 0.0
    if counts.size <= 2 * nodes or np.any(rates == 1.0) or (not by_noise and np.ptp(sigmas) > 0.0):
        return None
    x = 1.0 / sigmas**2 if by_noise else rates
    middle, half = 0.5 * (x.max() + x.min()), 0.5 * np.ptp(x)
    angle = (2.0 * np.arange(nodes) + 1.0) * math.pi / (2.0 * nodes)
    at = middle + half * np.cos(angle)
    weight = np.where(np.arange(nodes) % 2 == 0, 1.0, -1.0) * np.sin(angle)
    checked = middle + half * np.cos(np.unique(np.linspace(0, nodes, _CHECKS).astype(int)) * math.pi / nodes)

    def steps_at(places: FloatArray) -> list[Loss]:
        if by_noise:
            return [step(float(rates[0]), sigma) for sigma in (1.0 / np.sqrt(places)).tolist()]
        return [step(rate, float(sigmas[0])) for rate in places.tolist()]

    def interpolation(places: FloatArray) -> FloatArray:
        distance = places[:, None] - at
        share = weight / np.where(distance == 0.0, 1e-300, distance)
        shares: FloatArray = share / share.sum(axis=1, keepdims=True)
        return shares

    return Condensed(counts @ interpolation(x), steps_at(at), interpolation(checked), steps_at(checked))
