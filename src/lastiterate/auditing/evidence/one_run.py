"""Many canaries in one training run, each in by a fair coin: the coins are guessed from the scores.

Steinke, Nasr and Jagielski (2023), arXiv 2305.08846, bound how many guesses can be right under (epsilon, delta)-DP;
Mahloujifar, Melis and Chaudhuri (2024), arXiv 2410.22235, under f-DP, here with the f of a Gaussian mechanism. Both
want the number of guesses fixed in advance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sized
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import bdtrc, expit, ndtr, ndtri

from lastiterate.arrays import Floats
from lastiterate.auditing.evidence.family import family_of
from lastiterate.auditing.evidence.threshold import Worlds
from lastiterate.privacy.mixtures.solve import invert

_SHARE = 0.25  # of the canaries are guessed a priori: the top eighth as "in", the bottom eighth as "out"
_FEWEST = 16  # guesses: with fewer, even all of them right, next to nothing can be shown
_MOST = 1e6  # epsilons and mus that are tried


@dataclass(frozen=True)
class Guesses:
    """How many canaries were guessed, and how many wrongly.

    Attributes:
        threshold: the smallest score that was called "in"; infinite if none was.
        most: how many guesses were to be made, fixed in advance.
        made: how many were made; fewer where equal scores lie across a cut.
        false_positives: canaries called "in" that were not.
        false_negatives: canaries called "out" that were in.
    """

    threshold: float
    most: int
    made: int
    false_positives: int
    false_negatives: int

    @property
    def right(self) -> int:
        """How many guesses were right."""
        return self.made - self.false_positives - self.false_negatives


@dataclass(frozen=True)
class OneRunBound:
    """A lower bound on epsilon, the same without a wrong guess, and the noise of a Gaussian mechanism."""

    epsilon: float
    largest: float
    noise_multiplier: float | None


def guess_all(worlds: Worlds, threshold: float) -> Guesses:
    """Every canary is guessed, by one threshold."""
    wrong = [int(count) for count in worlds.errors(np.float64(threshold))]
    canaries = worlds.inside.size + worlds.outside.size
    return Guesses(threshold, canaries, canaries, *wrong)


def guess_extremes(worlds: Worlds, choice: str) -> list[Guesses]:
    """Only the largest and smallest scores are guessed, in ways that are the same for all audits of so many canaries.

    Both papers want guesses that are a function of the scores alone. An order of equal scores that the data decide,
    however well mixed, is a function of the coins as well. So equal scores are treated equally: those that lie across
    a cut are not guessed at all. There are then fewer guesses than the number fixed in advance, for which the bound is
    computed. That is valid: to flip coins for those left out would make it that number, and could only add right ones.
    Where all are to be guessed, the cut moves to the nearest place between two different scores instead.
    """
    scores = np.sort(np.concatenate((worlds.outside, worlds.inside)))
    cuts = np.flatnonzero(scores[1:] > scores[:-1]) + 1

    def guess(ins: int, outs: int) -> Guesses:
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
        return Guesses(threshold, ins + outs, low + scores.size - high, int(false_positives), int(false_negatives))

    return [guess(*ends) for ends in _ways(scores.size, choice)]


def _ways(canaries: int, choice: str) -> list[tuple[int, int]]:
    """How many of the largest scores are called "in", and how many of the smallest "out".

    "a-priori" is one way; "corrected" and "uncorrected" are several: all canaries, half of them, a quarter and so on,
    from both ends or from the top only.
    """
    if choice == "a-priori":
        return [_both_ends(max(math.ceil(_SHARE * canaries), min(_FEWEST, canaries)))]
    counts = [canaries]
    while counts[-1] // 2 >= _FEWEST:
        counts.append(counts[-1] // 2)
    return [_both_ends(count) for count in counts] + [(count, 0) for count in counts[1:]]


def _both_ends(count: int) -> tuple[int, int]:
    return count - count // 2, count // 2


def bound_of(
    worlds: Worlds, threshold: float | str, method: str, delta: float, confidence: float
) -> tuple[Guesses, OneRunBound]:
    """The bound by the best of the ways to guess that this threshold means, and that way."""
    ways = guess_extremes(worlds, threshold) if isinstance(threshold, str) else [guess_all(worlds, threshold)]
    canaries = worlds.inside.size + worlds.outside.size
    error = _error(ways, threshold, confidence)
    best, chosen = 0.0, ways[0]
    for guesses in ways:
        audit = (method, canaries, guesses.most, guesses.right, delta, error)
        if _doubt(*audit)(best) < 0.0:
            best, chosen = _refuted_up_to(*audit), guesses
    numbers = {(guesses.most, guesses.made) for guesses in ways}
    largest = max(_refuted_up_to(method, canaries, most, made, delta, error) for most, made in numbers)
    if method == "one-run":
        return chosen, OneRunBound(best, largest, None)
    noise = 1.0 / best if best else math.inf
    return chosen, OneRunBound(_of_gaussian(best, delta), _of_gaussian(largest, delta), noise)


def largest_bound(canaries: int, threshold: float | str, method: str, delta: float, confidence: float) -> float:
    """What so many canaries can show at most: no guess is wrong, and no scores are equal."""
    ways = _ways(canaries, threshold) if isinstance(threshold, str) else [(canaries, 0)]
    error = _error(ways, threshold, confidence)
    counts = {sum(ends) for ends in ways}
    largest = max(_refuted_up_to(method, canaries, count, count, delta, error) for count in counts)
    return largest if method == "one-run" else _of_gaussian(largest, delta)


def _error(ways: Sized, threshold: float | str, confidence: float) -> float:
    """The share of each way to guess."""
    return (1.0 - confidence) / (len(ways) if threshold == "corrected" else 1)


def _of_gaussian(mu: float, delta: float) -> float:
    return float(family_of("gdp", None).curve(1.0 / mu).epsilon(delta)) if mu else 0.0


def _doubt(method: str, canaries: int, count: int, right: int, delta: float, error: float) -> Callable[[float], float]:
    """An increasing function of epsilon (or mu), negative where so many right guesses refute it."""
    if method == "one-run":
        return lambda epsilon: p_value(canaries, count, right, epsilon, delta) - error
    return lambda mu: _gaussian_slack(canaries, count, right, mu, error)


@lru_cache(maxsize=4096)
def _refuted_up_to(method: str, canaries: int, count: int, right: int, delta: float, error: float) -> float:
    """The epsilon (or mu) where the doubt begins; 0 if that is at once."""
    doubt = _doubt(method, canaries, count, right, delta, error)
    if doubt(0.0) >= 0.0:
        return 0.0
    low, high = 0.0, 1.0
    while doubt(high) < 0.0 and high < _MOST:
        low, high = high, 2.0 * high

    def valued(x: Floats) -> tuple[np.float64, np.float64]:
        return np.float64(doubt(float(x))), np.float64(math.nan)

    return float(invert(valued, np.float64(0.0), np.float64(0.5 * (low + high)), np.float64(low), np.float64(high)))


def p_value(canaries: int, count: int, right: int, epsilon: float, delta: float) -> float:
    """The chance of at least so many right guesses, at most, under (epsilon, delta)-DP (Steinke et al., Theorem 3.1).

    Without delta the number of right guesses is dominated by Binomial(count, e^epsilon / (1 + e^epsilon)). With it some
    guesses may come for free, 2 * canaries * delta on average, and worst is what buys most of the tail.
    """
    if right == 0:
        return 1.0
    rate = float(expit(epsilon))
    tail = float(bdtrc(right - 1, count, rate))
    if delta == 0.0:
        return tail
    # Farther below its mean the binomial has no mass, and a larger number of free guesses only divides by more.
    reach = right - count * rate + 10.0 * math.sqrt(count * rate * (1.0 - rate)) + 10.0
    free = np.arange(1.0, min(right, max(1, math.ceil(reach))) + 1.0)
    below = right - 1.0 - free
    gain = np.where(below < 0.0, 1.0, bdtrc(np.maximum(below, 0.0), count, rate)) - tail
    return min(tail + 2.0 * canaries * delta * max(0.0, float(np.max(gain / free))), 1.0)


def _gaussian_slack(canaries: int, count: int, right: int, mu: float, error: float) -> float:
    """Negative where so many right guesses refute mu-Gaussian DP: the recursion of Mahloujifar et al., Algorithm 3.

    It supposes that at least ``right`` guesses are right with probability ``error``, and bounds from below what the
    probabilities of fewer right guesses must then be; more in total than there are guesses is a contradiction.
    """
    available = count / canaries
    of_right, of_wrong = error * right / canaries, error * (count - right) / canaries
    for fewer in range(right - 1, -1, -1):
        least = max(of_wrong, float(ndtr(ndtri(of_right) - mu)))
        if least == of_wrong:
            break  # nothing changes any more
        of_right = min(of_right + fewer / (count - fewer) * (least - of_wrong), 1.0)
        of_wrong = least
        if of_right + of_wrong > available:
            break
    return available - of_right - of_wrong
