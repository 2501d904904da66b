"""The number of right guesses in one run that a trade-off curve allows: Mahloujifar et al. (2024), for any curve.

Let c be a number of right guesses out of k about m canaries. Given all other coins, the event that guess j is right
together with at least c - 1 others is a test of coin j. Let delta(epsilon) be a privacy curve that holds for adding a
canary and for removing it. Then

    P(j is right, at least c are)  <=  e^epsilon P(j is wrong, at least c - 1 are right)  +  delta(epsilon)

for every epsilon. The same holds on average over the canaries. Write of_right(c) and of_wrong(c - 1) for the averages:

    of_wrong(c - 1)  >=  max over epsilon of  e^(-epsilon) (of_right(c) - delta(epsilon)).

The right side is a convex and increasing function of of_right(c), as the recursion needs. docs/method.md has the proof.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri

from lastiterate.auditing.evidence.family import Family, near_composition
from lastiterate.common.types import FloatArray
from lastiterate.privacy.analyses.calibrate import bracket_noise
from lastiterate.privacy.curve import PrivacyCurve

LeastWrong = Callable[[float], float]  # maps of_right(c) to the smallest possible of_wrong(c - 1)

_FARTHEST, _FARTHEST_DELTA = 15.0, 1e-5  # larger epsilons matter only for events rarer than those of one run
_HALVINGS = 36  # number of halvings of the bracket of a normal quantile
_LOWEST, _HIGHEST = -37.0, 8.0  # normal quantiles of error probabilities


def slack(least_wrong: LeastWrong, canaries: int, count: int, right: int, error: float) -> float:
    """Return a number that is negative if at least ``right`` right guesses have a probability below ``error``.

    If this probability were ``error``, the probabilities of fewer right guesses would have lower bounds. The number is
    negative if these lower bounds add up to more than 1.
    """
    available = count / canaries
    of_right, of_wrong = error * right / canaries, error * (count - right) / canaries
    for fewer in range(right - 1, -1, -1):
        least = least_wrong(of_right)
        if least <= of_wrong:
            break  # further rounds change nothing
        of_right = min(of_right + fewer / (count - fewer) * (least - of_wrong), 1.0)
        of_wrong = least
        if of_right + of_wrong > available:
            break
    return available - of_right - of_wrong


def least_p_value(least_wrong: LeastWrong, canaries: int, ways: Iterable[tuple[int, int]]) -> tuple[float, int]:
    """Return the smallest p-value of several pairs (guesses, right guesses), as a normal quantile, and its index."""
    best, chosen = _HIGHEST, 0
    for index, (count, right) in enumerate(ways):
        if slack(least_wrong, canaries, count, right, float(ndtr(best))) >= 0.0:
            continue
        low, high = _LOWEST, best
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            is_refuted = slack(least_wrong, canaries, count, right, float(ndtr(middle))) < 0.0
            low, high = (low, middle) if is_refuted else (middle, high)
        best, chosen = high, index
    return best, chosen


def guessing(of_right: float) -> float:
    """Return the least of_wrong under perfect privacy. It equals of_right."""
    return of_right


def gaussian(mu: float) -> LeastWrong:
    """Return the exact least of_wrong of the Gaussian mechanism."""
    return lambda of_right: float(ndtr(ndtri(of_right) - mu))


def lines_of(curve: PrivacyCurve, nodes: int) -> LeastWrong:
    """Return the least of_wrong of any curve: the maximum of straight lines.

    There are two lines for each of ``nodes`` epsilons: one for epsilon and one for -epsilon. Each is a valid bound.
    """
    epsilons = np.linspace(0.0, min(float(curve.epsilon(_FARTHEST_DELTA)), _FARTHEST), nodes)
    delta = np.asarray(curve.delta(epsilons))
    down, up = np.exp(-epsilons), np.exp(epsilons)
    return _Largest.of(
        np.concatenate([[0.0], down[::-1], up]), np.concatenate([[0.0], (-down * delta)[::-1], 1.0 - delta - up])
    )


@dataclass(frozen=True, eq=False)
class _Largest:
    """The maximum of straight lines. Between two corners it is one of the lines."""

    corners: list[float]
    slopes: list[float]
    heights: list[float]

    @classmethod
    def of(cls, slopes: FloatArray, heights: FloatArray) -> _Largest:
        """Return the maximum of lines with increasing ``slopes``."""
        kept: list[tuple[float, float]] = []
        corners: list[float] = []
        for slope, height in zip(slopes.tolist(), heights.tolist(), strict=True):
            while kept:
                if slope == kept[-1][0]:
                    corner = -math.inf if height >= kept[-1][1] else math.inf
                else:
                    corner = (kept[-1][1] - height) / (slope - kept[-1][0])
                if corner > (corners[-1] if corners else -math.inf):
                    break
                kept.pop()
                corners = corners[:-1]
            else:
                kept.append((slope, height))
                continue
            if corner < math.inf:
                kept.append((slope, height))
                corners.append(corner)
        return cls(corners, [slope for slope, _ in kept], [height for _, height in kept])

    def __call__(self, x: float) -> float:
        here = bisect_right(self.corners, x)
        return self.slopes[here] * x + self.heights[here]


# Noise of a family: the largest noise that the right guesses of one run allow.

_NODES, _NODES_OF_COMPOSITION = 200, 24  # numbers of epsilons at which a curve is evaluated
_STEP, _STEP_OF_COMPOSITION = math.log(2.0), 0.1  # steps of log noise while a root is bracketed
_NEAR, _NEAR_OF_COMPOSITION = 1e-7, 1e-4  # tolerance of the root, in log noise


def largest_factor(
    family: Family, canaries: int, ways: Sequence[tuple[int, int]], error: float, mu: float
) -> tuple[float, int]:
    """Return the smallest noise factor that the guesses refute, and the index of the pair that refutes it.

    ``ways`` are pairs (guesses, right guesses), one for each way to guess. ``mu`` is the largest mu at which these
    pairs refute mu-Gaussian DP. The factor is infinite if chance explains the guesses, and 0 if all noise is refuted.
    """
    goal = float(ndtri(error))
    if least_p_value(guessing, canaries, ways)[0] >= goal:
        return math.inf, 0

    def excess(log_factor: float) -> float:
        return goal - least_p_value(_lines(family, log_factor), canaries, ways)[0]

    is_composition = family.name == "composition"
    step = _STEP_OF_COMPOSITION if is_composition else _STEP
    low, high = bracket_noise(
        lambda log_factor: excess(log_factor) > 0.0,
        max(near_composition(family.run, max(mu, 1e-3)), 0.0) if is_composition else 0.0,
        lambda log_factor: min(family.least_log_factor, 0.0) if log_factor <= 0.0 else 0.0,
        family.most_log_factor,
        lambda: step,
    )
    if low == -math.inf and not is_composition:
        return 0.0, least_p_value(_lines(family, high), canaries, ways)[1]
    if low > -math.inf and high < math.inf:
        high = _narrowed(excess, low, high, _NEAR_OF_COMPOSITION if is_composition else _NEAR)
    chosen = least_p_value(_lines(family, high), canaries, ways)[1] if high < math.inf else 0
    return math.exp(high) if high < math.inf else math.inf, chosen


def _narrowed(excess: Callable[[float], float], low: float, high: float, near: float) -> float:
    """Return the upper end of a narrower bracket. Halving alternates with secants, since the excess may jump."""
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
    """Return the number of epsilons at which a curve of this analysis is evaluated."""
    return _NODES_OF_COMPOSITION if analysis == "composition" else _NODES
