"""Weights of both signs, as heavy momentum with L2 decay gives them: the best test has two thresholds.

The privacy loss f(y) = log E exp((2 S y - S^2) / (2 noise^2)) is still convex, and negative at 0. So {f >= epsilon} is a
pair of half-lines, one on each side, each of which is an upper tail of S + N or of -S + N; {f <= -epsilon} is an
interval between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import log_ndtr, ndtr

from lastiterate.privacy.kernels import kernel_of
from lastiterate.privacy.law import Law
from lastiterate.privacy.mixture import Kernel, Local
from lastiterate.privacy.rows import Side
from lastiterate.privacy.solve import invert, solve
from lastiterate.values import Array

RELATIVE_ERROR = 1e-9
_FURTHEST = 38.5
_ONE, _ZERO = np.float64(1.0), np.float64(0.0)


@dataclass(frozen=True)
class TwoSidedPair:
    """S + N against N where S takes values of both signs."""

    law: Law

    def epsilon(self, log_delta: Array) -> Array:
        return _each(self._epsilon, log_delta)

    def log_delta(self, epsilon: Array) -> Array:
        return _each(lambda value: max(self._remove(value).log_delta, self._add(value).log_delta), epsilon)

    def fnr(self, fpr: Array) -> Array:
        return _each(self._fnr, fpr)

    def bracket(self, log_delta: Array) -> tuple[Array, Array]:
        value = self.epsilon(log_delta)
        error = RELATIVE_ERROR * np.maximum(1.0, value)
        return value - error, value + error

    @cached_property
    def _sides(self) -> tuple[Kernel, Kernel]:
        return kernel_of(self.law.flipped()), kernel_of(self.law)

    @cached_property
    def _lowest(self) -> tuple[Array, Array]:
        """Where f is smallest, and that value."""
        right = self._sides[1]

        def slope(y: Array) -> tuple[Array, Array]:
            return right.near(y, upper=True).loss(y)[1], np.float64(np.nan)

        low, high = np.float64(self.law.low), np.float64(self.law.high)
        y = invert(slope, _ZERO, _ZERO, low, high)
        return y, right.near(y, upper=True).loss(y)[0]

    def _epsilon(self, log_delta: Array) -> Array:
        found = _ZERO
        for side in (self._remove, self._add):
            if side(found).log_delta > log_delta:
                high = _ONE
                while side(high).log_delta > log_delta and high < 1e300:
                    high = 2.0 * high
                found, _ = solve(side, log_delta, 0.5 * (found + high), found, high)
        return found

    def _remove(self, epsilon: Array) -> Side:
        """P over Q along epsilon itself."""
        thresholds = self._thresholds(epsilon)
        parts = [local.remove(y).log_delta for y, local in thresholds]
        log_q = np.logaddexp(*(log_ndtr(-y / self.law.noise) for y, _ in thresholds))
        log_delta = np.logaddexp(*parts)
        return Side(epsilon, _ONE, log_delta, -np.exp(epsilon + log_q - log_delta))

    def _add(self, epsilon: Array) -> Side:
        """Q over P along epsilon: the interval where f <= -epsilon."""
        if self._lowest[1] >= -epsilon:
            return Side(epsilon, _ONE, np.float64(-np.inf), -_ONE)
        in_p, in_q = self._between(-epsilon)
        delta = in_q - np.exp(epsilon) * in_p
        return Side(epsilon, _ONE, np.log(delta), -np.exp(epsilon) * in_p / delta)

    def _between(self, loss: Array) -> tuple[Array, Array]:
        """P and Q of the interval {f <= loss}."""
        (left, from_left), (right, from_right) = self._thresholds(loss)
        in_q = ndtr(right / self.law.noise) - ndtr(-left / self.law.noise)
        in_p = np.exp(from_right.log_lower(right)) - np.exp(from_left.log_upper(left))
        return in_p, in_q

    def _thresholds(self, loss: Array) -> list[tuple[Array, Local]]:
        """Where f = loss on the left, counted leftwards, and on the right; each with the pair near it."""
        bottom = self._lowest[0]
        result = []
        for kernel, low in zip(self._sides, (-bottom, bottom), strict=True):

            def local_loss(y: Array, kernel: Kernel = kernel) -> tuple[Array, Array]:
                return kernel.near(y, upper=True).loss(y)

            reach = kernel.noise
            while local_loss(low + reach)[0] < loss:
                reach = 2.0 * reach
            y = invert(local_loss, loss, low + 0.5 * reach, low, low + reach)
            result.append((y, kernel.near(y, upper=True)))
        return result

    def _fnr(self, fpr: Array) -> Array:
        lowest = self._lowest[1]

        def accepted(loss: Array) -> tuple[Array, Array]:
            return np.log(self._between(loss)[1]) - np.log1p(-fpr), np.float64(np.nan)

        high = _ONE
        while accepted(lowest + high)[0] < 0.0:
            high = 2.0 * high
        loss = invert(accepted, _ZERO, lowest + 0.5 * high, lowest, lowest + high)
        return self._between(loss)[0]


def _each(function: object, values: Array) -> Array:
    return np.vectorize(function, otypes=[np.float64])(values)[()]
