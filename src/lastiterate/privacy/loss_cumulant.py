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

from lastiterate.privacy.contour import Complex
from lastiterate.privacy.law import distinct
from lastiterate.privacy.step_loss import StepLoss
from lastiterate.run import DPSGD
from lastiterate.values import Array

_NODES = 20  # of the interpolation over a long schedule


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
        value = mean = variance = 0.0
        for count, step in self._steps:
            one = step.moments(order)
            value, mean, variance = value + count * one[0], mean + count * one[1], variance + count * one[2]
        return value, sign * mean, variance

    def along(self, theta: float, u: Array) -> Complex:
        """K(theta + iu), for increasing u."""
        order, sign = (1.0 + theta, 1.0) if self.remove else (-theta, -1.0)
        result = np.zeros(u.size, dtype=np.complex128)
        for count, step in self._steps:
            result += count * step.log_moments(order, sign * u)
        return result

    def work(self, theta: float, frequency: float) -> float:
        """How many evaluations of the loss `along` takes for one node at this frequency."""
        order = 1.0 + theta if self.remove else -theta
        return float(sum(step.work(order, frequency) for _, step in self._steps))

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

    @cached_property
    def _steps(self) -> list[tuple[float, StepLoss]]:
        each = self.log_left_out - math.log(float(self.counts.sum()))
        columns = condensed(self.counts, self.rates, self.sigmas, math.ceil(_NODES * self.fineness))
        return [
            (count, StepLoss(rate, 1.0 / sigma, each, self.fineness))
            for count, rate, sigma in zip(*(column.tolist() for column in columns), strict=True)
        ]


def condensed(counts: Array, rates: Array, sigmas: Array, nodes: int) -> tuple[Array, Array, Array]:
    """A long schedule of noise (or of rates) by a few steps with counts that are not whole, nor even positive.

    M is a smooth function of 1 / sigma^2 and of q, so that its sum over many of them is a sum over the Chebyshev nodes
    of their range. How good that is shows where two numbers of nodes are compared.
    """
    by_noise = np.ptp(rates) == 0.0
    if counts.size <= 2 * nodes or np.any(rates == 1.0) or (not by_noise and np.ptp(sigmas) > 0.0):
        return counts, rates, sigmas
    x = 1.0 / sigmas**2 if by_noise else rates
    angle = (2.0 * np.arange(nodes) + 1.0) * math.pi / (2.0 * nodes)
    at = 0.5 * (x.max() + x.min()) + 0.5 * np.ptp(x) * np.cos(angle)
    weight = np.where(np.arange(nodes) % 2 == 0, 1.0, -1.0) * np.sin(angle)
    distance = x[:, None] - at
    share = weight / np.where(distance == 0.0, 1e-300, distance)
    few = counts @ (share / share.sum(axis=1, keepdims=True))
    return (few, np.full(nodes, rates[0]), 1.0 / np.sqrt(at)) if by_noise else (few, at, np.full(nodes, sigmas[0]))


def loss_cumulant(run: DPSGD) -> LossCumulant:
    """The direction "remove" of a run with Poisson (or no) sampling; steps that never see the canary are left out."""
    rates, sigmas, counts = distinct(np.asarray(run.sample_rate), np.asarray(run.noise_multiplier), run.steps)
    seen = rates > 0.0
    return LossCumulant(counts[seen], rates[seen], sigmas[seen])
