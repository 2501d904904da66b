"""How much noise a run needs."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from lastiterate.arrays import Floats
from lastiterate.privacy.analyses.last_iterate import last_iterate
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures.solve import invert
from lastiterate.run import DPSGD
from lastiterate.values import number

_FACTOR_AT_ONCE = 4.0
_LEAST, _MOST = 1e-4, 1e12  # noise multipliers that are tried
_NEAR_ENOUGH = 1e-7  # to the target, from below


def calibrate(
    run: DPSGD, *, epsilon: float, delta: float, analysis: Callable[[DPSGD], PrivacyCurve] = last_iterate
) -> DPSGD:
    """The run with its noise multipliers scaled by one factor, so that ``analysis`` gives ``epsilon`` at ``delta``.

    Never more than ``epsilon``, and less by at most 1e-6. The noise of ``run`` itself matters only as a shape: any
    positive number will do where it is constant.
    """
    if not callable(analysis):
        raise ValueError(f"analysis must be a function such as lastiterate.composition, got {analysis!r}")
    target = number("epsilon", epsilon, 0.0, open_low=True)
    number("delta", delta, 0.0, 1.0, open_low=True, open_high=True)

    def spent(log_factor: float) -> float:
        factor = math.exp(log_factor)
        return float(analysis(run.replace(noise_multiplier=run.noise_multiplier * factor)).epsilon(delta))

    low, high = _bracket(run, spent, target, delta)
    with np.errstate(all="ignore"):
        log_factor = _solve(spent, target, low, high)
    return run.replace(noise_multiplier=run.noise_multiplier * math.exp(log_factor))


def _bracket(run: DPSGD, spent: Callable[[float], float], target: float, delta: float) -> tuple[float, float]:
    """Logarithms of factors with too little and with enough noise."""
    least = math.log(_LEAST / float(np.min(run.noise_multiplier)))
    most = math.log(_MOST / float(np.max(run.noise_multiplier)))
    step = math.log(_FACTOR_AT_ONCE)
    low = high = min(max(0.0, least), most)
    while spent(high) > target:
        if high >= most:
            raise ValueError(
                f"epsilon {target!r} at delta {delta!r} is not reached by any noise multiplier up to {_MOST:g}"
            )
        low, high = high, min(high + step, most)
    while low == high or spent(low) <= target:
        if low <= least:
            raise ValueError(
                f"epsilon {target!r} at delta {delta!r} is met with any noise, even a noise multiplier of {_LEAST:g}: "
                "there is nothing to calibrate"
            )
        low, high = max(low - step, least), low
    return low, high


def _solve(spent: Callable[[float], float], target: float, low: float, high: float) -> float:
    """The smallest factor found that is enough: a root, by secants, then nudged to the safe side."""
    seen: list[tuple[float, float]] = []

    def shortfall(x: Floats) -> tuple[Floats, Floats]:
        value = -math.log(max(spent(float(x)), 1e-300))
        slope = (value - seen[-1][1]) / (float(x) - seen[-1][0]) if seen and float(x) != seen[-1][0] else math.nan
        seen.append((float(x), value))
        return np.float64(value), np.float64(slope)

    start = np.float64(0.5 * (low + high))
    root = float(invert(shortfall, np.float64(-math.log(target)), start, np.float64(low), np.float64(high)))
    nudge = 1e-13
    while not target - _NEAR_ENOUGH * max(1.0, target) <= (value := spent(root)) <= target:
        root += nudge if value > target else -nudge
        nudge = 2.0 * nudge if value > target else 0.5 * nudge
        if abs(nudge) < 1e-18 or nudge > 1.0:
            break
    return root
