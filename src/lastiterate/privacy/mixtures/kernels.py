"""Kernels compute S + N against N: from a part of a binomial, from all values of S, or by Fourier inversion."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import log_ndtr

from lastiterate.common.types import Bools, FloatArray, Floats, IntArray
from lastiterate.privacy.mixtures import support as binomial
from lastiterate.privacy.mixtures.fourier import NEGLIGIBLE, Cumulant, contour
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.mixture import Kernel, Local, Moving
from lastiterate.privacy.mixtures.solve import HALF_LOG_TAU, Side, every, pick, some
from lastiterate.privacy.mixtures.support import Support, log_integral, log_interval

MOST_POINTS = 4096  # largest number of values of S that are enumerated


@dataclass(frozen=True)
class BinomialKernel:
    """The kernel of S ~ Binomial(steps, rate), 0 < rate < 1. Each entry of an array is a separate run."""

    steps: Floats
    rate: Floats
    noise: Floats

    @property
    def mean(self) -> Floats:
        return self.steps * self.rate

    @property
    def variance(self) -> Floats:
        return self.steps * self.rate * (1.0 - self.rate)

    @property
    def high(self) -> Floats:
        return self.steps

    def start(self, log_delta: Floats) -> tuple[Floats, Local]:
        centre = binomial.tilt_for(log_delta, self.steps, self.rate, self.noise)
        return centre.mean + self.noise * self.noise * centre.theta, self._view(centre, upper=True)

    def near(self, y: Floats, *, upper: bool) -> Local:
        return self._view(binomial.tilt_at(y, self.steps, self.rate, self.noise), upper=upper)

    def row(self, index: int) -> BinomialKernel:
        return BinomialKernel(*(np.float64(np.asarray(value)[index]) for value in (self.steps, self.rate, self.noise)))

    def _view(self, centre: binomial.Tilt, *, upper: bool) -> _Window:
        points, log_mass, beyond = binomial.window(centre, self.steps, self.rate, self.noise, upper=upper)
        square = self.noise * self.noise
        # If y changes, the window moves by the binomial's share of the change: at most a third of a standard deviation.
        # The share is nearly constant only while theta changes by at most about one, or if the variance is small.
        variance = centre.variance + 1e-300
        turn = np.minimum(0.3 / np.sqrt(variance), np.maximum(1.0, -np.log(10.0 * variance)))
        reach = turn * (centre.variance + square)
        return _Window(self.noise, points, log_mass, centre.mean + square * centre.theta, reach, beyond)


@dataclass(frozen=True)
class _Window(Support):
    """The part of a binomial near ``centre``. A tail that lies ``beyond`` this part is 1 minus the other tail."""

    centre: Floats
    reach: Floats
    beyond: Bools

    def covers(self, y: Floats) -> bool:
        return every(np.abs(y - self.centre) <= self.reach)

    def remove(self, y: Floats) -> Side:
        side = super().remove(y)
        if not some(self.beyond):
            return side
        log_outside = side.loss + log_ndtr(-y / self.noise)  # e^f Q(>= y)
        log_delta = np.log1p(-np.exp(super().log_lower(y)) - np.exp(log_outside))
        slope = -side.loss_slope * np.exp(log_outside - log_delta)
        return side._replace(
            log_delta=pick(self.beyond, log_delta, side.log_delta),
            log_delta_slope=pick(self.beyond, slope, side.log_delta_slope),
        )

    def log_lower(self, y: Floats) -> Floats:
        if not some(self.beyond):
            return super().log_lower(y)
        return pick(self.beyond, np.log1p(-np.exp(self.log_upper(y))), super().log_lower(y))


@dataclass(frozen=True)
class _OfLaw:
    law: Law

    @property
    def noise(self) -> Floats:
        return np.float64(self.law.noise)

    @property
    def mean(self) -> Floats:
        return np.float64(self.law.mean)

    @property
    def variance(self) -> Floats:
        return np.float64(self.law.variance)

    @property
    def high(self) -> Floats:
        return np.float64(self.law.high)

    def row(self, index: int) -> Kernel:
        raise IndexError("the kernel of a single law has no rows")


@dataclass(frozen=True)
class FiniteKernel(_OfLaw):
    """The kernel of an S with few values. All values are used at every threshold."""

    support: Support
    relative_error: ClassVar[float] = 1e-14  # of `log_between`

    def start(self, log_delta: Floats) -> tuple[Floats, Local]:
        return np.float64(Cumulant(self.law).start(float(log_delta))), self.support

    def near(self, y: Floats, *, upper: bool) -> Local:
        return self.support

    def log_between(self, low: Floats, high: Floats) -> Floats:
        """Return log P(low <= S + N <= high) to full relative accuracy, however small the probability is."""
        middle, half = 0.5 * (low + high), 0.5 * (high - low)
        parts = log_interval((middle - self.support.points) / self.noise, half / self.noise)
        total: np.float64 = np.logaddexp.reduce(self.support.log_mass + parts)
        return total


@dataclass(frozen=True)
class FourierKernel(_OfLaw):
    """The kernel of any law of S."""

    relative_error: ClassVar[float] = 1e-11  # of `log_between`: see `fourier.LARGEST_CANCELLATION`

    def start(self, log_delta: Floats) -> tuple[Floats, Local]:
        y = Cumulant(self.law).start(float(log_delta))
        return np.float64(y), self.near(np.float64(y), upper=True)

    def near(self, y: Floats, *, upper: bool) -> Local:
        return contour(Cumulant(self.law), float(y))

    def log_between(self, low: Floats, high: Floats) -> Floats:
        """Return log P(low <= S + N <= high). P must be at most a multiple of Q. Negligible parts are left out."""
        noise = self.law.noise
        middle = min(max(0.0, float(low)), float(high))
        far = noise * math.sqrt((middle / noise) ** 2 + 2.0 * NEGLIGIBLE)  # beyond this, Q is negligible, and so is P
        moving = Moving(self, upper=True)

        def log_density(y: Floats) -> Floats:
            return moving.at(y).loss(y)[0] - 0.5 * (y / noise) ** 2 - math.log(noise) - HALF_LOG_TAU

        ends = (max(float(low), -far), middle, min(float(high), far))
        parts = [log_integral(log_density, a, b) for a, b in itertools.pairwise(ends) if a < b]
        total: np.float64 = np.logaddexp.reduce(parts)
        return total


def kernel_of(law: Law) -> Kernel:
    """Return the best kernel for a law whose values are not negative."""
    if law.is_binomial:
        steps, rate, weight = float(law.counts[0]), float(law.rates[0]), float(law.weights[0])
        return BinomialKernel(np.float64(steps), np.float64(rate), np.float64(law.noise / weight))
    return signed_kernel_of(law)


def signed_kernel_of(law: Law) -> FiniteKernel | FourierKernel:
    """Return the best kernel for a law whose values may have both signs."""
    support = small_support(law)
    return FourierKernel(law) if support is None else FiniteKernel(law, support)


def small_support(law: Law) -> Support | None:
    """Return all values of S with their probabilities, or None if there are too many values."""
    sizes = np.concatenate((law.counts + 1.0, [float(values.size) for values, _ in law.blocks]))
    if float(np.sum(np.log(sizes))) > math.log(MOST_POINTS):
        return None
    points, log_mass = np.array([law.constant]), np.zeros(1)
    with np.errstate(divide="ignore"):
        terms = [(values, np.log(probabilities)) for values, probabilities in law.blocks]
    for count, rate, weight in zip(law.counts, law.rates, law.weights, strict=True):
        k = np.arange(count + 1.0)
        terms.append((weight * k, np.asarray(binomial.log_binomial(k, count, rate))))
    for values, logs in terms:
        points = np.add.outer(points, values).ravel()
        log_mass = np.add.outer(log_mass, logs).ravel()
    order = np.argsort(points)  # sorted, because the threshold is compared with the last point only
    return Support(np.float64(law.noise), points[order], log_mass[order])


# Rounded laws are bounds if the noise is small against irregular gaps of S. Weights are rounded to a lattice.
# More signal under the same noise is never harder to detect (Choquette-Choo et al. 2024, Lemma 4.5).

_FINENESS = 1e-3  # spacing of the lattice in units of the noise
_MOST_POINTS = 50_000


def rounded(law: Law) -> tuple[FiniteKernel, FiniteKernel]:
    """Return the kernels of two bounds on this law: weights rounded down, and weights rounded up."""
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
    """Add a term to the sum. All products are positive, so that small probabilities keep their relative accuracy."""
    result = np.zeros_like(mass)
    for jump, probability in zip(jumps, probabilities, strict=True):
        result[jump:] += probability * mass[: mass.size - jump]
    return result
