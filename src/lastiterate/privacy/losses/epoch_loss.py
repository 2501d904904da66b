"""The privacy loss of an epoch of balls in bins, and its cumulant generating function over all epochs.

Each example picks one of the t batches of every epoch. Let M be the mean of r independent terms exp((2 x - 1) / (2
sigma^2)), x ~ N(0, sigma^2), where r is the number of batches that were used. The loss of the epoch is

    L = log((t - r) / t + (r / t) M),        that is, L = log M for a whole epoch (r = t).

Epochs are independent, so K(z) is the sum over epochs of log E exp((1 + z) L) for P over Q ("remove"), and of
log E exp(-z L) for Q over P ("add"), as for the steps of `loss_cumulant`.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lastiterate.common.types import FloatArray, Floats
from lastiterate.privacy.losses.epoch_density import EpochDensity, epoch_density
from lastiterate.privacy.losses.loss_cumulant import Certain, Condensed, LossCumulant
from lastiterate.privacy.losses.step_loss import TURN, Loss, Nodes, WindowLoss
from lastiterate.privacy.mixtures.fourier import Unreliable
from lastiterate.privacy.mixtures.solve import HALF_LOG_TAU, Side, solve
from lastiterate.run import DPSGD

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_CORE = 0.1587  # probability of a standard normal variable below -1
_PER_PANEL = 0.6  # panels of a quadrature for each panel of the density
_PIECES = 4  # points per panel of the density at which panels of a quadrature may end
_LEAST_DEPTH, _DEPTH = 72.0, 1.4  # depth of a density, and its ratio to the log-probability that is left out
_LARGEST_ERROR = 1e-10  # largest error of the moments of a density


@dataclass(frozen=True, eq=False)
class EpochLoss(WindowLoss):
    """The loss of an epoch on a window of x, the log of the mean M. ``share`` is r / t.

    All but exp(``log_left_out``) of the probability is in the window, with the canary if ``remove``, else without it.
    """

    density: EpochDensity
    share: float
    remove: bool
    log_left_out: float

    def loss(self, x: FloatArray) -> FloatArray:
        return x if self.share == 1.0 else np.log1p(self.share * np.expm1(x))

    def log_density(self, x: FloatArray) -> FloatArray | float:
        return self.density(x) + (0.5 * x * x + HALF_LOG_TAU)

    def moved(self, x: FloatArray) -> FloatArray:
        return np.abs(x)

    @property
    def steepest(self) -> float:
        return 1.0

    @cached_property
    def _masses(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """x, and the probability up to x without and with the canary, at increasing x."""
        x = self.density.places(_NODES)
        mass = np.exp(self.density(x)) * (0.5 * np.diff(self.density.ends)[:, None] * _WEIGHTS)
        return x.ravel(), mass.ravel(), (mass * np.exp(self.loss(x))).ravel()

    @cached_property
    def window(self) -> tuple[float, float]:
        x, without, with_canary = self._masses
        limit = 0.5 * math.exp(self.log_left_out)
        low = int(np.searchsorted(np.cumsum(without), limit))
        high = int(np.searchsorted(np.cumsum((with_canary if self.remove else without)[::-1]), limit))
        return float(x[max(low - 1, 0)]), float(x[::-1][max(high - 1, 0)])

    @property
    def _far(self) -> float:
        return self.window[1]

    @property
    def _at_cap(self) -> float:
        return math.inf

    def _between(self, low: float, high: float) -> tuple[float, float]:
        """Return the probability of x in this range, under P and under Q."""
        ends = np.clip(self.density.ends, low, high)
        half = 0.5 * np.diff(ends)[:, None]
        x = 0.5 * (ends[1:] + ends[:-1])[:, None] + half * _NODES
        mass = np.exp(self.density(x)) * half * _WEIGHTS
        return float((mass * np.exp(self.loss(x))).sum()), float(mass.sum())

    @cached_property
    def above(self) -> tuple[float, float]:
        with_canary, without = self._between(self.window[1], math.inf)
        return without, with_canary - without

    @cached_property
    def outside(self) -> tuple[float, float]:
        below, above = self._between(-math.inf, self.window[0]), self._between(self.window[1], math.inf)
        return below[0] + above[0], below[1] + above[1]

    @property
    def left_out(self) -> float:
        return self.outside[0 if self.remove else 1]

    @cached_property
    def core(self) -> float:
        """Half the distance of the quantiles of the loss that are one standard deviation from the median."""
        x, without, _ = self._masses
        low, high = np.interp((_CORE, 1.0 - _CORE), np.cumsum(without), self.loss(x))
        return 0.5 * float(high - low)

    def _places(self, size: float) -> tuple[FloatArray, FloatArray]:
        low, high = self.window
        ends = self.density.ends
        panel = np.arange(_PIECES * (ends.size - 1) + 1) / _PIECES
        x = np.interp(panel, np.arange(ends.size), ends)
        inside = (x > low) & (x < high)
        x = np.concatenate(([low], x[inside], [high]))
        panel = np.interp(x, ends, np.arange(ends.size))
        grown = np.append(0.0, np.cumsum(np.abs(np.diff(self.density(x)))))
        return x, (size * self.loss(x) + grown) / (2.0 * TURN) + _PER_PANEL * panel

    def log_error(self, nodes: Nodes, order: float, frequency: float) -> float:
        raise Unreliable  # an interpolated density has no proved bound


@dataclass(frozen=True, eq=False)
class EpochCumulant(LossCumulant):
    """K(z) of ``counts[j]`` epochs with ``terms[j]`` used batches. ``rates[j]`` is their share of all batches."""

    terms: tuple[int, ...] = ()

    @cached_property
    def steps(self) -> list[tuple[float, Loss | Certain]]:
        columns = self.counts.tolist(), self.rates.tolist(), self.sigmas.tolist(), self.terms
        return [(count, self._loss(share, sigma, terms)) for count, share, sigma, terms in zip(*columns, strict=True)]

    def _loss(self, share: float, sigma: float, terms: int) -> EpochLoss:
        depth = _LEAST_DEPTH
        while depth < -_DEPTH * self._left_out_of_each:
            depth *= 2.0
        density = epoch_density(sigma, terms, depth)
        if not density.error <= _LARGEST_ERROR:
            raise Unreliable
        return EpochLoss(density, share, self.remove, self._left_out_of_each)

    @cached_property
    def core(self) -> float:
        return math.sqrt(math.fsum(count * step.core**2 for count, step in self.steps if isinstance(step, EpochLoss)))

    def recurrence(self) -> float:
        return 0.0

    @property
    def _cannot_be_capped(self) -> bool:
        return True

    def _condensed(self, nodes: int) -> Condensed | None:
        return None

    @property
    def smallest_direct(self) -> float:
        """The smallest log delta that a direct integral can return: the density ends there."""
        return -_LEAST_DEPTH / _DEPTH

    def log_delta_of_one(self, epsilon: float) -> tuple[float, float]:
        """Return log delta of a single epoch, and its derivative, by integrating the density directly."""
        reach = epsilon if self.remove else -epsilon  # of the loss of P over Q
        ((_, step),) = self.leaving_out(-_LEAST_DEPTH).steps
        assert isinstance(step, EpochLoss)
        mean = 1.0 + math.expm1(reach) / step.share  # M where the loss has this value
        ends = step.density.ends
        at = min(max(math.log(mean), float(ends[0])), float(ends[-1])) if mean > 0.0 else float(ends[0])
        ends = np.unique(np.append(ends[ends > at] if self.remove else ends[ends < at], at))
        half = 0.5 * np.diff(ends)[:, None]
        x = 0.5 * (ends[1:] + ends[:-1])[:, None] + half * _NODES
        mass = np.exp(step.density(x)) * half * _WEIGHTS
        ratio = np.exp(step.loss(x))
        delta = float((mass * (ratio - math.exp(reach) if self.remove else 1.0 - ratio / math.exp(reach))).sum())
        outside = float((mass * (math.exp(reach) if self.remove else ratio / math.exp(reach))).sum())
        return (math.log(delta), -outside / delta) if delta > 0.0 else (-math.inf, -1.0)

    def epsilon_of_one(self, log_delta: float) -> float:
        """Return the epsilon >= 0 of a single epoch at this delta."""

        def side(epsilon: Floats) -> Side:
            value, slope = self.log_delta_of_one(float(epsilon))
            return Side(epsilon, np.float64(1.0), np.float64(value), np.float64(slope))

        if log_delta < self.smallest_direct:
            raise Unreliable
        high = np.float64(1.0)
        while float(side(high).log_delta) > log_delta:
            high = 2.0 * high
        low = np.float64(0.0)
        if float(side(low).log_delta) <= log_delta:
            return 0.0
        return float(solve(side, np.float64(log_delta), 0.5 * high, low, high)[0])


def epoch_cumulant(run: DPSGD) -> EpochCumulant:
    """Return K(z) of P over Q for balls in bins. The last epoch may be incomplete."""
    assert run.batches_per_epoch is not None
    epochs, rest = divmod(run.steps, run.batches_per_epoch)
    kinds = [(float(epochs), run.batches_per_epoch), (1.0, rest)]
    kinds = [(count, terms) for count, terms in kinds if count and terms]
    counts, terms = np.array([count for count, _ in kinds]), tuple(terms for _, terms in kinds)
    sigmas = np.full(len(kinds), float(run.noise_multiplier))
    return EpochCumulant(counts, np.array(terms) / run.batches_per_epoch, sigmas, terms=terms)
