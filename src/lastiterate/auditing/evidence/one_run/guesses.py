"""Lower bounds on epsilon from one training run with many canaries.

Each canary is included by a fair coin, and the coins are guessed from the scores. Steinke, Nasr and Jagielski (2023),
arXiv 2305.08846, bound the number of right guesses under (epsilon, delta)-DP. Mahloujifar, Melis and Chaudhuri (2024),
arXiv 2410.22235, bound the number under f-DP (`allowed_guesses`). Here f is the trade-off curve of a Gaussian mechanism
or of a run's family. Both bounds need a number of guesses that is fixed in advance. A third bound assumes that canaries
do not interact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import bdtr, bdtrc, expit

from lastiterate.auditing.evidence.error_rates import AssumptionFree, RateBound, upper_bound
from lastiterate.auditing.evidence.family import Family, family_of
from lastiterate.auditing.evidence.one_run.allowed_guesses import gaussian, largest_factor, slack
from lastiterate.auditing.evidence.threshold import Bounds, Worlds, bounds_at, chosen_by_themselves, predicted_threshold
from lastiterate.common.errors import BadArgument
from lastiterate.common.types import Floats, IntArray
from lastiterate.common.validation import told
from lastiterate.formatting import spell
from lastiterate.labels import COMPOSITION, METHODS
from lastiterate.privacy.mixtures.solve import invert
from lastiterate.run import DPSGD

_SHARE = 0.25  # default share of guessed canaries: the top eighth as "in", the bottom eighth as "out"
FEWEST = 16  # smallest number of guesses: fewer show almost nothing, even if all of them are right
_MOST = 1e6  # the largest epsilon or mu that is tried
LEAST_FAIRNESS = 1e-3  # the smallest p-value of coins that are accepted as fair


@dataclass(frozen=True)
class Guesses:
    """Numbers of guesses and of wrong guesses about canaries.

    ``threshold`` is the smallest score that was called "in". ``most`` is the number of guesses fixed in advance.
    ``made`` is smaller if scores on the two sides of a cut are equal, since such canaries are not guessed.
    """

    threshold: float
    most: int
    made: int
    false_positives: int
    false_negatives: int

    @property
    def right(self) -> int:
        """The number of right guesses."""
        return self.made - self.false_positives - self.false_negatives


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on epsilon.

    ``largest`` is the bound that would result if no guess were wrong, or None if it was not computed.
    ``noise_multiplier`` is the largest noise that a family of mechanisms allows, or None without a family.
    """

    epsilon: float
    largest: float | None
    noise_multiplier: float | None


def fairness(canaries_in: int, canaries_out: int) -> float:
    """Return the p-value of the exact two-sided binomial test of whether the coins were fair."""
    return float(min(2.0 * bdtr(min(canaries_in, canaries_out), canaries_in + canaries_out, 0.5), 1.0))


def unfair_coins(canaries_in: int, canaries_out: int) -> str | None:
    """Return the reason why fair coins did not give these counts, or None if they may have."""
    if (chance := fairness(canaries_in, canaries_out)) >= LEAST_FAIRNESS:
        return None
    return (
        f"{canaries_in:,} canaries in and {canaries_out:,} out are not the counts of fair coins: the exact two-sided "
        f"binomial test has p = {spell(chance, 2)}, and at least {LEAST_FAIRNESS:g} is needed. Include each canary by "
        "its own fair coin, and give the scores of all canaries."
    )


def guess_extremes(worlds: Worlds, choice: str, count: int | None = None) -> list[Guesses]:
    """Guess only the canaries with the largest and smallest scores. Their numbers do not depend on the scores.

    Equal scores on both sides of a cut are not guessed, since guesses must be a function of the scores alone. If all
    canaries are to be guessed, the cut moves to the nearest place between two different scores instead.
    """
    scores = np.sort(np.concatenate((worlds.outside, worlds.inside)))
    cuts = np.flatnonzero(scores[1:] > scores[:-1]) + 1
    made = []
    for ins, outs in ways_of(scores.size, choice, count):
        low, high = outs, scores.size - ins
        if low == high and cuts.size:
            low = high = int(cuts[np.argmin(np.abs(cuts - outs))])
        if 0 < low < scores.size and scores[low - 1] == scores[low]:
            low = int(np.searchsorted(scores, scores[low], side="left"))
        if 0 < high < scores.size and scores[high - 1] == scores[high]:
            high = int(np.searchsorted(scores, scores[high], side="right"))
        threshold = float(scores[high]) if high < scores.size else math.inf
        false_positives = worlds.outside.size - np.searchsorted(worlds.outside, threshold) if high < scores.size else 0
        false_negatives = np.searchsorted(worlds.inside, scores[low - 1], side="right") if low else 0
        wrong = int(false_positives), int(false_negatives)
        made.append(Guesses(threshold, ins + outs, low + scores.size - high, *wrong))
    return made


def usual_guesses(canaries: int) -> int:
    """Return the default number of guesses of "a-priori", for scores about which nothing is known."""
    return max(math.ceil(_SHARE * canaries), min(FEWEST, canaries))


def ways_of(canaries: int, choice: str, count: int | None = None) -> list[tuple[int, int]]:
    """Return pairs (number of largest scores called "in", number of smallest scores called "out"), the ways to guess.

    "a-priori" is one way, with ``count`` guesses. "corrected" and "uncorrected" are several ways: all canaries, half of
    them, a quarter and so on, guessed at both ends or at the top only.
    """
    counts = [canaries]
    if choice == "a-priori":
        counts = [usual_guesses(canaries) if count is None else min(count, canaries)]
    while choice != "a-priori" and counts[-1] // 2 >= FEWEST:
        counts.append(counts[-1] // 2)
    return [(count - count // 2, count // 2) for count in counts] + [(count, 0) for count in counts[1:]]


def bound_of(
    worlds: Worlds,
    threshold: float | str,
    method: str,
    delta: float,
    confidence: float,
    run: DPSGD | None = None,
    count: int | None = None,
) -> tuple[Guesses, LowerBound]:
    """Try all ways to guess that the threshold rule allows. Return the guesses with the largest bound, and that
    bound.

    ``count`` is the number of guesses of "a-priori". It must not depend on the scores.
    """
    canaries = worlds.inside.size + worlds.outside.size
    if isinstance(threshold, str):
        ways = guess_extremes(worlds, threshold, count)
    else:  # every canary is guessed
        wrong = [int(count) for count in worlds.errors(np.float64(threshold))]
        ways = [Guesses(threshold, canaries, canaries, *wrong)]
    error = (1.0 - confidence) / (len(ways) if threshold == "corrected" else 1)
    counts = tuple((way.most, way.right) for way in ways)
    epsilon, noise, chosen = _strongest(method, canaries, counts, delta, error, run)
    largest = None  # with very little noise, curves of composition take minutes
    if METHODS[method].family is not COMPOSITION:
        without_error = tuple((way.most, way.made) for way in ways)
        largest = _strongest(method, canaries, without_error, delta, error, run)[0]
    return ways[chosen], LowerBound(epsilon, largest, noise)


def bound_by_counts(
    method: str, canaries: int, count: int, right: int, delta: float, error: float, run: DPSGD | None = None
) -> LowerBound:
    """Return the bound if ``right`` of ``count`` guesses are right, without its ``largest``."""
    if method not in METHODS or not METHODS[method].counts_guesses:
        raise BadArgument("method", f"must be a method of one run that counts right guesses, got {told(method)}")
    epsilon, noise, _ = _strongest(method, canaries, ((count, right),), delta, error, run)
    return LowerBound(epsilon, None, noise)


def _strongest(
    method: str, canaries: int, ways: tuple[tuple[int, int], ...], delta: float, error: float, run: DPSGD | None
) -> tuple[float, float | None, int]:
    """Return the largest bound of pairs (guesses, right guesses), the noise it allows, and the index of its pair."""
    if (analysis := METHODS[method].family) is not None:
        if run is None:
            raise BadArgument(
                "run", f"must be given for method {method!r}, to know steps, sample rate and weights; got None"
            )
        family = family_of(analysis.option, run)
        factor, chosen = _factor(family, canaries, ways, error)
        return family.epsilon_at(factor, delta), family.noise_at(factor), chosen
    best, chosen = 0.0, 0
    for index, way in enumerate(ways):
        if index == 0 or _doubt(method, canaries, *way, delta, error)(best) < 0.0:
            best, chosen = _refuted_up_to(method, canaries, *way, delta, error), index
    if method == "one-run":
        return best, None, chosen
    noise = 1.0 / best if best else math.inf
    return family_of("gdp", None).epsilon_at(noise, delta), noise, chosen


@lru_cache(maxsize=1024)
def _factor(family: Family, canaries: int, ways: tuple[tuple[int, int], ...], error: float) -> tuple[float, int]:
    mu = max(_refuted_up_to("one-run-fdp", canaries, count, right, 0.0, error) for count, right in ways)
    return largest_factor(family, canaries, ways, error, mu)


def _doubt(method: str, canaries: int, count: int, right: int, delta: float, error: float) -> Callable[[float], float]:
    if method == "one-run":
        return lambda epsilon: p_value(canaries, count, right, epsilon, delta) - error
    return lambda mu: slack(gaussian(mu), canaries, count, right, error)


@lru_cache(maxsize=4096)
def _refuted_up_to(method: str, canaries: int, count: int, right: int, delta: float, error: float) -> float:
    return largest_refuted(_doubt(method, canaries, count, right, delta, error))


def largest_refuted(doubt: Callable[[float], float]) -> float:
    """Return the parameter (epsilon or mu) at which an increasing function becomes positive, or 0."""
    if doubt(0.0) >= 0.0:
        return 0.0
    low, high = 0.0, 1.0
    while doubt(high) < 0.0 and high < _MOST:
        low, high = high, 2.0 * high

    def valued(x: Floats) -> tuple[np.float64, np.float64]:
        return np.float64(doubt(float(x))), np.float64(math.nan)

    return float(invert(valued, np.float64(0.0), np.float64(0.5 * (low + high)), np.float64(low), np.float64(high)))


def p_value(canaries: int, count: int, right: int, epsilon: float, delta: float) -> float:
    """Bound the probability of at least ``right`` right guesses under (epsilon, delta)-DP.

    This is Theorem 3.1 of Steinke et al. If delta is positive, 2 * canaries * delta guesses on average are right for
    free. In the worst case they are right when this increases the probability most.
    """
    if right == 0:
        return 1.0
    rate = float(expit(epsilon))
    tail = float(bdtrc(right - 1, count, rate))
    if delta == 0.0:
        return tail
    # A larger number of free guesses does not increase the tail any more, but increases the divisor.
    reach = right - count * rate + 10.0 * math.sqrt(count * rate * (1.0 - rate)) + 10.0
    free = np.arange(1.0, min(right, max(1, math.ceil(reach))) + 1.0)
    below = right - 1.0 - free
    gain = np.where(below < 0.0, 1.0, bdtrc(np.maximum(below, 0.0), count, rate)) - tail
    return min(tail + 2.0 * canaries * delta * max(0.0, float(np.max(gain / free))), 1.0)


# Independent canaries: a bound for one run in which each coin changes only the score of its own canary.

MOST_ERROR = 0.25  # the largest error of each of the two bounds for which Hoeffding's inequality applies


def independent_bounds(
    worlds: Worlds, threshold: float | str, run: DPSGD | None, delta: float, confidence: float
) -> tuple[str, Bounds]:
    """Return "a-priori" or "split", and the bounds at a threshold that is given, predicted or chosen by a random half.

    "corrected" and "uncorrected" are treated as "split": scores of different canaries have no common distribution. The
    errors are sums of independent indicators with different means. Clopper and Pearson's bound holds for such sums if
    the error is at most 1/4 (Hoeffding 1956, Greenberg and Mohri 2014; docs/method.md has the proof). If canaries
    interact, the bound is invalid.
    """
    error = min(0.5 * (1.0 - confidence), MOST_ERROR)
    choice = "a-priori"
    if threshold == "a-priori":
        # Using the true number of canaries "in" would reveal something about the coins.
        half = max((worlds.inside.size + worlds.outside.size) // 2, 1)
        threshold = predicted_threshold(run, half, half, delta, confidence)
    elif isinstance(threshold, str):
        choice = "split"
        chooser, worlds = _halves(worlds)
        threshold = 0.0
        if chooser.inside.size and chooser.outside.size:
            threshold = chosen_by_themselves(chooser, "uncorrected", AssumptionFree(), delta, error).threshold
    return choice, bounds_at(
        worlds, float(threshold), error, independent_rate(worlds.inside.size + worlds.outside.size)
    )


def independent_rate(canaries: int) -> RateBound:
    """Return the upper bound on a mean error rate, if half of the canaries are expected in the counted world."""
    return lambda errors, _, error: np.minimum(2.0 * upper_bound(errors, canaries, error), 1.0)


def _halves(worlds: Worlds) -> tuple[Worlds, Worlds]:
    """Return two random halves of all canaries. Halving each world would fix the number of canaries "in"."""
    scores = np.concatenate((worlds.inside, worlds.outside))
    is_in = np.arange(scores.size) < worlds.inside.size
    order = worlds.generator().permutation(scores.size)
    first, second = order[: scores.size // 2], order[scores.size // 2 :]

    def part(which: IntArray) -> Worlds:
        return Worlds(np.sort(scores[which][is_in[which]]), np.sort(scores[which][~is_in[which]]))

    return part(first), part(second)
