"""Pairs of distributions from the law of S: S + N against N, and S + N against -S + N.

The pair depends on whether S takes no, one or both signs. If neither kernel is accurate, rounded laws bound the pair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtri_exp

from lastiterate.common.types import Floats
from lastiterate.privacy.mixtures import mixture
from lastiterate.privacy.mixtures import support as binomial
from lastiterate.privacy.mixtures.fourier import Unreliable
from lastiterate.privacy.mixtures.kernels import BinomialKernel, FiniteKernel, kernel_of
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.mixture import Kernel, Moving, ReliablePair, log_delta_at
from lastiterate.privacy.mixtures.solve import Side, a_little_less, invert, solve
from lastiterate.privacy.mixtures.support import Support
from lastiterate.privacy.mixtures.two_sided import TwoSidedPair

if TYPE_CHECKING:
    from lastiterate.common.types import FloatArray, Floats, IntArray
    from lastiterate.privacy.curve import Pair
    from lastiterate.privacy.mixtures.law import Law


# Rounded laws: bounds if the noise is small against irregular gaps of S. Weights are rounded to a lattice, down and up.
# More signal under the same noise is never harder to detect (Choquette-Choo et al. 2024, Lemma 4.5).

_FINENESS = 1e-3  # spacing of the lattice in units of the noise
_MOST_POINTS = 50_000


def rounded(law: Law) -> tuple[FiniteKernel, FiniteKernel]:
    """Return the kernels of a lower and an upper bound of this law."""
    law = law.from_lowest()
    spacing = max(_FINENESS * law.noise, law.high / _MOST_POINTS)
    return _on_lattice(law, spacing, up=False), _on_lattice(law, spacing, up=True)


def _on_lattice(law: Law, spacing: float, *, up: bool) -> FiniteKernel:
    def steps(values: FloatArray) -> IntArray:
        return (np.ceil(values / spacing) if up else np.floor(values / spacing)).astype(np.int64)

    shift = int(steps(np.asarray(law.constant)))
    weights = steps(law.weights)
    blocks = [(steps(values), probabilities) for values, probabilities in law.blocks]
    size = 1 + int(weights @ law.counts) + sum(int(jumps.max()) for jumps, _ in blocks)
    mass = np.zeros(size)
    mass[0], used = 1.0, 1
    for count, rate, jump in zip(law.counts, law.rates, weights, strict=True):
        for _ in range(int(count)):
            used += int(jump)
            mass[:used] = _convolve(mass[:used], np.array([0, jump]), np.array([1.0 - rate, rate]))
    for jumps, probabilities in blocks:
        used += int(jumps.max())
        mass[:used] = _convolve(mass[:used], jumps, probabilities)
    present = mass > 0.0
    points = spacing * (np.flatnonzero(present) + shift).astype(np.float64)
    support = Support(np.float64(law.noise), points, np.log(mass[present]))
    on_lattice = tuple((jumps.astype(np.float64) * spacing, probabilities) for jumps, probabilities in blocks)
    heights = weights.astype(np.float64) * spacing
    return FiniteKernel(Law(law.noise, shift * spacing, law.counts, law.rates, heights, on_lattice), support)


def _convolve(mass: FloatArray, jumps: IntArray, probabilities: FloatArray) -> FloatArray:
    """Return the law of the sum after one more term.

    All summands are positive, so small masses keep their relative accuracy.
    """
    result = np.zeros_like(mass)
    for jump, probability in zip(jumps, probabilities, strict=True):
        result[jump:] += probability * mass[: mass.size - jump]
    return result


# Pairs of distributions: S + N against N.

RELATIVE_ERROR = 1e-10  # of max(1, epsilon): rounding and terms that the kernels neglect, with room to spare
_RELATIVE_ERROR_OF_DELTA = 1e-11  # the same for delta; it matters if delta is so flat that it hardly determines epsilon
_POINTS_AT_ONCE = 16_000  # small enough for the cache of one core

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
    value = mixture.epsilon(kernel, larger_delta(log_delta))
    return value - RELATIVE_ERROR * np.maximum(1.0, value)


def highest_epsilon(kernel: Kernel, log_delta: Floats) -> Floats:
    """Return an upper bound on the exact epsilon, under the same condition as `lowest_epsilon`."""
    value = mixture.epsilon(kernel, smaller_delta(log_delta))
    return value + RELATIVE_ERROR * np.maximum(1.0, value)


def larger_delta(log_delta: Floats) -> Floats:
    """Raise log_delta by a little more than its numerical error; the result is still below 0."""
    return np.minimum(log_delta + _RELATIVE_ERROR_OF_DELTA, -1e-300)


def smaller_delta(log_delta: Floats) -> Floats:
    """Lower log_delta by a little more than its numerical error."""
    return log_delta - _RELATIVE_ERROR_OF_DELTA


def each_row(function: Function, kernel: BinomialKernel, argument: Floats) -> Floats:
    """Evaluate a function of many binomials.

    Chunks of rows with windows of about one size keep memory bounded.
    """
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
# The loss f(y) = l(y) - l(-y) increases along y; l is the loss of S + N against N. Both directions are the same.

_HALF_LOG_TAU = 0.5 * np.log(2.0 * np.pi)
TOO_LITTLE_NOISE = (
    "noise_multiplier must be larger with neighbours 'replace' and many different weights: with so little noise "
    "neither kernel is accurate"
)
_ZERO = np.float64(0.0)


def replaced_pair_of(law: Law) -> Pair:
    """Return the pair S + N against -S + N, for any law of S of one sign."""
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
    """The pair S + N against -S + N for S >= 0 that is not constant."""

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
        """Return the false negative rate of the test that says "in" above the threshold y.

        -S + N exceeds y with probability ``fpr``, the probability that S + N is below -y.
        """
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
        """Return P over Q along y >= 0: the set {>= y}. -S + N is in the set as often as S + N is below -y."""
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
