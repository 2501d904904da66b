"""Power of an audit of one run: plans for the numbers of canaries and guesses, before training.

Scores are assumed to follow the linear analysis (`score_signal`), independently for each canary. The cuts are assumed
to lie where they are expected. The number of right guesses is then taken to be binomial, with the average rate of the
two ends, which is slightly wider than its true distribution. A wrong plan makes bounds weak, but not invalid.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import bdtrc, bdtrik, ndtr

from lastiterate.auditing.evidence.one_run.allowed_guesses import LeastWrong, lines_of, nodes_of, slack
from lastiterate.auditing.evidence.one_run.guesses import FEWEST, OneRunBound, bound_by_counts, p_value
from lastiterate.auditing.evidence.score_signal import guarantee_of, score_below
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import integer, number
from lastiterate.privacy.mixtures.law import law_of
from lastiterate.registry import METHODS
from lastiterate.run import DPSGD

_RATIO = 1.2  # of neighbouring numbers of guesses, or of canaries, that are tried
_POINTS = 4001  # of the distributions of scores
_FURTHEST = 9.0  # standard deviations to either side
_TIE = 1e-6  # epsilon added for each standard deviation by which guesses are better than coins, to break ties
_LOUD = 4.0  # times the signal: that of a training with a quarter of the noise
_NEARLY = 0.95  # of the bound with most canaries: the fewest canaries that reach this share are chosen


@dataclass(frozen=True)
class OneRunPlan:
    """The plan of an audit of one run.

    Attributes:
        run: the run that is trained.
        canaries: number of canaries, each included by a fair coin.
        guesses: number of guesses, half from each end of the scores.
        delta: of (epsilon, delta)-DP.
        confidence: of the bound.
        signal: the share of the canary that the attack sees, as in `score_signal`.
        spread: the standard deviation of scores without the canary, in units of the noise's.
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
        right = int(np.clip(np.ceil(bdtrik(1.0 - chance, self.guesses, self.accuracy)), 0, self.guesses))
        return self._bound(method, right).epsilon

    def largest(self, method: str) -> float:
        """Return the bound if no guess is wrong."""
        return self._bound(method, self.guesses).epsilon

    def _bound(self, method: str, right: int) -> OneRunBound:
        return bound_by_counts(method, self.canaries, self.guesses, right, self.delta, 1.0 - self.confidence, self.run)

    def chance_to_refute(self, claim: DPSGD | float, method: str | None = None) -> float:
        """Return the probability that the audit refutes a claim: a run with its noise, or an epsilon.

        ``method`` None: a run is tested by the curve of its guarantee, and an epsilon without assumptions.
        """
        if (right := self.right_to_refute(claim, method)) is None:
            return 0.0
        return float(bdtrc(right - 1, self.guesses, self.accuracy))

    def right_to_refute(self, claim: DPSGD | float, method: str | None = None) -> int | None:
        """Return the number of right guesses that refutes a claim; None if even all guesses do not."""
        refuted = self._refuted(claim, method)
        if not refuted(self.guesses):
            return None
        low, high = 0, self.guesses
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if refuted(middle) else (middle, high)
        return high

    def _refuted(self, claim: DPSGD | float, method: str | None) -> Callable[[int], bool]:
        error = 1.0 - self.confidence
        if not isinstance(claim, DPSGD):
            epsilon = number("claim", claim, 0.0)
            if method not in (None, "one-run"):
                raise ValueError(f"method must be 'one-run' for a claim that is an epsilon, got {method!r}")
            return lambda right: p_value(self.canaries, self.guesses, right, epsilon, self.delta) < error
        allowed = allowed_by(claim, method)
        return lambda right: slack(allowed, self.canaries, self.guesses, right, error) < 0.0


@lru_cache(maxsize=64)
def allowed_by(run: DPSGD, method: str | None = None) -> LeastWrong:
    """Return the bound on wrong guesses by the curve of a run's guarantee, or of the family of a one-run method."""
    analysis = guarantee_of(run)
    if method is not None:
        family = METHODS[method].family if method in METHODS else None
        if family is None:
            raise ValueError(f"method must be one of a run's families, or None for its guarantee, got {method!r}")
        analysis = family.curve
    curve = analysis(run)
    return lines_of(curve, nodes_of(curve.analysis))


@lru_cache(maxsize=512)
def best_guesses(
    run: DPSGD,
    canaries: int,
    method: str = "one-run-fdp",
    delta: float = 1e-5,
    confidence: float = 0.95,
    signal: float = 1.0,
    spread: float = 1.0,
) -> int:
    """Return the number of guesses with the largest expected median bound.

    Families use the number that is best for Gaussian DP, which is quick to find. If no number of guesses has a positive
    median bound, the number whose right guesses differ most from coin flips, in standard deviations, is chosen.
    """
    method = method if METHODS[method].is_assumption_free else "one-run-fdp"
    first = OneRunPlan(run, canaries, canaries, delta, confidence, signal, spread)

    def merit(guesses: int) -> float:
        plan = replace(first, guesses=guesses)
        return plan.median(method) + _TIE * (2.0 * plan.accuracy - 1.0) * math.sqrt(guesses)

    return max(numbers_up_to(canaries, min(FEWEST, canaries)), key=merit)


@lru_cache(maxsize=512)
def refuting_guesses(plan: OneRunPlan, claim: DPSGD | float) -> int:
    """Return the number of guesses most likely to refute a claim about a training with a quarter of the noise.

    Refuting a claim about a faulty training takes more guesses than the best bound on a correct training. If no number
    of guesses can refute the claim, return the number of the plan.
    """
    loud = replace(plan, signal=_LOUD * plan.signal)
    chances = {
        guesses: replace(loud, guesses=guesses).chance_to_refute(claim)
        for guesses in numbers_up_to(plan.canaries, min(FEWEST, plan.canaries))
    }
    best = max(chances, key=lambda guesses: chances[guesses])
    return best if chances[best] > 0.0 else plan.guesses


def best_plan(
    run: DPSGD,
    most: int,
    method: str = "one-run-fdp",
    delta: float = 1e-5,
    confidence: float = 0.95,
    signal: float = 1.0,
    spread: float = 1.0,
) -> OneRunPlan:
    """Return the plan with the fewest canaries whose median bound is 95% of that with ``most`` canaries.

    Fewer canaries are better, because every included canary makes the model worse. If the bound with ``most`` canaries
    is 0, the plan has ``most`` canaries.
    """

    def plan(canaries: int) -> OneRunPlan:
        guesses = best_guesses(run, canaries, method, delta, confidence, signal, spread)
        return OneRunPlan(run, canaries, guesses, delta, confidence, signal, spread)

    quick = method if METHODS[method].is_assumption_free else "one-run-fdp"
    counts = numbers_up_to(most, min(FEWEST, most))
    enough = plan(most).median(quick) * _NEARLY
    if enough == 0.0:
        return plan(most)
    low, high = -1, len(counts) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if plan(counts[middle]).median(quick) >= enough else (middle, high)
    return plan(counts[high])


def numbers_up_to(most: int, fewest: int) -> list[int]:
    """Return whole numbers from ``fewest`` to ``most``, each about a fifth larger than the one before."""
    numbers = [fewest]
    while numbers[-1] < most:
        numbers.append(min(math.ceil(numbers[-1] * _RATIO), most))
    return numbers


@lru_cache(maxsize=64)
def _below(run: DPSGD, signal: float, spread: float) -> tuple[FloatArray, FloatArray]:
    """Return the distribution functions of scores with and without the canary, at the same scores."""
    law = law_of(run)
    scale = signal / law.noise
    reach = scale * (law.mean + _FURTHEST * math.sqrt(law.variance))
    scores = np.linspace(-_FURTHEST * spread, max(reach, 0.0) + _FURTHEST * spread, _POINTS)
    inside = np.maximum.accumulate(score_below(run, scores, spread=spread, signal=signal))
    return inside, ndtr(scores / spread)
