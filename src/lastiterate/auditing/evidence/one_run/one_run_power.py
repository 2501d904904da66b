"""Power of an audit of one run: plans for the numbers of canaries and guesses, before training.

Plans assume that scores follow the linear analysis (`score_signal`), that canaries are independent, and that the cuts
between guessed and other scores lie at their expected places. The number of right guesses is taken to be binomial. If
these assumptions are wrong, bounds are weak, but not invalid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import bdtrc, bdtrik, ndtr

from lastiterate.attacks.attack import LinearScores
from lastiterate.auditing.evidence.one_run.allowed_guesses import LeastWrong, lines_of, nodes_of, slack
from lastiterate.auditing.evidence.one_run.guesses import FEWEST, bound_by_counts, p_value
from lastiterate.auditing.evidence.score_signal import guarantee_of, score_below
from lastiterate.common.search import first_integer
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import integer, number
from lastiterate.labels import METHODS
from lastiterate.privacy.mixtures.law import law_of
from lastiterate.run import DPSGD

_RATIO = 1.2  # ratio of neighbouring numbers of guesses, or of canaries, that are tried
_POINTS = 4001  # number of points at which distributions of scores are evaluated
_FURTHEST = 9.0  # range of these points, in standard deviations to either side
_TIE = 1e-6  # epsilon added for each standard deviation by which guesses beat coin flips, to break ties
_LOUD = 4.0  # factor of the signal in a training with a quarter of the noise
_NEARLY = 0.95  # share of the bound with most canaries: the fewest canaries that reach it are chosen


@dataclass(frozen=True)
class OneRunPlan:
    """The plan of an audit of one run. Half of the guesses are for the largest scores, half for the smallest.

    ``signal`` and ``spread`` describe the scores, as in `score_signal`.
    """

    run: DPSGD
    canaries: int
    guesses: int
    delta: float = 1e-5
    confidence: float = 0.95
    signal: float = 1.0
    spread: float = 1.0

    def __post_init__(self) -> None:
        integer("canaries", self.canaries, 1)
        integer("guesses", self.guesses, 1, self.canaries)

    @cached_property
    def accuracy(self) -> float:
        """The expected share of right guesses."""
        below_in, below_out = _below(self.run, self.signal, self.spread)
        below = 0.5 * (below_in + below_out)
        ins, outs = self.guesses - self.guesses // 2, self.guesses // 2
        found = np.interp(1.0 - ins / self.canaries, below, 1.0 - below_in)
        left = np.interp(outs / self.canaries, below, below_out)
        return float(np.clip(0.5 * (found + left) * self.canaries / self.guesses, 0.5, 1.0))

    def median(self, method: str) -> float:
        """Return the median of the bound."""
        return self.reached(method, 0.5)

    def reached(self, method: str, chance: float) -> float:
        """Return the largest epsilon that the bound reaches with at least this probability."""
        right = int(np.ceil(bdtrik(1.0 - chance, self.guesses, self.accuracy)).clip(0, self.guesses))
        error = 1.0 - self.confidence
        return bound_by_counts(method, self.canaries, self.guesses, right, self.delta, error, self.run).epsilon

    def chance_to_refute(self, claim: DPSGD | float) -> float:
        """Return the probability that the audit refutes a claim. The claim is a run with its noise, or an epsilon.

        A run is tested by the curve of its guarantee, an epsilon without assumptions.
        """
        if (right := self.right_to_refute(claim)) is None:
            return 0.0
        return float(bdtrc(right - 1, self.guesses, self.accuracy))

    def right_to_refute(self, claim: DPSGD | float) -> int | None:
        """Return the smallest number of right guesses that refutes a claim, or None if no number does."""
        error = 1.0 - self.confidence
        if isinstance(claim, DPSGD):
            allowed = allowed_by(claim)

            def refuted(right: int) -> bool:
                return slack(allowed, self.canaries, self.guesses, right, error) < 0.0
        else:
            epsilon = number("claim", claim, 0.0)

            def refuted(right: int) -> bool:
                return p_value(self.canaries, self.guesses, right, epsilon, self.delta) < error

        return first_integer(refuted, 0, self.guesses) if refuted(self.guesses) else None


@lru_cache(maxsize=64)
def allowed_by(run: DPSGD) -> LeastWrong:
    """Return the bound on wrong guesses by the curve of a run's guarantee."""
    curve = guarantee_of(run)(run)
    return lines_of(curve, nodes_of(curve.analysis))


@lru_cache(maxsize=512)
def best_guesses(run: DPSGD, canaries: int, method: str = "one-run-fdp", *options: float) -> int:
    """Return the number of guesses with the largest expected median bound.

    ``options`` are delta, confidence, signal and spread of the plan. For families, the number that is best for Gaussian
    DP is used. Ties, such as bounds of 0, are broken by how far right guesses are from coin flips.
    """
    method = method if METHODS[method].is_assumption_free else "one-run-fdp"
    first = OneRunPlan(run, canaries, canaries, *options)

    def merit(guesses: int) -> float:
        plan = replace(first, guesses=guesses)
        return plan.median(method) + _TIE * (2.0 * plan.accuracy - 1.0) * math.sqrt(guesses)

    return max(numbers_up_to(canaries, min(FEWEST, canaries)), key=merit)


@lru_cache(maxsize=512)
def refuting_guesses(plan: OneRunPlan, claim: DPSGD | float) -> int:
    """Return the number of guesses that is most likely to refute a claim if training uses a quarter of the noise.

    If no number of guesses can refute the claim, return the number of the plan.
    """
    loud = replace(plan, signal=_LOUD * plan.signal)
    chances = {
        guesses: replace(loud, guesses=guesses).chance_to_refute(claim)
        for guesses in numbers_up_to(plan.canaries, min(FEWEST, plan.canaries))
    }
    best = max(chances, key=lambda guesses: chances[guesses])
    return best if chances[best] > 0.0 else plan.guesses


def best_plan(run: DPSGD, most: int, method: str = "one-run-fdp", *options: float) -> OneRunPlan:
    """Return the plan with the fewest canaries whose median bound is at least 95% of the bound with ``most`` canaries.

    Fewer canaries are better, because every included canary makes the model worse. ``options`` as in ``best_guesses``.
    """

    def plan(canaries: int) -> OneRunPlan:
        return OneRunPlan(run, canaries, best_guesses(run, canaries, method, *options), *options)

    quick = method if METHODS[method].is_assumption_free else "one-run-fdp"
    counts = numbers_up_to(most, min(FEWEST, most))
    enough = plan(most).median(quick) * _NEARLY
    if enough == 0.0:
        return plan(most)
    fewest = first_integer(lambda index: plan(counts[index]).median(quick) >= enough, -1, len(counts) - 1)
    return plan(counts[fewest])


def numbers_up_to(most: int, fewest: int) -> list[int]:
    """Return whole numbers between ``fewest`` and ``most``. Each is about a fifth larger than the one before."""
    numbers = [fewest]
    while numbers[-1] < most:
        numbers.append(min(math.ceil(numbers[-1] * _RATIO), most))
    return numbers


@lru_cache(maxsize=64)
def _below(run: DPSGD, signal: float, spread: float) -> tuple[FloatArray, FloatArray]:
    law = law_of(run)
    scale = signal / law.noise
    reach = scale * (law.mean + _FURTHEST * math.sqrt(law.variance))
    scores = np.linspace(-_FURTHEST * spread, max(reach, 0.0) + _FURTHEST * spread, _POINTS)
    inside = np.maximum.accumulate(score_below(run, scores, LinearScores(signal, spread)))
    return inside, ndtr(scores / spread)
