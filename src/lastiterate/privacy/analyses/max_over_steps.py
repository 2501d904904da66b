"""The maximum of the heuristic over all stopping times of a run.

The heuristic is not monotone in the number of steps. The maximum is found by branch and bound. An interval of stopping
times is discarded if its bound is below the best value found. Other intervals are halved. A few hundred evaluations
find the maximum over 1e5 steps.

The steps of a shorter run usually have, up to a common factor, the weights of some steps of the longer run. Then one
bound holds for all stopping times a <= t <= b: the signal S of the run stopped at b under the noise of the run stopped
at a. More signal, or less noise, is never harder to detect.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from lastiterate.common.types import FloatArray, Floats
from lastiterate.common.validation import PerStep, cut
from lastiterate.privacy.curve import Pair, PrivacyCurve
from lastiterate.privacy.mixtures import mixture
from lastiterate.privacy.mixtures.correlated_noise import filtered_noise
from lastiterate.privacy.mixtures.kernels import BinomialKernel
from lastiterate.privacy.mixtures.law import NOTHING, Law, law_of
from lastiterate.privacy.mixtures.mixture import Kernel
from lastiterate.privacy.mixtures.pairs import each_row, highest_epsilon, lowest_epsilon, pair_of
from lastiterate.privacy.mixtures.solve import each
from lastiterate.run import DPSGD
from lastiterate.supported_runs import LINEAR, RELEASES, REPLACEMENT, Support, require_supported


@dataclass(frozen=True)
class Prefixes:
    """The law ``law(t)`` of a run stopped at step t. ``bound(a, b)``, if not None, dominates it for all a <= t <= b."""

    steps: int
    law: Callable[[int], Law]
    bound: Callable[[int, int], Law] | None


def prefixes_of(run: DPSGD) -> Prefixes:
    """Return the laws of a run that is stopped early, with the weights of the shorter run."""
    weights = _nested_weights(run)
    if run.noise_filter is not None and (isinstance(weights, np.ndarray) or np.ndim(run.noise_multiplier)):
        weights = None  # a longer run may have less noise
    schedule = run.weights if run.optimizer is None else run.optimizer.learning_rate
    # The first step with a nonzero weight. A warm-up may begin with learning rate 0.
    first = 1 if schedule is None else 1 + int(np.argmax(np.asarray(schedule) != 0.0))
    if weights is None:
        return Prefixes(run.steps, lambda t: law_of(run.prefix(t)) if t >= first else NOTHING, None)
    energy = _energy(weights, run)

    def bound(first: int, last: int) -> Law:
        shape = run.replace(
            steps=last,
            sample_rate=cut(run.sample_rate, last),
            noise_multiplier=cut(run.noise_multiplier, last),
            optimizer=None,
            weights=cut(weights, last),
        )
        law = law_of(shape)
        return replace(law, noise=law.noise * math.sqrt(energy(first) / energy(last)))

    def law(steps: int) -> Law:
        if steps < first:
            return NOTHING
        return law_of(run) if steps == run.steps else bound(steps, steps)

    return Prefixes(run.steps, law, bound if first == 1 else None)


def _energy(weights: PerStep, run: DPSGD) -> Callable[[int], float]:  # variance of the noise in a prefix
    if run.noise_filter is not None:  # with equal weights the variance grows with every step
        return lambda t: filtered_noise(run.prefix(t), 1.0) ** 2
    spread = np.asarray(weights) * np.asarray(run.noise_multiplier)
    if spread.ndim == 0:
        return lambda t: t * float(spread) ** 2
    total = np.cumsum(spread**2)
    return lambda t: float(total[t - 1])


def _nested_weights(run: DPSGD) -> PerStep | None:
    """Return weights whose first t are, up to order and a factor, those of the run stopped at t, or None."""
    optimizer = run.optimizer
    if optimizer is None or optimizer.is_memoryless:
        weights = run.effective_weights()
        return weights if np.min(weights) >= 0.0 else None
    if optimizer.is_adaptive:  # Adam's bias correction depends on the number of the step
        return None
    steady = all(np.ndim(value) == 0 for value in (run.sample_rate, run.noise_multiplier, optimizer.learning_rate))
    if steady and run.batches_per_epoch is None and (optimizer.dampening == 0.0 or optimizer.momentum == 0.0):
        # The weight of a step then depends only on the number of steps after it.
        ago: Floats = np.asarray(optimizer.weights(run.steps))[::-1]
        return ago if ago.min() >= 0.0 else None
    if optimizer.momentum == 0.0 and optimizer.averaging is None:
        # Decay shrinks all earlier steps by the same factor, which is undone here.
        rates = np.broadcast_to(optimizer.learning_rate, (run.steps,))
        kept = 1.0 - optimizer.weight_decay * rates
        log_growth = -np.cumsum(np.log(np.maximum(kept, 1e-300)))
        if kept.min() > 0.0 and log_growth[-1] < 600.0:
            return np.asarray(rates * np.exp(log_growth))
    return None


# Maximum: branch and bound over the stopping times.

_LEVELS = 500
_TOLERANCE = 1e-11  # of max(1, value): an interval that can gain at most this much is discarded

OfPair = Callable[[Pair, Floats], Floats]
OfKernel = Callable[[Kernel, Floats], Floats]


SUPPORT = Support(
    "max_over_steps",
    LINEAR - {REPLACEMENT},
    {RELEASES: "it assumes that a single iterate is released; use lastiterate.last_iterate"},
)


def max_over_steps(run: DPSGD) -> PrivacyCurve:
    """The largest epsilon that the last-iterate heuristic gives for the run stopped at any t <= T.

    The paper compares its counterexamples with this epsilon (Section 4). Like the heuristic it is a prediction, not a
    guarantee.
    """
    require_supported(run, SUPPORT)
    return PrivacyCurve(MaxOverSteps(prefixes_of(run)), "max_over_steps", is_guarantee=False)


@dataclass(frozen=True)
class MaxOverSteps:
    """The largest epsilon and delta, and the smallest false negative rate, of all runs stopped early."""

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

    def mu(self, smallest_error: float) -> float:
        return float(
            self._each(mixture.mu, lambda pair, value: np.float64(pair.mu(float(value))), np.float64(smallest_error))
        )

    def mu_bracket(self, smallest_error: float) -> tuple[float, float]:
        def end(which: int) -> float:
            def of_pair(pair: Pair, value: Floats) -> Floats:
                return np.float64(pair.mu_bracket(float(value))[which])

            return float(self._each(mixture.mu, of_pair, np.float64(smallest_error)))

        lower, upper = end(0), end(1)
        error = (mixture.RELATIVE_ERROR + _TOLERANCE) * max(1.0, upper)
        return max(lower - error, 0.0), upper + error

    def _each(self, of_kernel: OfKernel, of_pair: OfPair, argument: Floats) -> Floats:
        whole = pair_of(self.prefixes.law(self.prefixes.steps))

        def largest(value: float) -> float:
            earlier = _largest(self.prefixes, lambda laws: _evaluate(laws, of_kernel, of_pair, np.float64(value)))
            return max(earlier, float(of_pair(whole, np.float64(value))))  # at least the value of the whole run

        return each(largest, argument)


def _largest(prefixes: Prefixes, evaluate: Callable[[list[Law]], FloatArray]) -> float:
    if prefixes.bound is None:
        return max(float(evaluate([prefixes.law(t)])[0]) for t in range(1, prefixes.steps + 1))
    ends = np.unique(np.floor(np.geomspace(1, prefixes.steps, 2 + prefixes.steps.bit_length())).astype(np.int64))
    best = float(np.max(evaluate([prefixes.law(int(t)) for t in ends])))
    stretches = [(a + 1, b - 1) for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True) if b > a + 1]
    while stretches:
        alive = stretches
        for coarse in (True, False):
            laws = [prefixes.bound(a, b) for a, b in alive]
            if coarse:  # looser bounds that are quicker to evaluate if there are many distinct weights
                few = (law.blocks or law.weights.size <= 2 * _LEVELS for law in laws)
                laws = [law if ok else law.rounded_up(_LEVELS) for law, ok in zip(laws, few, strict=True)]
            enough = best + _TOLERANCE * max(1.0, abs(best))
            alive = [s for s, bound in zip(alive, evaluate(laws), strict=True) if bound > enough]
        middles = [(a + b) // 2 for a, b in alive]
        if middles:
            best = max(best, float(np.max(evaluate([prefixes.law(t) for t in middles]))))
        halves = [(a, t - 1) for (a, _), t in zip(alive, middles, strict=True)]
        halves += [(t + 1, b) for (_, b), t in zip(alive, middles, strict=True)]
        stretches = [(a, b) for a, b in halves if a <= b]
    return best


def _evaluate(laws: list[Law], of_kernel: OfKernel, of_pair: OfPair, argument: np.float64) -> FloatArray:
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
