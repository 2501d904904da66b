"""Calibration of the noise of a run to a target epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from lastiterate.common.validation import function, number
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures.solve import Secants, invert
from lastiterate.run import DPSGD, require_run

_FACTOR_AT_ONCE = 4.0  # factor of the noise while the root is being bracketed
_LEAST, _MOST = 1e-4, 1e12  # smallest and largest noise multiplier tried
_NEAR_ENOUGH = 1e-7  # largest distance to the target, from below
_CERTIFYING = 6  # largest number of times that noise is added until the upper end of a guarantee meets the target
_NEAR_CERTAIN = 1e-4  # relative width above which a bracket does not show that more noise is needed
_ROUGHLY, _QUESTIONS = 1e-3, 12  # distance to the target and number of evaluations for an analysis that jumps


def calibrate(run: DPSGD, *, analysis: Callable[[DPSGD], PrivacyCurve], epsilon: float, delta: float) -> DPSGD:
    """Scale the noise multipliers of the run by one factor, so that ``analysis`` gives ``epsilon`` at ``delta``.

    With ``composition`` the noise guarantees ``epsilon`` (with ``no_amplification`` for shuffled or fixed batches).
    With ``last_iterate`` there is less noise, and ``epsilon`` is a prediction, not a guarantee.

    The result never exceeds ``epsilon``, by the upper end of a guarantee's bracket, and is below it by about 1e-6.
    ``convex`` jumps where another of its bounds becomes the least, and may end some thousandths below. The noise of
    ``run`` matters only as a shape: any positive number will do if the noise is constant.
    """
    require_run(run)
    choices = "lastiterate.composition or no_amplification for a guarantee, or last_iterate for a prediction"
    function("analysis", analysis, f"a function: {choices}")
    target = number("epsilon", epsilon, 0.0, open_low=True)
    number("delta", delta, 0.0, 1.0, open_low=True, open_high=True)

    @cache
    def spent(log_factor: float) -> float:
        factor = math.exp(log_factor)
        return float(analysis(run.replace(noise_multiplier=run.noise_multiplier * factor)).epsilon(delta))

    low, high = _bracket(run, spent, target, delta)
    with np.errstate(all="ignore"):
        solve = _solve_roughly if _is_rough(analysis) else _solve
        log_factor = solve(spent, target, low, high)

    def scaled(log_factor: float) -> DPSGD:
        return run.replace(noise_multiplier=run.noise_multiplier * math.exp(log_factor))

    for doublings in range(_CERTIFYING):
        curve = analysis(scaled(log_factor))
        upper = curve.bracket(delta)[1] if curve.is_guarantee else target
        if upper <= target or upper > target * (1.0 + _NEAR_CERTAIN):
            break
        log_factor += 2.0 ** (doublings - 2) * (upper / target - 1.0)
    return scaled(log_factor)


def bracket_noise(
    is_enough: Callable[[float], bool],
    start: float,
    least: Callable[[float], float],
    most: float,
    stride: Callable[[], float],
) -> tuple[float, float]:
    """Return logarithms of two factors of the noise: the smaller gives too little noise, the larger enough.

    The search goes upwards from ``start`` until there is enough noise, and then downwards until there is too little.

    Args:
        is_enough: Return whether a factor gives enough noise. Every larger factor is then enough too.
        start: Log-factor to begin with.
        least: Return the least log-factor that may be tried on the way down from a given one.
        most: Largest log-factor that may be tried. If it is not enough, the larger result is infinity.
        stride: Return the size of the next stride. Called after each trial.

    If even the least factor is enough, the smaller result is minus infinity and the larger is the least.
    """
    low = high = min(start, most)
    while not is_enough(high):
        if high >= most:
            return most, math.inf
        low, high = high, min(high + stride(), most)
    while low == high or is_enough(low):
        lowest = least(low)
        if low <= lowest:
            return -math.inf, lowest
        low, high = max(low - stride(), lowest), low
    return low, high


def _bracket(run: DPSGD, spent: Callable[[float], float], target: float, delta: float) -> tuple[float, float]:
    """Return logarithms of factors with too little and with enough noise."""
    least = math.log(_LEAST / float(np.min(run.noise_multiplier)))
    most = math.log(_MOST / float(np.max(run.noise_multiplier)))
    stride = math.log(_FACTOR_AT_ONCE)
    low, high = bracket_noise(
        lambda log_factor: spent(log_factor) <= target, max(0.0, least), lambda _: least, most, lambda: stride
    )
    if high == math.inf:
        raise ValueError(
            f"epsilon {target!r} at delta {delta!r} is not reached by any noise multiplier up to {_MOST:g}"
        )
    if low == -math.inf:
        raise ValueError(
            f"epsilon {target!r} at delta {delta!r} is met with any noise, even a noise multiplier of {_LEAST:g}: "
            "there is nothing to calibrate"
        )
    return low, high


def _solve(spent: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Return the smallest factor found that is enough: a root, by secants, then nudged to the safe side."""
    shortfall = Secants(lambda log_factor: -math.log(max(spent(log_factor), 1e-300)))
    start = np.float64(0.5 * (low + high))
    root = float(invert(shortfall, np.float64(-math.log(target)), start, np.float64(low), np.float64(high)))
    nudge = 1e-13
    while not target - _NEAR_ENOUGH * max(1.0, target) <= (value := spent(root)) <= target:
        root += nudge if value > target else -nudge
        nudge = 2.0 * nudge if value > target else 0.5 * nudge
        if abs(nudge) < 1e-18 or nudge > 1.0:
            break
    return root


def _is_rough(analysis: Callable[[DPSGD], PrivacyCurve]) -> bool:
    """Return whether an analysis is the least of many bounds.

    Such an analysis takes a second and jumps between bounds.
    """
    return getattr(getattr(analysis, "func", analysis), "__name__", "") == "convex"


def _solve_roughly(spent: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Return a factor that is enough and hardly too large, by repeated linear interpolation between the two ends."""
    least = target - _ROUGHLY * max(1.0, target)
    goal = math.log(max(0.5 * (least + target), 0.5 * target))
    for _ in range(_QUESTIONS):
        if spent(high) >= least:
            break
        too_much, enough = (math.log(max(spent(end), 1e-300)) for end in (low, high))
        share = (too_much - goal) / (too_much - enough) if too_much < math.inf else 0.5
        middle = low + min(max(share, 0.02), 0.98) * (high - low)
        low, high = (low, middle) if spent(middle) <= target else (middle, high)
    return high
