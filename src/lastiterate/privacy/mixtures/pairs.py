"""Pairs of distributions from the law of S: S + N against N, and S + N against -S + N.

S may be 0, have one sign, or have both signs. If no kernel is accurate, rounded laws bound the pair.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

from lastiterate.common.errors import BadArgument
from lastiterate.common.search import doubled
from lastiterate.common.types import Floats
from lastiterate.privacy.curve import Pair
from lastiterate.privacy.mixtures import mixture
from lastiterate.privacy.mixtures import support as binomial
from lastiterate.privacy.mixtures.fourier import Unreliable
from lastiterate.privacy.mixtures.kernels import (
    BinomialKernel,
    FiniteKernel,
    FourierKernel,
    kernel_of,
    rounded,
    signed_kernel_of,
)
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.mixture import Kernel, Local, Moving, ReliablePair, log_delta_at
from lastiterate.privacy.mixtures.solve import HALF_LOG_TAU, Side, a_little_less, invert, solve
from lastiterate.privacy.mixtures.support import log_interval

# Pairs of distributions: S + N against N.

_POINTS_AT_ONCE = 16_000  # small enough for the cache of one core
_ZERO, _ONE = np.float64(0.0), np.float64(1.0)

Function = Callable[[Kernel, Floats], Floats]


def pair_of(law: Law) -> Pair:
    """Return the pair S + N against N, for any law of S."""
    low, high = law.low, law.high
    if low == 0.0 and high == 0.0:
        return NothingPair()
    if low >= 0.0:
        return OneSidedPair(law)
    if high <= 0.0:
        return OneSidedPair(law.flipped())
    rounding = min(1e-12 * (high - low), 1e-11 * law.noise)  # of sums that should cancel exactly
    if low >= -rounding:
        return OneSidedPair(law.from_lowest())
    return OneSidedPair(law.flipped().from_lowest()) if high <= rounding else TwoSidedPair(law)


@dataclass(frozen=True)
class NothingPair:
    """P = Q: the canary is never used."""

    def epsilon(self, log_delta: Floats) -> Floats:
        return np.zeros_like(log_delta)

    def log_delta(self, epsilon: Floats) -> Floats:
        return np.full_like(epsilon, -np.inf)

    def fnr(self, fpr: Floats) -> Floats:
        return 1.0 - fpr

    def bracket(self, log_delta: Floats) -> tuple[Floats, Floats]:
        return np.zeros_like(log_delta), np.zeros_like(log_delta)

    def mu(self, smallest_error: float) -> float:
        return 0.0

    def mu_bracket(self, smallest_error: float) -> tuple[float, float]:
        return 0.0, 0.0


@dataclass(frozen=True)
class OneSidedPair:
    """The pair for S >= 0: the best test of P against Q has one threshold."""

    law: Law

    def epsilon(self, log_delta: Floats) -> Floats:
        return self._each(mixture.epsilon, log_delta, low=False)

    def log_delta(self, epsilon: Floats) -> Floats:
        return self._each(mixture.log_delta, epsilon, low=False)

    def fnr(self, fpr: Floats) -> Floats:
        return np.exp(self._each(mixture.log_fnr, fpr, low=False))

    def bracket(self, log_delta: Floats) -> tuple[Floats, Floats]:
        return self._each(lowest_epsilon, log_delta, low=True), self._each(highest_epsilon, log_delta, low=False)

    def mu(self, smallest_error: float) -> float:
        return float(self._each(mixture.mu, np.float64(smallest_error), low=False))

    def mu_bracket(self, smallest_error: float) -> tuple[float, float]:
        lower, upper = (float(self._each(mixture.mu, np.float64(smallest_error), low=low)) for low in (True, False))
        error = mixture.RELATIVE_ERROR * max(1.0, upper)
        return max(lower - error, 0.0), upper + error

    @cached_property
    def _kernel(self) -> Kernel:
        return kernel_of(self.law)

    def _each(self, function: Function, argument: Floats, *, low: bool) -> Floats:
        if isinstance(self._kernel, BinomialKernel):
            return each_row(function, self._kernel, argument)
        if np.ndim(argument) == 0:
            return self._one(function, argument, low)
        values = [self._one(function, np.float64(item), low) for item in np.ravel(argument)]
        return np.reshape(values, np.shape(argument))

    def _one(self, function: Function, argument: Floats, low: bool) -> Floats:
        try:
            return function(self._kernel, argument)
        except Unreliable:
            return function(self._rounded[0 if low else 1], argument)

    @cached_property
    def _rounded(self) -> tuple[Kernel, Kernel]:
        return rounded(self.law)


def lowest_epsilon(kernel: Kernel, log_delta: Floats) -> Floats:
    """Return a lower bound on the exact epsilon, valid if the kernel's numerical errors are within RELATIVE_ERROR."""
    value = mixture.epsilon(kernel, mixture.larger_delta(log_delta))
    return value - mixture.RELATIVE_ERROR * np.maximum(1.0, value)


def highest_epsilon(kernel: Kernel, log_delta: Floats) -> Floats:
    """Return an upper bound on the exact epsilon, under the same condition as `lowest_epsilon`."""
    value = mixture.epsilon(kernel, mixture.smaller_delta(log_delta))
    return value + mixture.RELATIVE_ERROR * np.maximum(1.0, value)


def each_row(function: Function, kernel: BinomialKernel, argument: Floats) -> Floats:
    """Evaluate a function of many binomials. Rows with windows of similar size are grouped, to limit memory."""
    if np.ndim(argument) == 0 and np.ndim(kernel.steps) == 0:
        return function(kernel, argument)
    steps, rate, noise, values = np.broadcast_arrays(kernel.steps, kernel.rate, kernel.noise, argument)
    shape, flat = values.shape, [item.ravel() for item in (steps, rate, noise, values)]
    widths = np.asarray(binomial.width(*flat[:3]))
    order = np.argsort(widths)
    result = np.empty(order.size)
    start = 0
    while start < order.size:
        # Within a chunk the widest row costs at most twice the narrowest, or too little to matter.
        limit = max(2.0 * widths[order[start]], 64.0)
        stop = start + int(np.searchsorted(widths[order[start:]], limit, side="right"))
        stop = max(start + 1, min(stop, start + int(_POINTS_AT_ONCE / limit)))
        rows = order[start:stop]
        picked = [item[rows] for item in flat]
        result[rows] = function(BinomialKernel(*picked[:3]), picked[3])
        start = stop
    return result.reshape(shape)


# Replaced examples: S + N against -S + N, S >= 0. The gradients of the new example point the other way.
# The loss f(y) = l(y) - l(-y) increases along y, where l is the loss of S + N against N. P over Q equals Q over P.

TOO_LITTLE_NOISE = (
    "noise_multiplier must be larger with neighbours 'replace' and many different weights: no method is accurate"
)


def replaced_pair_of(law: Law) -> Pair:
    """Return the pair S + N against -S + N, for an S of one sign."""
    low, high = law.low, law.high
    if low == high:
        return pair_of(law.scaled(2.0, law.noise))
    if low < 0.0 < high:
        raise BadArgument(
            "weights", "must all have one sign with neighbours 'replace': otherwise the best test is unknown"
        )
    return ReplacedPair(law.flipped() if low < 0.0 else law)


@dataclass(frozen=True)
class ReplacedPair(ReliablePair):
    """The pair S + N against -S + N, for an S >= 0 that is not constant."""

    law: Law

    too_little_noise = TOO_LITTLE_NOISE

    @cached_property
    def _kernel(self) -> Kernel:
        return kernel_of(self.law)

    def _epsilon(self, log_delta: Floats) -> Floats:
        side = self._sides()
        if side(_ZERO).log_delta <= a_little_less(log_delta):
            return _ZERO
        top = np.float64(self.law.high - self.law.noise * min(float(ndtri_exp(log_delta)), 0.0))
        start = min(float(self._kernel.start(log_delta)[0]), 0.999 * float(top))
        return np.maximum(solve(side, log_delta, np.float64(start), _ZERO, top)[0], 0.0)

    def _log_delta(self, epsilon: Floats) -> Floats:
        side = self._sides()
        high = doubled(lambda y: side(y).loss < epsilon, np.float64(self.law.noise))
        now = side(invert(lambda y: side(y)[:2], epsilon, 0.5 * high, _ZERO, high))
        return log_delta_at(now, now.loss, epsilon)

    def _fnr(self, fpr: Floats) -> Floats:
        # y is the threshold that -S + N exceeds with probability fpr. So S + N is below -y with the same probability.
        noise = self.law.noise
        below, above = Moving(self._kernel, upper=False), Moving(self._kernel, upper=False)

        def log_lower(y: Floats) -> tuple[Floats, Floats]:
            local = below.at(y)
            log_mass = local.log_lower(y)
            log_density = local.loss(y)[0] - 0.5 * (y / noise) ** 2 - np.log(noise) - HALF_LOG_TAU
            return log_mass, np.exp(log_density - log_mass)

        goal = np.log(fpr)
        low, high = np.float64(-40.0 * noise), np.float64(self.law.high + 40.0 * noise)
        y = -invert(log_lower, goal, np.float64(self.law.mean + noise * float(ndtri_exp(goal))), low, high)
        return np.exp(above.at(y).log_lower(y))

    def _sides(self) -> Callable[[Floats], Side]:
        """Return P over Q for the set {>= y}, y >= 0. By symmetry, Q(>= y) is the probability that S + N <= -y."""
        right, left = Moving(self._kernel, upper=True), Moving(self._kernel, upper=False)

        def side(y: Floats) -> Side:
            here, there = right.at(y), left.at(-y)
            (ahead, slope), (behind, other_slope) = here.loss(y), there.loss(-y)
            loss, rise = ahead - behind, slope + other_slope
            log_p, log_q = here.log_upper(y), loss + there.log_lower(-y)
            share = np.exp(np.minimum(log_q - log_p, 0.0))
            log_delta = log_p + np.log1p(-share) if share < 1.0 else np.float64(-np.inf)
            return Side(loss, rise, log_delta, -rise * np.exp(log_q - log_delta))

        return side


# Weights of both signs, such as those of heavy momentum with L2 decay. The best test has two thresholds: the privacy
# loss f(y) = log E exp((2 S y - S^2) / (2 noise^2)) is still convex, and negative at 0. So {f >= epsilon} is a pair of
# half-lines. Each half-line is an upper tail of S + N or of -S + N. {f <= -epsilon} is an interval between them.


@dataclass(frozen=True)
class TwoSidedPair(ReliablePair):
    """S + N against N where S takes values of both signs."""

    law: Law

    too_little_noise = (
        "noise_multiplier must be larger with many different weights of both signs: no method is accurate"
    )
    relative_error = 1e-9

    @cached_property
    def _sides(self) -> tuple[Moving, Moving]:
        return Moving(signed_kernel_of(self.law.flipped()), upper=True), Moving(self._kernel, upper=True)

    @cached_property
    def _kernel(self) -> FiniteKernel | FourierKernel:
        return signed_kernel_of(self.law)

    @cached_property
    def _lowest(self) -> tuple[Floats, Floats]:
        """The y at which f is smallest, and f(y). This y may be far from all values of S."""
        right = self._sides[1]

        def slope(y: Floats) -> tuple[Floats, Floats]:
            return right.at(y).loss(y)[1], np.float64(np.nan)

        low, high = -right.kernel.noise, right.kernel.noise
        low, high = doubled(lambda y: slope(y)[0] > 0.0, low), doubled(lambda y: slope(y)[0] < 0.0, high)
        y = invert(slope, _ZERO, _ZERO, low, high)
        return y, right.at(y).loss(y)[0]

    def _epsilon(self, log_delta: Floats) -> Floats:
        enough = a_little_less(log_delta)
        found: Floats = _ZERO
        if self._remove(found).log_delta > enough:
            high = doubled(lambda y: (self._remove(y).log_delta > enough) & (y < 1e300), _ONE)
            found, _ = solve(self._remove, log_delta, 0.5 * high, found, high)
        most = -self._lowest[1]  # for a larger epsilon Q is nowhere e^epsilon times P
        if self._bound_add(found) <= enough or self._add(found).log_delta <= enough:
            return found
        return np.maximum(solve(self._add, log_delta, 0.5 * (found + most), found, most)[0], found)

    def _log_delta(self, epsilon: Floats) -> Floats:
        remove = self._remove(epsilon).log_delta
        if epsilon == 0.0 or self._bound_add(epsilon) <= remove:  # at 0 both deltas are the same
            return remove
        return max(remove, self._add(epsilon).log_delta)

    def _remove(self, epsilon: Floats) -> Side:
        thresholds = self._thresholds(epsilon)
        parts: list[Floats] = []
        for y, local in thresholds:  # log(P - e^epsilon Q) beyond y, or log P if they are too small to distinguish
            log_excess = log_delta_at(local.remove(y), local.loss(y)[0], epsilon)
            parts.append(local.log_upper(y) if np.isnan(log_excess) else log_excess)
        log_delta: Floats = np.logaddexp(parts[0], parts[1])
        log_q = self._log_outside(thresholds)
        return Side(epsilon, _ONE, log_delta, -np.exp(epsilon + log_q - log_delta))

    def _add(self, epsilon: Floats) -> Side:
        """Return Q over P, from the interval where f <= -epsilon. A bit of P is left out, so delta is not too small."""
        log_q = self._log_inside(epsilon)
        if log_q == -np.inf:
            return Side(epsilon, _ONE, log_q, -_ONE)
        left, right = (y for y, _ in self._thresholds(-epsilon))
        share = np.exp(np.minimum(epsilon + self._kernel.log_between(-left, right) - log_q, 0.0))
        share *= 1.0 - self._kernel.relative_error - 1e-15 * epsilon
        return Side(epsilon, _ONE, log_q + np.log1p(-share), -share / (1.0 - share))

    def _bound_add(self, epsilon: Floats) -> Floats:
        """Bound log delta of Q over P from above. Replace f by its minimum where f is below -epsilon."""
        log_q = self._log_inside(epsilon)
        return log_q if log_q == -np.inf else log_q + np.log(-np.expm1(epsilon + self._lowest[1]))

    def _log_inside(self, epsilon: Floats) -> Floats:
        """Return log Q of the interval where f <= -epsilon, or -inf if there is none."""
        if -epsilon <= self._lowest[1]:
            return np.float64(-np.inf)
        left, right = (y for y, _ in self._thresholds(-epsilon))
        return log_interval(0.5 * (right - left) / self.law.noise, 0.5 * (right + left) / self.law.noise)

    def _log_outside(self, thresholds: list[tuple[Floats, Local]]) -> Floats:
        either: Floats = np.logaddexp(*(log_ndtr(-y / self.law.noise) for y, _ in thresholds))
        return either

    def _thresholds(self, loss: Floats) -> list[tuple[Floats, Local]]:
        """Return -y for the left y with f(y) = loss, and y for the right one, each with the pair near it."""
        bottom, lowest = self._lowest
        result = []
        for moving, low in zip(self._sides, (-bottom, bottom), strict=True):

            def local_loss(y: Floats, moving: Moving = moving) -> tuple[Floats, Floats]:
                return moving.at(y).loss(y)

            y = low
            if loss > lowest:
                reach = moving.kernel.noise
                while local_loss(low + reach)[0] < loss:
                    reach = 2.0 * reach
                y = invert(local_loss, loss, low + 0.5 * reach, low, low + reach)
            result.append((y, moving.at(y)))
        return result

    def _fnr(self, fpr: Floats) -> Floats:
        """Return the smallest false negative rate of a test whose false positive rate is ``fpr``.

        By the Neyman-Pearson lemma the best test says "in" where f > l, for the l at which Q(f > l) = fpr. The result
        is P(f <= l) + e^l (Q(f > l) - fpr). At any other l the result is not larger, so an inaccurate l gives a
        lower bound. If Q(f > l) jumps over fpr, the result is the rate of the randomised test.
        """
        lowest, goal, noise = self._lowest[1], np.log(fpr), self.law.noise

        def rarity(loss: Floats) -> tuple[Floats, Floats]:
            thresholds = self._thresholds(loss)
            log_outside = self._log_outside(thresholds)
            log_densities = [-0.5 * (y / noise) ** 2 - np.log(local.loss(y)[1] * noise) for y, local in thresholds]
            return -log_outside, np.exp(np.logaddexp(*log_densities) - HALF_LOG_TAU - log_outside)

        high = doubled(lambda reach: rarity(lowest + reach)[0] < -goal, _ONE)
        loss = invert(rarity, -goal, lowest + 0.5 * high, lowest, lowest + high)
        thresholds = self._thresholds(loss)
        log_outside = self._log_outside(thresholds)
        # P of the interval between the thresholds, as a difference of the smaller tails.
        (left, from_left), (right, from_right) = thresholds
        below, above = from_right.log_lower(right), from_left.log_lower(left)
        if below < above:
            between = np.exp(below) - np.exp(from_left.log_upper(left))
        else:
            between = np.exp(above) - np.exp(from_right.log_upper(right))
        return between + np.exp(loss + log_outside) - np.exp(loss + goal)
