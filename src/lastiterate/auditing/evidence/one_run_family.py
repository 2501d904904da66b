"""The largest noise of a run's family that the right guesses of one run allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from scipy.special import ndtri

from lastiterate.auditing.evidence.family import MOST_NOISE, Family, near_composition
from lastiterate.auditing.evidence.one_run_curve import LeastWrong, guessing, least_p_value, lines_of
from lastiterate.privacy.analyses.calibrate import bracket_noise

_NODES, _NODES_OF_COMPOSITION = 200, 24  # epsilons at which a curve is evaluated: one of composition takes long
_STEP, _STEP_OF_COMPOSITION = math.log(2.0), 0.1  # of log noise, while the root is being bracketed
_NEAR, _NEAR_OF_COMPOSITION = 1e-7, 1e-4  # to the root, in log noise, from above


def largest_factor(
    family: Family, canaries: int, ways: Sequence[tuple[int, int]], error: float, mu: float
) -> tuple[float, int]:
    """The factor of the noise from which on one of the ways, (guesses, right ones), refutes it, and which of them.

    ``mu`` is that of the Gaussian mechanism at which it would. Infinity where no noise is refuted, as guessing explains
    the guesses; 0 where all noise is. Composition is followed down as far as ``family`` does, and no further.
    """
    goal = float(ndtri(error))
    if least_p_value(guessing, canaries, ways)[0] >= goal:
        return math.inf, 0

    def excess(log_factor: float) -> float:
        """Positive where so much noise is refuted."""
        return goal - least_p_value(_lines(family, log_factor), canaries, ways)[0]

    is_composition = family.name == "composition"
    step = _STEP_OF_COMPOSITION if is_composition else _STEP
    low, high = bracket_noise(
        lambda log_factor: excess(log_factor) > 0.0,
        max(near_composition(family.run, max(mu, 1e-3)), 0.0) if is_composition else 0.0,
        lambda log_factor: min(family.least_log_factor, 0.0) if log_factor <= 0.0 else 0.0,
        math.log(MOST_NOISE / float(np.max(family.run.noise_multiplier))),
        lambda: step,
    )
    if low == -math.inf and not is_composition:
        return 0.0, least_p_value(_lines(family, high), canaries, ways)[1]
    if low > -math.inf and high < math.inf:
        high = _narrowed(excess, low, high, _NEAR_OF_COMPOSITION if is_composition else _NEAR)
    chosen = least_p_value(_lines(family, high), canaries, ways)[1] if high < math.inf else 0
    return math.exp(high) if high < math.inf else math.inf, chosen


def _narrowed(excess: Callable[[float], float], low: float, high: float, near: float) -> float:
    """The upper end of a narrower bracket. Excess may jump, so that halving takes turns with secants."""
    below, above, halve = excess(low), excess(high), False
    while high - low > near:
        share = 0.5 if halve else min(max(-below / (above - below), 0.02), 0.98)
        middle = low + share * (high - low)
        if (here := excess(middle)) > 0.0:
            high, above = middle, here
        else:
            low, below = middle, here
        halve = not halve
    return high


@lru_cache(maxsize=1024)
def _lines(family: Family, log_factor: float) -> LeastWrong:
    return lines_of(family.curve(math.exp(log_factor)), nodes_of(family.name))


def nodes_of(analysis: str) -> int:
    """How many epsilons a curve of this analysis is evaluated at."""
    return _NODES_OF_COMPOSITION if analysis == "composition" else _NODES
