"""From the law of S to the pair of distributions S + N and N: none, one or both signs of S occur."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.arrays import Floats
from lastiterate.privacy.mixtures import binomial, mixture
from lastiterate.privacy.mixtures.contour import Unreliable
from lastiterate.privacy.mixtures.kernels import BinomialKernel, kernel_of
from lastiterate.privacy.mixtures.mixture import Kernel
from lastiterate.privacy.mixtures.rounding import rounded
from lastiterate.privacy.mixtures.two_sided import TwoSidedPair

if TYPE_CHECKING:
    from lastiterate.privacy.curve import Pair
    from lastiterate.privacy.mixtures.law import Law

RELATIVE_ERROR = 1e-10  # of max(1, epsilon): rounding and what the kernels neglect, with room to spare
_RELATIVE_ERROR_OF_DELTA = 1e-11  # likewise; it matters where delta is so flat that it hardly determines epsilon
_POINTS_AT_ONCE = 16_000  # small enough for the cache of one core

Function = Callable[[Kernel, Floats], Floats]


def pair_of(law: Law) -> Pair:
    """S + N against N, for any law of S."""
    low, high = law.low, law.high
    if low == 0.0 and high == 0.0:
        return NothingPair()
    if low >= 0.0:
        return OneSidedPair(law)
    if high <= 0.0:
        return OneSidedPair(law.flipped())
    rounding = min(1e-12 * (high - low), 1e-11 * law.noise)  # sums that should cancel do so only nearly
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
    """S >= 0, so that one threshold tells P from Q best."""

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
    """A lower bound on the exact epsilon, if the kernel's numerical errors are as small as they should be."""
    value = mixture.epsilon(kernel, larger_delta(log_delta))
    return value - RELATIVE_ERROR * np.maximum(1.0, value)


def highest_epsilon(kernel: Kernel, log_delta: Floats) -> Floats:
    """An upper bound on the exact epsilon, likewise."""
    value = mixture.epsilon(kernel, smaller_delta(log_delta))
    return value + RELATIVE_ERROR * np.maximum(1.0, value)


def larger_delta(log_delta: Floats) -> Floats:
    """log_delta raised by a little more than the error of a computed one; still below 0."""
    return np.minimum(log_delta + _RELATIVE_ERROR_OF_DELTA, -1e-300)


def smaller_delta(log_delta: Floats) -> Floats:
    """log_delta lowered by as much."""
    return log_delta - _RELATIVE_ERROR_OF_DELTA


def each_row(function: Function, kernel: BinomialKernel, argument: Floats) -> Floats:
    """A function of many binomials, in chunks of rows with windows of about one size, so that memory stays bounded."""
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
