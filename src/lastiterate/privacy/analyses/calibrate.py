"""Calibration of the noise of a run to a target: epsilon, mu, advantage, or the true positive rate of an attack."""

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from lastiterate.common.validation import function
from lastiterate.privacy.curve import PrivacyCurve, Target
from lastiterate.privacy.mixtures.solve import Secants, invert
from lastiterate.run import DPSGD, require_run

_FACTOR_AT_ONCE = 4.0  # the noise changes by this factor in each step of `bracket_noise`
_LEAST, _MOST = 1e-4, 1e12  # smallest and largest noise multiplier tried
_NEAR_ENOUGH = 1e-7  # epsilon may be at most this far below the target
_CERTIFYING = 6  # largest number of times that noise is added to get the upper end of a bracket below the target
_NEAR_CERTAIN = 1e-4  # an upper end further above the target than this fraction is due to a wide bracket
_ROUGHLY, _QUESTIONS = 1e-3, 12  # for an analysis that jumps: distance to the target, number of evaluations
_ROUGHLY_OF_MU, _QUESTIONS_OF_MU = 1e-6, 40  # the same for mu, relative to the target


def calibrate(
    run: DPSGD,
    *,
    analysis: Callable[[DPSGD], PrivacyCurve],
    epsilon: float | None = None,
    delta: float | None = None,
    mu: float | None = None,
    advantage: float | None = None,
    tpr: float | None = None,
    fpr: float | None = None,
) -> DPSGD:
    """Scale the noise multipliers of the run by one factor, so that ``analysis`` reaches a target.

    The target is exactly one of ``epsilon`` with ``delta``, ``mu`` (on error rates of at least 1e-10), ``advantage``,
    and ``tpr`` with ``fpr``: the largest true positive rate of an attack with this false positive rate.

    With ``composition`` the noise guarantees the target (with ``no_amplification`` for shuffled or fixed batches).
    With ``last_iterate`` there is less noise, and the target is a prediction, not a guarantee.

    The result never exceeds the target, and is about 1e-6 below it. For a guarantee this holds for the upper end of
    its bracket. The ``convex`` analysis is the smallest of several bounds, so its epsilon can jump, and the result may
    be some thousandths below the target. Only the ratios between the noise multipliers of ``run`` matter: if the noise
    is constant, any positive number will do.
    """
    require_run(run)
    choices = "lastiterate.composition or no_amplification for a guarantee, or last_iterate for a prediction"
    function("analysis", analysis, f"a function: {choices}")
    aim = Target(epsilon, delta, mu, advantage, tpr, fpr)
    target = aim.value

    def scaled(log_factor: float) -> DPSGD:
        return run.replace(noise_multiplier=run.noise_multiplier * math.exp(log_factor))

    @cache
    def spent(log_factor: float) -> float:
        return aim.of(analysis(scaled(log_factor)))

    least = math.log(_LEAST / float(np.min(run.noise_multiplier)))
    most = math.log(_MOST / float(np.max(run.noise_multiplier)))
    stride = math.log(_FACTOR_AT_ONCE)
    low, high = bracket_noise(
        lambda log_factor: spent(log_factor) <= target, max(0.0, least), lambda _: least, most, lambda: stride
    )
    if high == math.inf:
        raise ValueError(f"{aim.words()} is not reached with any noise multiplier up to {_MOST:g}")
    if low == -math.inf:
        raise ValueError(
            f"{aim.words()} is met with any noise, even a noise multiplier of {_LEAST:g}: there is nothing to calibrate"
        )
    # The convex analysis takes about a second, and its epsilon jumps where another bound becomes the smallest.
    is_rough = getattr(getattr(analysis, "func", analysis), "__name__", "") == "convex"
    with np.errstate(all="ignore"):
        if is_rough:
            log_factor = _solve_roughly(spent, target, low, high)
        elif mu is not None:
            log_factor = _solve_roughly(spent, target, low, high, _ROUGHLY_OF_MU * target, _QUESTIONS_OF_MU)
        else:
            log_factor = _solve(spent, target, low, high)
    for doublings in range(_CERTIFYING):
        curve = analysis(scaled(log_factor))
        upper = aim.upper(curve) if curve.is_guarantee else target
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
    """Return the logs of two factors for the noise: the smaller gives too little noise, the larger enough.

    The search starts at the log-factor ``start`` and goes up in steps of ``stride()``, at most to ``most``, until
    ``is_enough``. Then it goes down, at most to ``least(log_factor)``, until there is too little noise. If ``most`` is
    not enough, the larger result is infinity. If even the smallest factor is enough, the smaller result is minus
    infinity and the larger result is the smallest factor.
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


def _solve(spent: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Find the root with secants, then move it until epsilon is at most the target."""
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


def _solve_roughly(
    spent: Callable[[float], float],
    target: float,
    low: float,
    high: float,
    distance: float | None = None,
    questions: int = _QUESTIONS,
) -> float:
    least = target - (_ROUGHLY * max(1.0, target) if distance is None else distance)
    goal = math.log(max(0.5 * (least + target), 0.5 * target))
    for _ in range(questions):
        if spent(high) >= least:
            break
        too_much, enough = (math.log(max(spent(end), 1e-300)) for end in (low, high))
        share = (too_much - goal) / (too_much - enough) if too_much < math.inf else 0.5
        middle = low + min(max(share, 0.02), 0.98) * (high - low)
        low, high = (low, middle) if spent(middle) <= target else (middle, high)
    return high
