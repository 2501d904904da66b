"""Lower bounds on epsilon from one training run with many canaries.

Each canary is included by a fair coin, and the coins are guessed from the scores. Steinke, Nasr and Jagielski (2023),
arXiv 2305.08846, bound the number of right guesses under (epsilon, delta)-DP. Mahloujifar, Melis and Chaudhuri (2024),
arXiv 2410.22235, bound the number under f-DP (`allowed_guesses`), here with the f of a Gaussian mechanism or of a run's
family. Both need a number of guesses that is fixed in advance. A third bound assumes that canaries do not interact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sized
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import bdtr, bdtrc, expit

from lastiterate.auditing.evidence.error_rates import AssumptionFree, epsilon_of, upper_bound
from lastiterate.auditing.evidence.family import Family, family_of
from lastiterate.auditing.evidence.one_run.allowed_guesses import gaussian, largest_factor, slack
from lastiterate.auditing.evidence.threshold import Worlds, chosen_by_themselves, predicted_threshold
from lastiterate.common.types import Floats, IntArray
from lastiterate.formatting import spell
from lastiterate.privacy.mixtures.solve import invert
from lastiterate.registry import METHODS, ONE_RUN_METHODS
from lastiterate.run import DPSGD

_SHARE = 0.25  # of the canaries are guessed if nothing is known: the top eighth as "in", the bottom eighth as "out"
FEWEST = 16  # guesses: fewer show next to nothing, even if all of them are right
_MOST = 1e6  # the largest epsilon or mu that is tried
LEAST_FAIRNESS = 1e-3  # fair coins have a smaller p-value in at most one of 1,000 audits


@dataclass(frozen=True)
class Guesses:
    """Numbers of guesses and of wrong guesses about canaries.

    Attributes:
        threshold: the smallest score that was called "in"; infinite if none was.
        most: the number of guesses that was fixed in advance.
        made: the number of guesses made. It is smaller than ``most`` if equal scores lie across a cut.
        false_positives: canaries called "in" that were out.
        false_negatives: canaries called "out" that were in.
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
class OneRunBound:
    """A lower bound on epsilon, the bound without a wrong guess (None: not computed), and the noise of a family."""

    epsilon: float
    largest: float | None
    noise_multiplier: float | None


def fairness(canaries_in: int, canaries_out: int) -> float:
    """The p-value of the exact two-sided binomial test that the coins were fair."""
    return float(min(2.0 * bdtr(min(canaries_in, canaries_out), canaries_in + canaries_out, 0.5), 1.0))


def unfair_coins(canaries_in: int, canaries_out: int) -> str | None:
    """Return the reason why these counts are not those of fair coins, which every one-run bound assumes, or None."""
    if (chance := fairness(canaries_in, canaries_out)) >= LEAST_FAIRNESS:
        return None
    return (
        f"{canaries_in:,} canaries in and {canaries_out:,} out are not the counts of fair coins: the exact two-sided "
        f"binomial test has p = {spell(chance, 2)}, and at least {LEAST_FAIRNESS:g} is needed. Include each canary by "
        "its own fair coin, and give the scores of all canaries."
    )


def guess_all(worlds: Worlds, threshold: float) -> Guesses:
    """Guess every canary by one threshold."""
    wrong = [int(count) for count in worlds.errors(np.float64(threshold))]
    canaries = worlds.inside.size + worlds.outside.size
    return Guesses(threshold, canaries, canaries, *wrong)


def guess_extremes(worlds: Worlds, choice: str, count: int | None = None) -> list[Guesses]:
    """Guess only the largest and smallest scores, in ways that depend on nothing but the number of canaries.

    Both papers need guesses that are a function of the scores alone. An order of equal scores that the data decide
    would depend on the coins as well. So equal scores are treated equally: equal scores on both sides of a cut are not
    guessed. The bound is computed for the number of guesses fixed in advance, which may then be larger than the number
    made. The bound is valid: coin flips for the missing guesses would complete the number and could only add right
    guesses. If all canaries are to be guessed, the cut moves to the nearest place between two different scores instead.
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

    return [guess(*ends) for ends in ways_of(scores.size, choice, count)]


def usual_guesses(canaries: int) -> int:
    """Return the number of guesses of "a-priori" if nothing is known about the scores."""
    return max(math.ceil(_SHARE * canaries), min(FEWEST, canaries))


def ways_to_guess(canaries: int, threshold: float | str) -> int:
    """Return the number of ways to guess that a threshold rule tries. The ways share the error."""
    return len(ways_of(canaries, "corrected")) if threshold == "corrected" else 1


def ways_of(canaries: int, choice: str, count: int | None = None) -> list[tuple[int, int]]:
    """Return for each way to guess how many of the largest scores are called "in" and of the smallest "out".

    "a-priori" is one way, with ``count`` guesses. "corrected" and "uncorrected" are several ways: all canaries, half of
    them, a quarter and so on, from both ends or from the top only.
    """
    if choice == "a-priori":
        return [_both_ends(usual_guesses(canaries) if count is None else min(count, canaries))]
    counts = [canaries]
    while counts[-1] // 2 >= FEWEST:
        counts.append(counts[-1] // 2)
    return [_both_ends(count) for count in counts] + [(count, 0) for count in counts[1:]]


def _both_ends(count: int) -> tuple[int, int]:
    return count - count // 2, count // 2


def bound_of(
    worlds: Worlds,
    threshold: float | str,
    method: str,
    delta: float,
    confidence: float,
    run: DPSGD | None = None,
    count: int | None = None,
) -> tuple[Guesses, OneRunBound]:
    """Return the best of the ways to guess that a threshold rule tries, and the bound by this way.

    ``count`` is the number of guesses of "a-priori". It must not depend on the scores.
    """
    ways = guess_extremes(worlds, threshold, count) if isinstance(threshold, str) else [guess_all(worlds, threshold)]
    canaries = worlds.inside.size + worlds.outside.size
    error = _error(ways, threshold, confidence)
    if METHODS[method].family is not None:
        return _bound_by_family(_family(method, run), canaries, ways, error, delta)
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


def bound_by_counts(
    method: str, canaries: int, count: int, right: int, delta: float, error: float, run: DPSGD | None = None
) -> OneRunBound:
    """Return the bound if ``right`` of ``count`` guesses are right. Its ``largest`` is not computed."""
    if method not in ONE_RUN_METHODS or method == "one-run-independent":
        raise ValueError(f"method must be one of one run that counts right guesses, got {method!r}")
    if METHODS[method].family is not None:
        family = _family(method, run)
        factor, _ = _factor(family, canaries, ((count, right),), error)
        return OneRunBound(_of_factor(family, factor, delta), None, _noise(family, factor))
    found = _refuted_up_to(method, canaries, count, right, delta, error)
    if method == "one-run":
        return OneRunBound(found, None, None)
    return OneRunBound(_of_gaussian(found, delta), None, 1.0 / found if found else math.inf)


def _noise(family: Family, factor: float) -> float:
    """Return the noise multiplier of the first step, scaled by the factor."""
    return float(np.ravel(family.run.noise_multiplier)[0]) * factor


def _family(method: str, run: DPSGD | None) -> Family:
    analysis = METHODS[method].family
    assert analysis is not None
    if run is None:
        raise ValueError(f"run must be given with method {method!r}, for its steps, sample rate and weights; got None")
    return family_of(analysis.option, run)


def _bound_by_family(
    family: Family, canaries: int, ways: list[Guesses], error: float, delta: float
) -> tuple[Guesses, OneRunBound]:
    factor, chosen = _factor(family, canaries, tuple((way.most, way.right) for way in ways), error)
    largest = None  # with next to no noise, curves of composition take minutes
    if family.name != "composition":
        perfect, _ = _factor(family, canaries, tuple((way.most, way.made) for way in ways), error)
        largest = _of_factor(family, perfect, delta)
    return ways[chosen], OneRunBound(_of_factor(family, factor, delta), largest, _noise(family, factor))


@lru_cache(maxsize=1024)
def _factor(family: Family, canaries: int, ways: tuple[tuple[int, int], ...], error: float) -> tuple[float, int]:
    mu = max(_refuted_up_to("one-run-fdp", canaries, count, right, 0.0, error) for count, right in ways)
    return largest_factor(family, canaries, ways, error, mu)


def _of_factor(family: Family, factor: float, delta: float) -> float:
    if factor in (0.0, math.inf):
        return math.inf if factor == 0.0 else 0.0
    return float(family.curve(factor).epsilon(delta))


def largest_bound(
    canaries: int, count: int, method: str, delta: float, confidence: float, threshold: float | str = "a-priori"
) -> float:
    """Return the largest bound that ``count`` guesses can show: no guess is wrong, and no scores are equal."""
    error = (1.0 - confidence) / ways_to_guess(canaries, threshold)
    largest = _refuted_up_to(method, canaries, count, count, delta, error)
    return largest if method == "one-run" else _of_gaussian(largest, delta)


def _error(ways: Sized, threshold: float | str, confidence: float) -> float:
    """Return the share of the error for each way to guess."""
    return (1.0 - confidence) / (len(ways) if threshold == "corrected" else 1)


def _of_gaussian(mu: float, delta: float) -> float:
    return float(family_of("gdp", None).curve(1.0 / mu).epsilon(delta)) if mu else 0.0


def _doubt(method: str, canaries: int, count: int, right: int, delta: float, error: float) -> Callable[[float], float]:
    """Return an increasing function of epsilon (or mu) that is negative where this many right guesses refute it."""
    if method == "one-run":
        return lambda epsilon: p_value(canaries, count, right, epsilon, delta) - error
    return lambda mu: slack(gaussian(mu), canaries, count, right, error)


@lru_cache(maxsize=4096)
def _refuted_up_to(method: str, canaries: int, count: int, right: int, delta: float, error: float) -> float:
    """Return the epsilon (or mu) up to which the right guesses refute; 0 if they refute none."""
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
    """Bound the probability of at least ``right`` right guesses under (epsilon, delta)-DP.

    The bound is Theorem 3.1 of Steinke et al. If delta is 0, the number of right guesses is dominated by
    Binomial(count, e^epsilon / (1 + e^epsilon)). Otherwise some guesses may be free, 2 * canaries * delta on average.
    The worst case uses free guesses where the tail grows most.
    """
    if right == 0:
        return 1.0
    rate = float(expit(epsilon))
    tail = float(bdtrc(right - 1, count, rate))
    if delta == 0.0:
        return tail
    # Farther below its mean the binomial has no mass, and a larger number of free guesses only increases the divisor.
    reach = right - count * rate + 10.0 * math.sqrt(count * rate * (1.0 - rate)) + 10.0
    free = np.arange(1.0, min(right, max(1, math.ceil(reach))) + 1.0)
    below = right - 1.0 - free
    gain = np.where(below < 0.0, 1.0, bdtrc(np.maximum(below, 0.0), count, rate)) - tail
    return min(tail + 2.0 * canaries * delta * max(0.0, float(np.max(gain / free))), 1.0)


# Independent canaries: a bound for one run whose coins change no score but that of their own canary.

_MOST_ERROR = 0.25  # of each of the two bounds, for which Hoeffding's inequality applies


@dataclass(frozen=True)
class IndependentBound:
    """A lower bound on epsilon, the bound without an error, the canaries counted, and the errors among them."""

    epsilon: float
    largest: float
    threshold: float
    threshold_choice: str
    worlds: Worlds
    false_positives: int
    false_negatives: int
    fpr: float
    fnr: float


def independent_bound(
    worlds: Worlds, threshold: float | str, run: DPSGD | None, delta: float, confidence: float
) -> IndependentBound:
    """Compute the bound at a threshold that is given, predicted, or chosen by a random half of the canaries.

    "corrected" and "uncorrected" are treated as "split": scores of canaries that differ have no common distribution to
    correct for.

    The pairs of coin and score are independent, but not identically distributed. Take a threshold fixed in advance.
    Canary j is a false positive with probability a_j / 2 and a false negative with probability b_j / 2. Here a_j and
    b_j are the error rates of a test, so 1 - b_j <= e^epsilon a_j + delta. The same holds for the means a and b over
    all m canaries. The number of false positives is a sum of independent indicators with mean m a / 2. Clopper and
    Pearson's bound fails for this sum no more often than for a binomial number of the same mean (Hoeffding 1956), as
    long as the error is at most 1/4: a binomial number is at most its mean with a probability above 1/4 (Greenberg and
    Mohri 2014). The number of false negatives is bounded in the same way.

    Without independence the bound is invalid: a mechanism that reveals all coins with probability delta is
    (0, delta)-DP.
    """
    error = min(0.5 * (1.0 - confidence), _MOST_ERROR)
    choice = "a-priori"
    if threshold == "a-priori":
        canaries = worlds.inside.size + worlds.outside.size
        if run is None:
            raise ValueError("run must be given with threshold 'a-priori', which is predicted for it; got None")
        half = max(canaries // 2, 1)  # the number of canaries that are in would reveal something about the coins
        threshold = predicted_threshold(run, half, half, delta, confidence)
    elif isinstance(threshold, str):
        choice = "split"
        chooser, worlds = _halves(worlds)
        threshold = 0.0
        if chooser.inside.size and chooser.outside.size:
            threshold = chosen_by_themselves(chooser, "uncorrected", AssumptionFree(), delta, error).threshold
    false_positives, false_negatives = (int(count) for count in worlds.errors(np.float64(threshold)))
    canaries = worlds.inside.size + worlds.outside.size

    def rate(errors: int) -> float:
        return float(np.minimum(2.0 * upper_bound(errors, canaries, error), 1.0))

    fpr, fnr, least = rate(false_positives), rate(false_negatives), rate(0)
    return IndependentBound(
        float(epsilon_of(fpr, fnr, delta)),
        float(epsilon_of(least, least, delta)),
        float(threshold),
        choice,
        worlds,
        false_positives,
        false_negatives,
        fpr,
        fnr,
    )


def _halves(worlds: Worlds) -> tuple[Worlds, Worlds]:
    """Return two random halves of all canaries, regardless of their coins. An odd canary goes to the second half.

    A half of each world, as for independent models, would fix how many canaries are in.
    """
    scores = np.concatenate((worlds.inside, worlds.outside))
    is_in = np.arange(scores.size) < worlds.inside.size
    order = worlds.generator().permutation(scores.size)
    first, second = order[: scores.size // 2], order[scores.size // 2 :]

    def part(which: IntArray) -> Worlds:
        return Worlds(np.sort(scores[which][is_in[which]]), np.sort(scores[which][~is_in[which]]))

    return part(first), part(second)
