"""The heuristic is not monotone in the number of steps: its maximum over all earlier stopping times.

Branch and bound: stretches of stopping times whose bound is below the best value found are discarded, the others are
halved. A few hundred evaluations find the maximum over 1e5 steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.arrays import FloatArray, Floats
from lastiterate.privacy.curve import Pair, PrivacyCurve
from lastiterate.privacy.mixtures import mixture
from lastiterate.privacy.mixtures.kernels import BinomialKernel
from lastiterate.privacy.mixtures.mixture import Kernel
from lastiterate.privacy.mixtures.pairs import each_row, highest_epsilon, lowest_epsilon, pair_of
from lastiterate.privacy.mixtures.prefixes import Prefixes, prefixes_of
from lastiterate.privacy.mixtures.rows import each
from lastiterate.run import DPSGD, require_run

if TYPE_CHECKING:
    from lastiterate.privacy.mixtures.law import Law

_LEVELS = 500
_TOLERANCE = 1e-11  # of max(1, value): stretches that could gain no more are discarded too

OfPair = Callable[[Pair, Floats], Floats]
OfKernel = Callable[[Kernel, Floats], Floats]


def max_over_steps(run: DPSGD) -> PrivacyCurve:
    """The largest epsilon that the last-iterate heuristic gives for the run stopped at any t <= T.

    The paper compares its counterexamples with it (Section 4). A prediction like the heuristic itself, not a guarantee.
    """
    if require_run(run).release_count > 1:
        raise ValueError(
            f"releases must be None for max_over_steps, got {run.release_count} of them: it is about one iterate, the "
            "last of the run stopped at any step; lastiterate.last_iterate answers for all that are released"
        )
    if run.neighbours == "replace":
        raise ValueError(
            "neighbours must be 'add-remove' or 'zero-out' for max_over_steps, got 'replace': its search is for the "
            "presence of one example"
        )
    return PrivacyCurve(MaxOverSteps(prefixes_of(run)), "max_over_steps", is_guarantee=False)


@dataclass(frozen=True)
class MaxOverSteps:
    """The pairs of all prefixes: the largest epsilon or delta, the smallest error rate."""

    prefixes: Prefixes

    def epsilon(self, log_delta: Floats) -> Floats:
        return self._each(mixture.epsilon, lambda pair, value: pair.epsilon(value), log_delta)

    def log_delta(self, epsilon: Floats) -> Floats:
        return self._each(mixture.log_delta, lambda pair, value: pair.log_delta(value), epsilon)

    def fnr(self, fpr: Floats) -> Floats:
        def negative(kernel: Kernel, value: Floats) -> Floats:
            return -np.exp(mixture.log_fnr(kernel, value))

        return -self._each(negative, lambda pair, value: -pair.fnr(value), fpr)

    def bracket(self, log_delta: Floats) -> tuple[Floats, Floats]:
        lower = self._each(lowest_epsilon, lambda pair, value: pair.bracket(value)[0], log_delta)
        upper = self._each(highest_epsilon, lambda pair, value: pair.bracket(value)[1], log_delta)
        return lower, upper + _TOLERANCE * np.maximum(1.0, upper)

    def _each(self, of_kernel: OfKernel, of_pair: OfPair, argument: Floats) -> Floats:
        whole = pair_of(self.prefixes.law(self.prefixes.steps))

        def largest(value: float) -> float:
            earlier = _largest(self.prefixes, lambda laws: _evaluate(laws, of_kernel, of_pair, np.float64(value)))
            return max(earlier, float(of_pair(whole, np.float64(value))))  # not even a digit less than the run itself

        return each(largest, argument)


def _largest(prefixes: Prefixes, evaluate: Callable[[list[Law]], FloatArray]) -> float:
    """The largest value of any prefix."""
    if prefixes.bound is None:
        return max(float(evaluate([prefixes.law(t)])[0]) for t in range(1, prefixes.steps + 1))
    ends = np.unique(np.floor(np.geomspace(1, prefixes.steps, 2 + prefixes.steps.bit_length())).astype(np.int64))
    best = float(np.max(evaluate([prefixes.law(int(t)) for t in ends])))
    stretches = [(a + 1, b - 1) for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True) if b > a + 1]
    while stretches:
        alive = stretches
        for coarse in (True, False):
            laws = [_coarser(prefixes.bound(a, b)) if coarse else prefixes.bound(a, b) for a, b in alive]
            enough = best + _TOLERANCE * max(1.0, abs(best))
            alive = [s for s, bound in zip(alive, evaluate(laws), strict=True) if bound > enough]
        middles = [(a + b) // 2 for a, b in alive]
        if middles:
            best = max(best, float(np.max(evaluate([prefixes.law(t) for t in middles]))))
        halves = [(a, t - 1) for (a, _), t in zip(alive, middles, strict=True)]
        halves += [(t + 1, b) for (_, b), t in zip(alive, middles, strict=True)]
        stretches = [(a, b) for a, b in halves if a <= b]
    return best


def _coarser(law: Law) -> Law:
    """A looser bound that is quicker to evaluate where there are many distinct weights."""
    return law if law.blocks or law.weights.size <= 2 * _LEVELS else law.rounded_up(_LEVELS)


def _evaluate(laws: list[Law], of_kernel: OfKernel, of_pair: OfPair, argument: np.float64) -> FloatArray:
    """A function of many laws: all binomials at once, the others one by one."""
    result = np.empty(len(laws))
    binomials = [index for index, law in enumerate(laws) if law.is_binomial and law.weights[0] > 0.0]
    if binomials:
        rows = np.array(
            [(law.counts[0], law.rates[0], law.noise / law.weights[0]) for law in map(laws.__getitem__, binomials)]
        )
        result[binomials] = each_row(of_kernel, BinomialKernel(*rows.T.copy()), np.full(len(binomials), argument))
    for index in sorted(set(range(len(laws))) - set(binomials)):
        result[index] = of_pair(pair_of(laws[index]), argument)
    return result
