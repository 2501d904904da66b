"""S + N against -S + N: one example is replaced by another, whose gradients point the other way.

S is not negative. With l(y) the loss of S + N against N, the loss is f(y) = l(y) - l(-y), which increases along y. P
and Q are mirror images, so that both directions are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtri_exp

from lastiterate.privacy.mixtures.kernels import kernel_of
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.mixture import Kernel, Moving, log_delta_at
from lastiterate.privacy.mixtures.pairs import RELATIVE_ERROR, larger_delta, pair_of, smaller_delta
from lastiterate.privacy.mixtures.reliable import ReliablePair
from lastiterate.privacy.mixtures.rows import Side
from lastiterate.privacy.mixtures.solve import a_little_less, invert, solve

if TYPE_CHECKING:
    from lastiterate.arrays import Floats
    from lastiterate.privacy.curve import Pair

_HALF_LOG_TAU = 0.5 * np.log(2.0 * np.pi)
TOO_LITTLE_NOISE = (
    "noise_multiplier must be larger with neighbours 'replace' and many different weights: with so little noise "
    "neither kernel is accurate"
)
_ZERO = np.float64(0.0)


def replaced_pair_of(law: Law) -> Pair:
    """S + N against -S + N, for any law of S of one sign."""
    low, high = law.low, law.high
    if low == high:
        return pair_of(law.scaled(2.0, law.noise))
    if low < 0.0 < high:
        raise ValueError(
            "weights must not have both signs with neighbours 'replace': then no threshold tells best which of two "
            "examples was there"
        )
    return ReplacedPair(law.flipped() if low < 0.0 else law)


@dataclass(frozen=True)
class ReplacedPair(ReliablePair):
    """S >= 0, and not constant."""

    law: Law

    too_little_noise = TOO_LITTLE_NOISE

    def bracket(self, log_delta: Floats) -> tuple[Floats, Floats]:
        lower, upper = self.epsilon(larger_delta(log_delta)), self.epsilon(smaller_delta(log_delta))
        error = RELATIVE_ERROR * np.maximum(1.0, upper)
        return lower - error, upper + error

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
        side, high = self._sides(), np.float64(self.law.noise)
        while side(high).loss < epsilon:
            high = 2.0 * high

        def loss(y: Floats) -> tuple[Floats, Floats]:
            now = side(y)
            return now.loss, now.loss_slope

        now = side(invert(loss, epsilon, 0.5 * high, _ZERO, high))
        return log_delta_at(now, now.loss, epsilon)

    def _fnr(self, fpr: Floats) -> Floats:
        """The test says "in" above y, where -S + N is with probability ``fpr``: where S + N is below -y."""
        noise = self.law.noise
        below, above = Moving(self._kernel, upper=False), Moving(self._kernel, upper=False)

        def log_lower(y: Floats) -> tuple[Floats, Floats]:
            local = below.at(y)
            log_mass = local.log_lower(y)
            log_density = local.loss(y)[0] - 0.5 * (y / noise) ** 2 - np.log(noise) - _HALF_LOG_TAU
            return log_mass, np.exp(log_density - log_mass)

        goal = np.log(fpr)
        low, high = np.float64(-40.0 * noise), np.float64(self.law.high + 40.0 * noise)
        y = -invert(log_lower, goal, np.float64(self.law.mean + noise * float(ndtri_exp(goal))), low, high)
        return np.exp(above.at(y).log_lower(y))

    def _sides(self) -> Callable[[Floats], Side]:
        """P over Q along y >= 0: the set {>= y}, which -S + N is in as often as S + N is below -y."""
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
