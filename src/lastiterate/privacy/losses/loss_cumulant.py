"""The cumulant generating function of the privacy loss when every iterate is released.

One step of DP-SGD is a Gaussian with or without a shift that happens with probability q. With t ~ N(0, 1) the noise, in
its own units, and a = 1 / sigma, the loss is  L(t) = log(1 - q + q exp(a t - a^2 / 2)),  and

    M(s) = log E exp(s L),    K(z) = sum_t M_t(1 + z)  (P over Q, "remove"),    K(z) = sum_t M_t(-z)  (Q over P, "add").
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lastiterate.privacy.losses.condensed import Condensed, condensed
from lastiterate.privacy.losses.step_loss import StepLoss
from lastiterate.privacy.mixtures.contour import Complex, Unreliable
from lastiterate.privacy.mixtures.law import distinct
from lastiterate.run import DPSGD
from lastiterate.values import Array

_NODES = 20  # of the interpolation over a long schedule, at first
_MOST_NODES = 1000  # so many different steps can be added up one by one, but not many more
_ERROR, _ERROR_OF_SLOPES = 1e-11, 1e-6  # of the interpolation, relative to the largest value; slopes only lead the way
_ERROR_ALONG = 1e-9  # of K along a line, where exp(K) still counts
_VANISHED = -45.0  # log of what does not count any more


@dataclass(frozen=True, eq=False)
class LossCumulant:
    """K(z) for one direction of a run's steps: ``counts[j]`` steps have rate ``rates[j]`` and noise ``sigmas[j]``."""

    counts: Array
    rates: Array
    sigmas: Array
    remove: bool = True
    log_left_out: float = -math.inf
    fineness: float = 1.0

    def other_direction(self) -> LossCumulant:
        """The same steps, Q over P."""
        return LossCumulant(self.counts, self.rates, self.sigmas, remove=False)

    def without_largest(self, log_mass: float) -> LossCumulant:
        """The same without its largest losses, which together have at most this log-probability under P.

        Under a strong tilt they are all there is of K, yet they are next to nothing of delta. Leaving them out lowers
        delta, by no more than their probability. Q over P has bounded losses and nothing to leave out.
        """
        return replace(self, log_left_out=log_mass) if self.remove else self

    def finer(self, factor: float) -> LossCumulant:
        """The same on a finer grid of t, for comparison."""
        return replace(self, fineness=factor)

    def real(self, theta: float) -> tuple[float, float, float]:
        """K, K' and K'' at a real point."""
        order, sign = (1.0 + theta, 1.0) if self.remove else (-theta, -1.0)
        value, mean, variance = self._moments(order).tolist()
        return value, sign * mean, variance

    def along(self, theta: float, u: Array) -> Complex:
        """K(theta + iu), for increasing u."""
        order, sign = (1.0 + theta, 1.0) if self.remove else (-theta, -1.0)
        nodes = self._nodes_at(order)
        while (few := self._condensed(nodes)) is not None:
            logs = np.array([step.log_moments(order, sign * u) for step in few.steps])
            truth = np.array([step.log_moments(order, sign * u) for step in few.checks])
            result: Complex = few.counts @ logs
            counts = (result - few.counts @ logs[:, :1].real).real > _VANISHED
            if np.all(self.counts.sum() * np.abs(few.between @ logs - truth)[:, counts] < _ERROR_ALONG):
                return result
            nodes += nodes // 2
        result = np.zeros(u.size, dtype=np.complex128)
        for count, step in self._all_steps:
            result += count * step.log_moments(order, sign * u)
        return result

    def work(self, theta: float, frequency: float) -> float:
        """How many evaluations of the loss `along` takes for one node at this frequency."""
        order = 1.0 + theta if self.remove else -theta
        few = self._condensed(self._nodes_at(order))
        steps = [step for _, step in self._all_steps] if few is None else [*few.steps, *few.checks]
        return float(sum(step.work(order, frequency) for step in steps))

    def largest_loss(self) -> float:
        """What the loss cannot exceed: bounded in the direction "add", where each step costs at most -log(1 - q)."""
        if self.remove or np.any(self.rates == 1.0):
            return math.inf
        return -float(np.sum(self.counts * np.log1p(-self.rates)))

    def recurrence(self) -> float:
        """A frequency beyond which a characteristic function that is small stays so.

        With little noise the loss clusters around multiples of about 1 / (2 sigma^2), and until the clusters' own
        width is resolved it comes back at the frequencies that fit them; not where so many steps see the canary that
        even neighbouring clusters overlap.
        """
        separate = 8.0 * math.pi**2 * self.counts * self.rates * self.sigmas**2 < 60.0
        sigmas = self.sigmas[(self.sigmas < 0.5) & (self.rates < 1.0) & separate]
        return float(np.max(8.0 * math.pi * sigmas**2, initial=0.0))

    def _moments(self, order: float) -> Array:
        """Sums over all steps of M, M' and M'' at a real order."""
        few = self._condensed(self._nodes_at(order))
        if few is not None:
            return few.counts @ self._moments_at_nodes(order, few)
        return sum((count * np.array(step.moments(order)) for count, step in self._all_steps), np.zeros(3))

    def _nodes_at(self, order: float) -> int:
        """How many nodes the interpolation needs there; the stronger the tilt, the more."""
        if order not in self._known_nodes:
            nodes = math.ceil(_NODES * self.fineness)
            while (few := self._condensed(nodes)) is not None:
                values = self._moments_at_nodes(order, few)
                error = np.abs(few.between @ values - [step.moments(order) for step in few.checks]).max(axis=0)
                size = np.abs(values).max(axis=0)
                size[0] = max(size[0], size[1])  # M vanishes at order 0 and 1
                if np.all(error <= (_ERROR, _ERROR_OF_SLOPES, _ERROR_OF_SLOPES) * size):
                    break
                nodes += nodes // 2
            self._known_nodes[order] = nodes
        return self._known_nodes[order]

    def _moments_at_nodes(self, order: float, few: Condensed) -> Array:
        key = order, few.counts.size
        if key not in self._known_moments:
            self._known_moments[key] = np.array([step.moments(order) for step in few.steps])
        return self._known_moments[key]

    def _condensed(self, nodes: int) -> Condensed | None:
        """The steps by so many nodes; None where all of them are no more work, or cannot be condensed."""
        if nodes > _MOST_NODES and self.counts.size > 2 * _MOST_NODES:
            raise Unreliable
        if nodes not in self._known_condensed:
            self._known_condensed[nodes] = condensed(self.counts, self.rates, self.sigmas, nodes, self._step)
        return self._known_condensed[nodes]

    def _step(self, rate: float, sigma: float) -> StepLoss:
        each = self.log_left_out - math.log(float(self.counts.sum()))
        return StepLoss(rate, 1.0 / sigma, each, self.fineness)

    @cached_property
    def _all_steps(self) -> list[tuple[float, StepLoss]]:
        columns = (column.tolist() for column in (self.counts, self.rates, self.sigmas))
        return [(count, self._step(rate, sigma)) for count, rate, sigma in zip(*columns, strict=True)]

    @cached_property
    def _known_nodes(self) -> dict[float, int]:
        return {}

    @cached_property
    def _known_moments(self) -> dict[tuple[float, int], Array]:
        return {}

    @cached_property
    def _known_condensed(self) -> dict[int, Condensed | None]:
        return {}


def loss_cumulant(run: DPSGD) -> LossCumulant:
    """The direction "remove" of a run with Poisson (or no) sampling; steps that never see the canary are left out."""
    rates, sigmas, counts = distinct(np.asarray(run.sample_rate), np.asarray(run.noise_multiplier), run.steps)
    seen = rates > 0.0
    return LossCumulant(counts[seen], rates[seen], sigmas[seen])
