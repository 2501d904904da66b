"""Composition where the contour does not converge: few steps, a rare canary, or very little noise.

Three bounds that always hold, of which the best is taken: dp-accounting's privacy loss distribution, rounded up;
Chernoff's bound (as in Renyi accounting); and no amplification at all. From below: the same distribution rounded down,
and the last iterate, which is a function of all iterates.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lastiterate.privacy.analyses.no_amplification import told_participations
from lastiterate.privacy.curve import Pair
from lastiterate.privacy.losses.loss_cumulant import LossCumulant
from lastiterate.privacy.losses.loss_line import chernoff, chernoff_epsilon
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.pairs import pair_of
from lastiterate.values import Array

_RESOLUTION = 1.3e-4  # of the distribution's grid, relative to epsilon
_TIGHT = 5e-4  # bounds this close, relative to max(1, epsilon), need no distribution
_MOST_STEPS = 10**7  # that dp-accounting composes in reasonable time
_MOST_GROUPS = 12  # of steps, each of which takes a distribution of its own
_LEVELS = 8
_MOST_POINTS = 300_000
_LARGEST_LOSS = 600.0  # dp-accounting takes exp of losses
_ROUNDING = 1e-16  # of delta, by its Fourier transforms, for each step


def last_iterate_of(cumulant: LossCumulant) -> Pair:
    """What the last iterate tells, a function of all iterates; steps weighted by 1 / sigma^2, which tells most."""
    weights = (cumulant.sigmas.min() / cumulant.sigmas) ** 2
    noise = math.sqrt(float(np.sum(cumulant.counts * (weights * cumulant.sigmas) ** 2)))
    sure = cumulant.rates == 1.0
    constant = float(np.sum(cumulant.counts[sure] * weights[sure]))
    return pair_of(Law(noise, constant, cumulant.counts[~sure], cumulant.rates[~sure], weights[~sure]))


@dataclass(frozen=True)
class Fallback:
    """Bounds for the composition of a run's steps, given by the cumulant of the direction "remove"."""

    cumulant: LossCumulant

    def epsilon(self, log_delta: float) -> float:
        """Upper bound."""
        value, delta = np.float64(log_delta), math.exp(log_delta)
        upper = min(self._chernoff_epsilon(log_delta), float(self._told[1].epsilon(value)))
        if upper - self._plain_lower(log_delta) > _TIGHT * max(1.0, upper) and delta > 2.0 * self._rounding:
            upper = min(upper, self._of_distribution(self._pessimistic, delta - self._rounding, math.inf))
        return upper

    def lower_epsilon(self, log_delta: float) -> float:
        """Lower bound."""
        delta = math.exp(log_delta)
        lower, upper = self._plain_lower(log_delta), self.epsilon(log_delta)
        if upper - lower > _TIGHT * max(1.0, upper) and delta > 2.0 * self._rounding:
            lower = max(lower, self._of_distribution(self._optimistic, delta + self._rounding, 0.0))
        return min(lower, upper)

    def log_delta(self, epsilon: float) -> float:
        """Upper bound."""
        bound = min(max(chernoff(self.cumulant, epsilon), chernoff(self._add, epsilon)), 0.0)
        bound = min(bound, float(self._told[1].log_delta(np.float64(epsilon))))
        if self._pessimistic is not None:
            with contextlib.suppress(OverflowError):
                delta = float(self._pessimistic.get_delta_for_epsilon(epsilon))
                bound = min(bound, math.log(max(delta, 0.0) + self._rounding))
        return bound

    def fnr(self, fpr: float) -> float:
        """Lower bound, from delta(epsilon) by duality."""
        epsilon, delta = self._curve
        lines = np.maximum(1.0 - delta - np.exp(epsilon) * fpr, np.exp(-epsilon) * (1.0 - delta - fpr))
        return max(float(np.max(lines)), 0.0)

    @cached_property
    def _curve(self) -> tuple[Array, Array]:
        """Points of delta(epsilon)."""
        top = max(self.epsilon(math.log(1e-12)), 1e-12)
        epsilon = np.concatenate(([0.0], np.geomspace(1e-4 * top, top, 80)))
        return epsilon, np.array([math.exp(self.log_delta(value)) for value in epsilon.tolist()])

    def _plain_lower(self, log_delta: float) -> float:
        value = np.float64(log_delta)
        return max(float(self._last_iterate.epsilon(value)), float(self._told[0].epsilon(value)))

    @staticmethod
    def _of_distribution(distribution: Any, delta: float, otherwise: float) -> float:
        if distribution is None:
            return otherwise
        try:
            return float(distribution.get_epsilon_for_delta(delta))
        except OverflowError:
            return otherwise

    @cached_property
    def _told(self) -> tuple[Pair, Pair]:
        """A lower and an upper bound from telling the number of the canary's batches."""
        steps, rates, sigmas = int(self.cumulant.counts.sum()), self.cumulant.rates, self.cumulant.sigmas
        lower = told_participations(steps, float(rates.min()), float(sigmas.max()), upper=False)
        return lower, told_participations(steps, float(rates.max()), float(sigmas.min()), upper=True)

    @cached_property
    def _last_iterate(self) -> Pair:
        return last_iterate_of(self.cumulant)

    def _chernoff_epsilon(self, log_delta: float) -> float:
        return max(chernoff_epsilon(cumulant, log_delta) for cumulant in (self.cumulant, self._add))

    @property
    def _rounding(self) -> float:
        return _ROUNDING * (20.0 + float(self.cumulant.counts.sum()))

    @cached_property
    def _add(self) -> LossCumulant:
        return self.cumulant.other_direction()

    @cached_property
    def _optimistic(self) -> Any:
        return self._composed(pessimistic=False)

    @cached_property
    def _pessimistic(self) -> Any:
        return self._composed(pessimistic=True)

    @cached_property
    def _interval(self) -> float:
        """Of the distribution's grid; 0 where dp-accounting cannot represent the loss."""
        slope = 1.0 / float(self.cumulant.sigmas.min())
        largest, steps = slope * (0.5 * slope + 12.0), float(self.cumulant.counts.sum())
        if largest > _LARGEST_LOSS or steps > _MOST_STEPS:
            return 0.0
        small = math.log(1e-9)
        epsilon = min(self._chernoff_epsilon(small), float(self._told[1].epsilon(np.float64(small))))
        return max(_RESOLUTION * epsilon / math.sqrt(min(steps, 100.0)), max(largest, epsilon) / _MOST_POINTS)

    def _composed(self, *, pessimistic: bool) -> Any:
        """A privacy loss distribution rounded up or down, or None where it cannot be had."""
        try:
            return self._compose(pessimistic) if self._interval else None
        except (OverflowError, MemoryError, ValueError):
            return None

    def _compose(self, pessimistic: bool) -> Any:
        from dp_accounting.pld import privacy_loss_distribution

        total = None
        for (rate, sigma), count in self._coarse_groups(pessimistic).items():
            step = privacy_loss_distribution.from_gaussian_mechanism(
                float(sigma),
                pessimistic_estimate=pessimistic,
                value_discretization_interval=self._interval,
                log_mass_truncation_bound=-70.0,
                sampling_prob=float(rate),
                use_connect_dots=pessimistic,
            )
            composed = step.self_compose(int(count), tail_mass_truncation=1e-20)
            total = composed if total is None else total.compose(composed, tail_mass_truncation=1e-20)
        return total

    def _coarse_groups(self, pessimistic: bool) -> dict[tuple[float, float], float]:
        """Steps by (rate, sigma); of a long schedule few values, each rounded to the worse (or better) side."""
        rates, sigmas = self.cumulant.rates, self.cumulant.sigmas
        if rates.size > _MOST_GROUPS:
            rates, sigmas = _rounded(rates, up=pessimistic), _rounded(sigmas, up=not pessimistic)
        groups: dict[tuple[float, float], float] = {}
        for rate, sigma, count in zip(rates.tolist(), sigmas.tolist(), self.cumulant.counts.tolist(), strict=True):
            groups[rate, sigma] = groups.get((rate, sigma), 0.0) + count
        return groups


def _rounded(values: Array, *, up: bool) -> Array:
    """Each value moved up or down to one of few between the smallest and the largest."""
    levels = np.geomspace(values.min(), values.max(), _LEVELS)
    levels[0], levels[-1] = values.min(), values.max()
    index = np.searchsorted(levels, values, side="left" if up else "right") - (0 if up else 1)
    return levels[np.clip(index, 0, _LEVELS - 1)]
