"""Cumulant generating function of the privacy loss when every iterate is released.

One step of DP-SGD is a Gaussian that is shifted with probability q. Let L be its privacy loss if only noise is released
(see `step_loss`), and M(s) = log E exp(s L). Then

    K(z) = sum_t M_t(1 + z)  (P over Q, "remove"),        K(z) = sum_t M_t(-z)  (Q over P, "add").

Only M of a step is needed. A block of steps with another loss L(x), x ~ N(0, 1), is added in the same way.

A long schedule is replaced by a few steps: M is a smooth function of 1 / sigma^2 and of q, and is interpolated between
Chebyshev nodes. A strong tilt needs more nodes. With too few nodes the sum is wrong, so callers must compare
interpolated with exact values at ``Condensed.checks``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from lastiterate.common.types import FloatArray
from lastiterate.privacy.losses.fourier_sums import characteristic
from lastiterate.privacy.losses.step_loss import Loss, Segments, StepLoss, WindowLoss, moments_of
from lastiterate.privacy.mixtures.fourier import Complex, Unreliable
from lastiterate.privacy.mixtures.law import distinct
from lastiterate.run import DPSGD

# Long schedules: a schedule of noise or of sample rates as a few steps, at Chebyshev nodes of its range.

_CHECKS = 7  # points between the nodes at which the interpolation is compared with exact values


@dataclass(frozen=True, eq=False)
class Condensed:
    """A long schedule as a few steps, with counts that need not be whole or positive.

    ``between @ values`` interpolates from ``steps`` to ``checks``. The exact values at ``checks`` then show the error.
    """

    counts: FloatArray
    steps: list[Loss]
    between: FloatArray
    checks: list[Loss]


def condensed(
    counts: FloatArray, rates: FloatArray, sigmas: FloatArray, nodes: int, step: Callable[[float, float], Loss]
) -> Condensed | None:
    """Replace a schedule by ``nodes`` steps ``step(rate, sigma)``. Return None if impossible or without gain."""
    by_noise = np.ptp(rates) == 0.0
    if counts.size <= 2 * nodes or np.any(rates == 1.0) or (not by_noise and np.ptp(sigmas) > 0.0):
        return None
    x = 1.0 / sigmas**2 if by_noise else rates
    middle, half = 0.5 * (x.max() + x.min()), 0.5 * np.ptp(x)
    angle = (2.0 * np.arange(nodes) + 1.0) * math.pi / (2.0 * nodes)
    at = middle + half * np.cos(angle)
    weight = np.where(np.arange(nodes) % 2 == 0, 1.0, -1.0) * np.sin(angle)
    checked = middle + half * np.cos(np.unique(np.linspace(0, nodes, _CHECKS).astype(int)) * math.pi / nodes)

    def steps_at(places: FloatArray) -> list[Loss]:
        if by_noise:
            return [step(float(rates[0]), sigma) for sigma in (1.0 / np.sqrt(places)).tolist()]
        return [step(rate, float(sigmas[0])) for rate in places.tolist()]

    def interpolation(places: FloatArray) -> FloatArray:
        distance = places[:, None] - at
        share = weight / np.where(distance == 0.0, 1e-300, distance)
        shares: FloatArray = share / share.sum(axis=1, keepdims=True)
        return shares

    return Condensed(counts @ interpolation(x), steps_at(at), interpolation(checked), steps_at(checked))


_NODES = 20  # initial number of nodes of the interpolation over a long schedule
_MOST_NODES = 1000  # about the largest number of distinct steps that can be added one by one
_ERROR, _ERROR_OF_SLOPES = 1e-11, 1e-6  # errors of the interpolation, relative to the largest value
_ERROR_ALONG = 1e-9  # error of K along a line, where exp(K) is not negligible
_VANISHED = -45.0  # log of a negligible factor
_CAP_OF_ADD = 1.3  # cap divided by the smallest possible cap
_FEW_KINDS = 200  # largest number of distinct steps that are added one by one; more are interpolated, without caps
_BELOW = 10.0  # hardly any probability is further below the mean than this many standard deviations
_SMALLEST = -700.0  # lower limit of the log of a modulus
_NO_MASS = 1e-22  # a node with less mass is left out


@dataclass(frozen=True, eq=False)
class LossCumulant:
    """K(z) of P over Q (``remove``) or of Q over P. ``counts[j]`` steps have rate ``rates[j]`` and noise ``sigmas[j]``.

    Each of ``group`` canaries is in a batch with this rate, independently of the others. If ``mirrored``, training
    without the canaries has other examples instead, with opposite gradients.

    The largest losses, which together have probability exp(``log_left_out``) under P, are left out. For a large theta
    they would dominate K, but leaving them out lowers delta by at most their probability.

    Losses of one step above ``cap`` are left out of K too, and `apart` returns their part of delta. If a step has such
    a loss, the total loss is at least cap + edge. For a smaller epsilon all of this probability counts, and no integral
    is needed.
    """

    counts: FloatArray
    rates: FloatArray
    sigmas: FloatArray
    remove: bool = True
    log_left_out: float = -90.0
    cap: float = math.inf
    group: int = 1
    mirrored: bool = False
    _known_nodes: dict[float, int] = field(default_factory=dict, init=False, repr=False)
    _known_moments: dict[float, tuple[float, float, float]] = field(default_factory=dict, init=False, repr=False)
    _known_segments: dict[float, Segments] = field(default_factory=dict, init=False, repr=False)
    _known_condensed: dict[int, Condensed | None] = field(default_factory=dict, init=False, repr=False)

    def other_direction(self) -> LossCumulant:
        """Return K(z) of Q over P for epsilon >= 0."""
        if self.mirrored:
            return self
        return replace(self, remove=False).capped_from_below()

    def capped_from_below(self) -> LossCumulant:
        """Leave losses of one step of Q over P out of K if they make the total negative."""
        return self if self._cannot_be_capped else replace(self, cap=_CAP_OF_ADD * self.edge())

    @property
    def participation(self) -> FloatArray:
        """The probability that a step uses the canary, for each kind of step."""
        return self.rates

    @property
    def is_unbounded(self) -> bool:
        """True if losses are unbounded from below, so that no test of single steps has a closed form."""
        return self.mirrored

    @property
    def _cannot_be_capped(self) -> bool:
        """True if losses are unbounded from below, or if there are so many kinds of steps that M is interpolated."""
        return self.mirrored or self.counts.size > _FEW_KINDS or bool(np.any(self.rates == 1.0))

    def leaving_out(self, log_mass: float) -> LossCumulant:
        """Return the same steps without the largest losses, of log-probability at most ``log_mass``."""
        return replace(self, log_left_out=log_mass)

    def capped(self, cap: float) -> LossCumulant:
        """Leave losses of one step above ``cap`` out of K, if losses are bounded from below."""
        if not self.remove or self._cannot_be_capped or cap >= self._largest:
            return self
        return replace(self, cap=cap)

    @cached_property
    def _largest(self) -> float:
        return max(step.largest for step in self._sampled[1])

    def apart(self, epsilon: float) -> tuple[float, float]:
        """Return P(E) - e^epsilon Q(E) and e^epsilon Q(E) for the event E that some step has a loss above the cap."""
        more, without = self.with_large_losses
        if without == 0.0:
            return more, 0.0
        weighted = math.exp(min(epsilon + math.log(without), 700.0))
        return (more - math.expm1(epsilon) * without if epsilon < 1.0 else more + without - weighted), weighted

    @cached_property
    def with_large_losses(self) -> tuple[float, float]:
        """P(E) - Q(E) and Q(E) for the event E that some step has a loss above the cap."""
        log_q, log_p_over_q = 0.0, 0.0  # log Q and log(P / Q) of the event that no step is above the cap
        for number, step in zip(*self._sampled, strict=True) if self.remove and math.isfinite(self.cap) else ():
            if step.is_capped:
                without, more = step.above
                log_q += number * math.log1p(-without)
                log_p_over_q += number * math.log1p(-more / (1.0 - without))
        return -math.exp(log_q) * math.expm1(log_p_over_q), -math.expm1(log_q)

    def order(self, theta: float) -> float:
        return 1.0 + theta if self.remove else -theta

    def real(self, theta: float) -> tuple[float, float, float]:
        """Return K, K' and K'' at a real point."""
        if theta not in self._known_moments:
            value, mean, variance = self._moments(self.order(theta)).tolist()
            self._known_moments[theta] = value, mean if self.remove else -mean, variance
        return self._known_moments[theta]

    def along(self, theta: float, spacing: float, count: int, fineness: float = 1.0) -> Complex:
        """Return K(theta + iu) at u = 0, spacing, ..., (count - 1) spacing. A larger ``fineness`` uses finer grids."""
        nodes = math.ceil(self._nodes_at(self.order(theta)) * fineness)
        while (few := self._condensed(nodes)) is not None:
            logs, truth = (
                np.array(list(self._logs(steps, theta, spacing, count, fineness))) for steps in (few.steps, few.checks)
            )
            result: Complex = few.counts @ logs
            counts = (result - few.counts @ logs[:, :1].real).real > _VANISHED
            if np.all(self.counts.sum() * np.abs(few.between @ logs - truth)[:, counts] < _ERROR_ALONG):
                return result
            nodes += nodes // 2
        result = np.zeros(count, dtype=np.complex128)
        u, sign = spacing * np.arange(count), 1.0 if self.remove else -1.0
        for number, step in self.steps:
            if isinstance(step, Certain):
                value, mean, variance = step.moments(self.order(theta))
                result += number * (value - 0.5 * variance * u * u + 1j * sign * mean * u)
        numbers, sampled = self._sampled
        logs_of_sampled = self._logs(sampled, theta, spacing, count, fineness, self._known_segments)
        for number, log in zip(numbers.tolist(), logs_of_sampled, strict=True):
            result += number * log
        return result

    def _logs(
        self,
        steps: list[Loss],
        theta: float,
        spacing: float,
        count: int,
        fineness: float,
        known: dict[float, Segments] | None = None,
    ) -> Iterator[Complex]:
        order, sign, u = self.order(theta), 1.0 if self.remove else -1.0, spacing * np.arange(count)
        moments = moments_of(steps, order, known).tolist() if steps else []
        for step, (value, mean, _) in zip(steps, moments, strict=True):
            nodes = step.nodes(order, float(u[-1]), fineness)
            exponent = nodes.log_weight + order * nodes.loss
            mass = np.exp(exponent - exponent.max())
            mass /= mass.sum()
            kept = mass > _NO_MASS
            log_modulus, phase = characteristic(nodes.loss[kept] - mean, mass[kept], spacing, count).logarithm()
            result = np.empty(count, dtype=np.complex128)
            result.real, result.imag = value + np.maximum(log_modulus, _SMALLEST), sign * (mean * u + phase)
            yield result

    def largest_loss(self) -> float:
        """Return the supremum of the loss: finite for Q over P ("add"), where each step costs at most -log(1 - q)."""
        return math.inf if self.remove or np.any(self.rates == 1.0) else self.edge()

    def edge(self) -> float:
        """Return the loss at which the density may be sharp: the sum of log(1 - q), or of -log(1 - q) for Q over P."""
        if self.mirrored:
            _, mean, variance = self.real(-1.0)
            return mean - _BELOW * math.sqrt(variance)
        total = float(np.sum(self.counts * np.log1p(-np.minimum(self.rates, 1.0 - 1e-16)))) * self.group
        return total if self.remove else -total

    @cached_property
    def core(self) -> float:
        """The scale of the loss without rare large losses: the root of the sum over steps of ((L(1) - L(-1)) / 2)^2."""
        if self.group > 1 or self.mirrored:
            return self._core_of_kinds()
        slopes = 1.0 / self.sigmas
        losses = [np.log1p(self.rates * np.expm1(np.minimum(x * slopes - 0.5 * slopes**2, 700.0))) for x in (1.0, -1.0)]
        half = np.where(self.rates == 1.0, slopes, 0.5 * (losses[0] - losses[1]))
        return math.sqrt(float(self.counts @ np.square(half)))

    def _core_of_kinds(self) -> float:
        ends = np.array([1.0, -1.0])
        halves = [
            0.5 * float(np.ptp(step.loss(ends))) if isinstance(step, WindowLoss) else step.slope
            for _, step in self.steps
            if isinstance(step, WindowLoss | Certain)
        ]
        return math.sqrt(float(self.counts @ np.square(halves)))

    def recurrence(self) -> float:
        """Return a frequency beyond which a characteristic function that is small stays small.

        With little noise the loss clusters around multiples of about 1 / (2 sigma^2), and the function grows again.
        """
        separate = 8.0 * math.pi**2 * self.counts * self.group * self.rates * self.sigmas**2 < 60.0
        sigmas = self.sigmas[(self.sigmas < 0.5) & (self.rates < 1.0) & separate]
        return float(np.max(8.0 * math.pi * sigmas**2, initial=0.0))

    def _moments(self, order: float) -> FloatArray:
        few = self._condensed(self._nodes_at(order))
        if few is not None:
            return few.counts @ moments_of(few.steps, order)
        total = np.zeros(3)
        for count, step in self.steps:
            if isinstance(step, Certain):
                total += count * np.array(step.moments(order))
        counts, steps = self._sampled
        return total + counts @ moments_of(steps, order, self._known_segments) if steps else total

    def _nodes_at(self, order: float) -> int:
        if order not in self._known_nodes:
            nodes = _NODES
            while (few := self._condensed(nodes)) is not None:
                values = moments_of(few.steps, order)
                error = np.abs(few.between @ values - moments_of(few.checks, order)).max(axis=0)
                size = np.abs(values).max(axis=0)
                size[0] = max(size[0], size[1])  # M vanishes at order 0 and 1
                if np.all(error <= (_ERROR, _ERROR_OF_SLOPES, _ERROR_OF_SLOPES) * size):
                    break
                nodes += nodes // 2
            self._known_nodes[order] = nodes
        return self._known_nodes[order]

    def _condensed(self, nodes: int) -> Condensed | None:
        if self.counts.size <= _FEW_KINDS:
            return None
        if nodes > _MOST_NODES and self.counts.size > 2 * _MOST_NODES:
            raise Unreliable
        if nodes not in self._known_condensed:
            self._known_condensed[nodes] = condensed(self.counts, self.rates, self.sigmas, nodes, self._step)
        return self._known_condensed[nodes]

    def _step(self, rate: float, sigma: float) -> Loss:
        if self.group == 1 and not self.mirrored:
            return StepLoss(rate, 1.0 / sigma, self.remove, self._left_out_of_each, self.cap)
        from lastiterate.privacy.losses.gaussian_mixture import binomial_points
        from lastiterate.privacy.losses.mixture_loss import MixtureLoss

        mixture = binomial_points(self.group, rate, 1.0 / sigma)
        return MixtureLoss(mixture, self.remove, self._left_out_of_each, self.cap, self.mirrored)

    @property
    def _left_out_of_each(self) -> float:
        return self.log_left_out - math.log(float(self.counts.sum()))

    @cached_property
    def steps(self) -> list[tuple[float, Loss | Certain]]:
        """The distinct steps, as pairs (count, step)."""
        columns = (column.tolist() for column in (self.counts, self.rates, self.sigmas))
        return [
            (count, Certain(self._certain / sigma) if rate == 1.0 else self._step(rate, sigma))
            for count, rate, sigma in zip(*columns, strict=True)
        ]

    @property
    def _certain(self) -> float:
        """The distance of P and Q, in clipping norms, in a step whose batch has all canaries for certain."""
        return self.group * (2.0 if self.mirrored else 1.0)

    @cached_property
    def _sampled(self) -> tuple[FloatArray, list[Loss]]:
        kinds = [(count, step) for count, step in self.steps if isinstance(step, Loss)]
        return np.array([count for count, _ in kinds]), [step for _, step in kinds]


@dataclass(frozen=True)
class Certain:
    """A step whose batch has the canary for certain: its loss is Gaussian."""

    slope: float
    left_out = 0.0

    def moments(self, order: float) -> tuple[float, float, float]:
        square = self.slope**2
        return 0.5 * order * (order - 1.0) * square, (order - 0.5) * square, square


def loss_cumulant(run: DPSGD) -> LossCumulant:
    """Return K(z) of P over Q for Poisson sampling or full batches. Steps with sample rate 0 are left out."""
    rates, sigmas, counts = distinct(np.asarray(run.sample_rate), np.asarray(run.noise_multiplier), run.steps)
    seen, mirrored = rates > 0.0, run.neighbours == "replace"
    return LossCumulant(counts[seen], rates[seen], sigmas[seen], group=run.group_size, mirrored=mirrored)
