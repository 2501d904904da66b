"""The pair S + N against N for weights of both signs, such as those of heavy momentum with L2 decay.

The best test has two thresholds. The privacy loss f(y) = log E exp((2 S y - S^2) / (2 noise^2)) is still convex, and
negative at 0. So {f >= epsilon} is a pair of half-lines, one on each side. Each half-line is an upper tail of S + N or
of -S + N. {f <= -epsilon} is an interval between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import log_ndtr

from lastiterate.privacy.mixtures.kernels import signed_kernel_of
from lastiterate.privacy.mixtures.mixture import Local, Moving, ReliablePair, log_delta_at
from lastiterate.privacy.mixtures.solve import Side, a_little_less, invert, solve
from lastiterate.privacy.mixtures.support import log_interval

if TYPE_CHECKING:
    from lastiterate.common.types import Floats
    from lastiterate.privacy.mixtures.kernels import FiniteKernel, FourierKernel
    from lastiterate.privacy.mixtures.law import Law

RELATIVE_ERROR = 1e-9
_RELATIVE_ERROR_OF_DELTA = 1e-11
_HALF_LOG_TAU = float(0.5 * np.log(2.0 * np.pi))
_ONE, _ZERO = np.float64(1.0), np.float64(0.0)


@dataclass(frozen=True)
class TwoSidedPair(ReliablePair):
    """S + N against N where S takes values of both signs."""

    law: Law

    too_little_noise = (
        "noise_multiplier must be larger where weights have both signs and there are many: with so little noise "
        "neither kernel is accurate"
    )

    def bracket(self, log_delta: Floats) -> tuple[Floats, Floats]:
        lower = self.epsilon(np.minimum(log_delta + _RELATIVE_ERROR_OF_DELTA, -1e-300))
        upper = self.epsilon(log_delta - _RELATIVE_ERROR_OF_DELTA)
        error = RELATIVE_ERROR * np.maximum(1.0, upper)
        return lower - error, upper + error

    @cached_property
    def _sides(self) -> tuple[Moving, Moving]:
        """-S + N and S + N, along moving thresholds. Successive thresholds are close to each other."""
        return Moving(signed_kernel_of(self.law.flipped()), upper=True), Moving(self._kernel, upper=True)

    @cached_property
    def _kernel(self) -> FiniteKernel | FourierKernel:
        return signed_kernel_of(self.law)

    @cached_property
    def _lowest(self) -> tuple[Floats, Floats]:
        """The y at which f is smallest, and that value. The y may be far from all values of S if one sign is rare."""
        right = self._sides[1]

        def slope(y: Floats) -> tuple[Floats, Floats]:
            return right.at(y).loss(y)[1], np.float64(np.nan)

        low, high = -right.kernel.noise, right.kernel.noise
        while slope(low)[0] > 0.0:
            low = 2.0 * low
        while slope(high)[0] < 0.0:
            high = 2.0 * high
        y = invert(slope, _ZERO, _ZERO, low, high)
        return y, right.at(y).loss(y)[0]

    def _epsilon(self, log_delta: Floats) -> Floats:
        enough = a_little_less(log_delta)
        found: Floats = _ZERO
        if self._remove(found).log_delta > enough:
            high: Floats = _ONE
            while self._remove(high).log_delta > enough and high < 1e300:
                high = 2.0 * high
            found, _ = solve(self._remove, log_delta, 0.5 * high, found, high)
        most = -self._lowest[1]  # for a larger epsilon Q is nowhere e^epsilon times P
        if self._bound_add(found) <= enough or self._add(found).log_delta <= enough:
            return found
        return np.maximum(solve(self._add, log_delta, 0.5 * (found + most), found, most)[0], found)

    def _log_delta(self, epsilon: Floats) -> Floats:
        remove = self._remove(epsilon).log_delta
        if epsilon == 0.0 or self._bound_add(epsilon) <= remove:  # at 0 both directions are the same
            return remove
        return max(remove, self._add(epsilon).log_delta)

    def _remove(self, epsilon: Floats) -> Side:
        """Return P over Q along epsilon itself."""
        thresholds = self._thresholds(epsilon)
        left, right = (_log_excess(y, local, epsilon) for y, local in thresholds)
        log_delta = np.logaddexp(left, right)
        log_q = self._log_outside(thresholds)
        return Side(epsilon, _ONE, log_delta, -np.exp(epsilon + log_q - log_delta))

    def _add(self, epsilon: Floats) -> Side:
        """Return Q over P along epsilon: the interval where f <= -epsilon, if there is one.

        If P is nearly e^-epsilon Q in the whole interval, rounding decides their difference. A little of P is left out
        to stay on the safe side.
        """
        log_q = self._log_inside(epsilon)
        if log_q == -np.inf:
            return Side(epsilon, _ONE, log_q, -_ONE)
        left, right = (y for y, _ in self._thresholds(-epsilon))
        share = np.exp(np.minimum(epsilon + self._kernel.log_between(-left, right) - log_q, 0.0))
        share *= 1.0 - self._kernel.relative_error - 1e-15 * epsilon
        return Side(epsilon, _ONE, log_q + np.log1p(-share), -share / (1.0 - share))

    def _bound_add(self, epsilon: Floats) -> Floats:
        """Return an upper bound on log delta of Q over P, with f at its minimum wherever f is below -epsilon."""
        log_q = self._log_inside(epsilon)
        return log_q if log_q == -np.inf else log_q + np.log(-np.expm1(epsilon + self._lowest[1]))

    def _log_inside(self, epsilon: Floats) -> Floats:
        """Return log Q of the interval where f <= -epsilon; -inf if f does not fall so low."""
        if -epsilon <= self._lowest[1]:
            return np.float64(-np.inf)
        left, right = (y for y, _ in self._thresholds(-epsilon))
        return log_interval(0.5 * (right - left) / self.law.noise, 0.5 * (right + left) / self.law.noise)

    def _log_outside(self, thresholds: list[tuple[Floats, Local]]) -> Floats:
        """Return log Q of the two half-lines beyond the thresholds."""
        left, right = (log_ndtr(-y / self.law.noise) for y, _ in thresholds)
        either: Floats = np.logaddexp(left, right)
        return either

    def _thresholds(self, loss: Floats) -> list[tuple[Floats, Local]]:
        """Return where f = loss on the left, counted leftwards, and on the right, each with the pair near it."""
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
        is P(f <= l) + e^l (Q(f > l) - fpr). At that l the second term is 0. At any other l the result is at most the
        rate sought, so an inaccurate l errs to the safe side. If f is so flat that Q(f > l) jumps over fpr, the result
        is the rate of the randomised test.
        """
        lowest, goal, noise = self._lowest[1], np.log(fpr), self.law.noise

        def rarity(loss: Floats) -> tuple[Floats, Floats]:
            thresholds = self._thresholds(loss)
            log_outside = self._log_outside(thresholds)
            log_densities = [-0.5 * (y / noise) ** 2 - np.log(local.loss(y)[1] * noise) for y, local in thresholds]
            return -log_outside, np.exp(np.logaddexp(*log_densities) - _HALF_LOG_TAU - log_outside)

        high = _ONE
        while rarity(lowest + high)[0] < -goal:
            high = 2.0 * high
        loss = invert(rarity, -goal, lowest + 0.5 * high, lowest, lowest + high)
        thresholds = self._thresholds(loss)
        log_outside = self._log_outside(thresholds)
        return _between(thresholds) + np.exp(loss + log_outside) - np.exp(loss + goal)


def _between(thresholds: list[tuple[Floats, Local]]) -> Floats:
    """Return P of the interval between two thresholds, as a difference of the smaller tails."""
    (left, from_left), (right, from_right) = thresholds
    below, above = from_right.log_lower(right), from_left.log_lower(left)
    if below < above:
        return np.exp(below) - np.exp(from_left.log_upper(left))
    return np.exp(above) - np.exp(from_right.log_upper(right))


def _log_excess(y: Floats, local: Local, epsilon: Floats) -> Floats:
    """Return log(P(>= y) - e^epsilon Q(>= y)) for f(y) = epsilon.

    The result is an upper bound if P and Q are too small to distinguish.
    """
    log_delta = log_delta_at(local.remove(y), local.loss(y)[0], epsilon)
    return local.log_upper(y) if np.isnan(log_delta) else log_delta
