"""Upper bounds on the distance between convex training with and without the canary, and the contraction of a step.

In units of learning rate times clipping norm, the distance after some steps is at most R = sum_k c^k b_k. c is the
contraction, and b_k ~ Bernoulli(q) is 1 if the canary was in the batch k steps ago (docs/method.md, "Convex losses").
`distances` returns a distribution with few values that dominates R stochastically: weights, values and tails are all
rounded up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import bdtrc, ndtr

from lastiterate.common.types import FloatArray
from lastiterate.common.validation import number
from lastiterate.privacy.mixtures.fourier import Cumulant
from lastiterate.privacy.mixtures.law import Law

LOG_LOST = -57.0  # log-probability of distances that are left out
_RATIO = 0.01  # weights that differ by less than this fraction are rounded up to the largest of them
_OF_THE_REST = 1e-3  # small weights with this share of the mean count as if the canary were in all their batches
_FEW_STEPS = 8  # largest number of steps for which all sums are enumerated
_VALUES = 256
_LEAST = 0.5  # smallest distance kept, as a share of the mean
_BEYOND = 24  # number of values in the tail where only Chernoff's bound is used
_LOG_TAIL = -28.0  # log-probability at which this tail begins
_FINENESS = 1200.0  # range of distances, in standard deviations of the smoothing noise
_MOVED = 3.0  # distance by which the tails are moved, in the same unit
_LAST = 8.5  # frequency in 1 / smoothing, beyond which the transform is negligible
_ERROR = 1e-11  # allowance for the error of the inversion, which is about 1e-13


@dataclass(frozen=True, eq=False)
class Distances:
    """Distances in increasing order and their log-probabilities. Probability exp(``log_lost``) is left out."""

    values: FloatArray
    log_mass: FloatArray
    log_lost: float = -math.inf

    def at_least_part_of_mean(self) -> Distances:
        """Round small distances up to half of the mean. They hardly matter, but make the loss less smooth."""
        least = _LEAST * float(np.exp(self.log_mass) @ self.values)
        small = self.values < least
        if not small.any():
            return self
        log_small = np.logaddexp.reduce(self.log_mass[small])
        return Distances(
            np.append(least, self.values[~small]), np.append(log_small, self.log_mass[~small]), self.log_lost
        )


@lru_cache(maxsize=256)
def distances(steps: int, rate: float, contraction: float, most: float = math.inf) -> Distances:
    """Return the distribution of min(R, most), rounded up."""
    farthest = min(geometric_sum(contraction, steps), most)
    if steps == 0 or rate == 0.0:
        return Distances(np.zeros(1), np.zeros(1))
    if rate == 1.0:
        return Distances(np.array([farthest]), np.zeros(1))
    if contraction == 1.0:
        values, tails = _counted(steps, rate)
    elif steps <= _FEW_STEPS:
        values, tails = _written_out(steps, rate, contraction)
    else:
        values, tails = _weighted(steps, rate, contraction)
    log_lost = math.log(tails[-1]) if tails[-1] > 0.0 else -math.inf
    if farthest <= values[-1]:
        inside = values < farthest
        values, tails, log_lost = np.append(values[inside], farthest), np.append(tails[inside], 0.0), -math.inf
    mass = -np.diff(tails, prepend=1.0)
    present = mass > 0.0
    return Distances(values[present], np.log(mass[present]), log_lost)


def geometric_sum(ratio: float, count: int) -> float:
    """Return 1 + ratio + ... + ratio^(count - 1)."""
    return float(count) if ratio == 1.0 else -math.expm1(count * math.log(ratio)) / (1.0 - ratio)


def _counted(steps: int, rate: float) -> tuple[FloatArray, FloatArray]:
    cumulant = Cumulant(Law(0.0, 0.0, np.array([float(steps)]), np.array([rate]), np.ones(1)))
    low, middle, high = (math.ceil(end) for end in _ends(cumulant, float(steps)))
    grids = np.linspace(max(low, 0), middle, _VALUES), np.linspace(middle, high, _BEYOND + 1)[1:]
    values = np.unique(np.ceil(np.concatenate(grids)))
    return values, np.minimum.accumulate(bdtrc(values, steps, rate))


def _written_out(steps: int, rate: float, contraction: float) -> tuple[FloatArray, FloatArray]:
    values, mass = np.zeros(1), np.ones(1)
    for _ in range(steps):
        values = np.concatenate((contraction * values, 1.0 + contraction * values))
        mass = np.concatenate(((1.0 - rate) * mass, rate * mass))
    order = np.argsort(values)
    above = np.cumsum(mass[order][::-1])[::-1]
    return values[order], np.append(above[1:], 0.0)


def _weighted(steps: int, rate: float, contraction: float) -> tuple[FloatArray, FloatArray]:
    near = min(steps, math.ceil(math.log(_OF_THE_REST * rate) / math.log(contraction)))
    together = max(1, math.floor(-_RATIO / math.log(contraction)))
    first = np.arange(0, near, together)
    counts = np.minimum(near - first, together).astype(np.float64)
    weights = np.exp(first * math.log(contraction))
    rest = contraction**near * geometric_sum(contraction, steps - near)
    cumulant = Cumulant(Law(0.0, 0.0, counts, np.full(first.size, rate), weights))
    low, middle, high = _ends(cumulant, float(counts @ weights))
    values = np.concatenate((np.linspace(low, middle, _VALUES), np.linspace(middle, high, _BEYOND + 1)[1:]))
    thetas, exponents = _exponents(cumulant)
    logs = np.min(exponents[:, None] - thetas[:, None] * values, axis=0)  # Chernoff's bounds
    tails = np.where(values >= float(counts @ weights), 0.0, np.exp(np.minimum(logs, 0.0)))
    tails[:_VALUES] = np.minimum(tails[:_VALUES], _smoothed(cumulant, values[:_VALUES], low, middle))
    ever = -math.expm1(steps * math.log1p(-rate))  # probability that the canary was used at all
    return np.append(0.0, values + rest), np.minimum.accumulate(np.append(ever, tails))


def _ends(cumulant: Cumulant, highest: float) -> tuple[float, float, float]:
    """Return three distances: little mass is below the first and above the second, and almost none above the third."""
    thetas, exponents = _exponents(cumulant)
    high = [min(float(np.min((exponents - log_tail) / thetas)), highest) for log_tail in (_LOG_TAIL, LOG_LOST)]
    below = np.array([cumulant.real(-theta)[0] for theta in thetas.tolist()])
    low = max(float(np.max((_LOG_TAIL - below) / thetas)), 0.0)
    return low, high[0], max(high[1], high[0])


def _exponents(cumulant: Cumulant) -> tuple[FloatArray, FloatArray]:
    deviation = math.sqrt(cumulant.law.variance)
    thetas = np.geomspace(1e-2, 1e2, 101) / deviation
    thetas = thetas[thetas < 600.0]
    return thetas, np.array([cumulant.real(theta)[0] for theta in thetas.tolist()])


def _smoothed(cumulant: Cumulant, values: FloatArray, low: float, high: float) -> FloatArray:
    """Bound P(R > r) by P(R + N > r - x) / P(N > -x), from Fourier inversion, with x > 0 and Gaussian noise N."""
    noise = (high - low) / _FINENESS
    step = math.pi / (1.1 * (high - low) + 30.0 * noise)
    frequencies: FloatArray = (np.arange(float(math.ceil(_LAST / (noise * step)))) + 0.5) * step
    with np.errstate(divide="ignore"):
        transform = np.exp(cumulant.along(0.0, frequencies) - 0.5 * (noise * frequencies) ** 2)
    waves = np.exp(-1j * np.multiply.outer(values - _MOVED * noise, frequencies))
    above = 0.5 + step / math.pi * (waves @ (transform / frequencies)).imag
    tails: FloatArray = np.clip((above + _ERROR) / float(ndtr(_MOVED)), 0.0, 1.0)
    return tails


# Contraction: the factor by which a step brings two models closer, and the probability of failure.


@dataclass(frozen=True)
class Contraction:
    """A contraction factor that holds for every step of a run, as an argument of ``lastiterate.convex``.

    With probability 1 - ``failure`` or more, every step without the canary multiplies the distance of two models by at
    most ``value``. The value is in (0, 1].
    """

    value: float
    failure: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", number("value", self.value, 0.0, 1.0, open_low=True))
        object.__setattr__(self, "failure", number("failure", self.failure, 0.0, 1.0, open_high=True))
