"""The privacy loss of Poisson sampling with truncated batches (docs/method.md, "Truncated Poisson sampling").

Let J of the other n - 1 examples be drawn. If J < B, the batch is not full, and the step is one of Poisson sampling. If
J >= B, the batch is full: the canary takes another example's place with probability ``full_rate``. The gradients of two
neighbours then differ by the canary's and that of the other example, so each is within 2 clipping norms of what both
have in common. J has the same distribution with and without the canary. An adversary who is told whether J >= B knows
the kind of each step, and its loss is that of a step of this kind.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from lastiterate.common.types import FloatArray
from lastiterate.privacy.losses.gaussian_mixture import binomial_points
from lastiterate.privacy.losses.loss_cumulant import LossCumulant
from lastiterate.privacy.losses.mixture_loss import MixtureLoss
from lastiterate.privacy.losses.step_loss import Loss, Nodes
from lastiterate.privacy.mixtures.law import distinct, full_batches
from lastiterate.run import DPSGD

_LEAST_LEFT_OUT = -10.0  # log of the largest probability left out of full batches


@dataclass(frozen=True, eq=False)
class KindNodes(Nodes):
    """The nodes of all kinds of a step, concatenated."""

    of_kinds: tuple[Nodes, ...]


@dataclass(frozen=True, eq=False)
class KnownKindLoss(Loss):
    """The loss of a step of a random kind, if the kind is known. ``kinds`` are pairs (probability, loss).

    ``missing`` is the probability of kinds that are left out.
    """

    kinds: tuple[tuple[float, Loss], ...]
    missing: float

    @cached_property
    def mirrored(self) -> bool:  # type: ignore[override]
        return any(loss.mirrored for _, loss in self.kinds)

    @property
    def last(self) -> float:
        return max(loss.last for _, loss in self.kinds)

    @property
    def largest(self) -> float:
        return max(loss.largest for _, loss in self.kinds)

    @property
    def is_capped(self) -> bool:
        return any(loss.is_capped for _, loss in self.kinds)

    @cached_property
    def above(self) -> tuple[float, float]:
        capped = [(share, loss.above) for share, loss in self.kinds if loss.is_capped]
        return sum(share * above[0] for share, above in capped), sum(share * above[1] for share, above in capped)

    @cached_property
    def outside(self) -> tuple[float, float]:
        both = [(share, loss.outside) for share, loss in self.kinds]
        of_p, of_q = (self.missing + sum(share * outside[which] for share, outside in both) for which in (0, 1))
        return of_p, of_q

    @cached_property
    def left_out(self) -> float:
        return self.missing + sum(share * loss.left_out for share, loss in self.kinds)

    def moved_at(self, nodes: Nodes) -> FloatArray:
        return np.concatenate(
            [loss.moved_at(each) for (_, loss), each in zip(self.kinds, _of_kinds(nodes), strict=True)]
        )

    def log_error(self, nodes: Nodes, order: float, frequency: float) -> float:
        errors = [
            math.log(share) + loss.log_error(each, order, frequency)
            for (share, loss), each in zip(self.kinds, _of_kinds(nodes), strict=True)
        ]
        return float(np.logaddexp.reduce(errors))

    def nodes(self, order: float, frequency: float, fineness: float = 1.0) -> Nodes:
        each = tuple(loss.nodes(order, frequency, fineness) for _, loss in self.kinds)
        log_shares = [math.log(share) for share, _ in self.kinds]
        return KindNodes(
            np.concatenate([nodes.x for nodes in each]),
            np.concatenate([nodes.loss for nodes in each]),
            np.concatenate([nodes.log_weight + log for nodes, log in zip(each, log_shares, strict=True)]),
            np.empty(0),
            each,
        )


def _of_kinds(nodes: Nodes) -> tuple[Nodes, ...]:
    assert isinstance(nodes, KindNodes)
    return nodes.of_kinds


@dataclass(frozen=True, eq=False)
class TruncatedCumulant(LossCumulant):
    """K(z) for steps of one rate, which have full batches with probability ``full``.

    If so many steps are so rarely full that all of it is less than the losses left out, full batches are left out too.
    """

    full: float = field(kw_only=True)
    full_rate: float = field(kw_only=True)

    def other_direction(self) -> LossCumulant:
        return self if self.mirrored else replace(self, remove=False)

    def leaving_out(self, log_mass: float) -> LossCumulant:
        fewer = replace(self, log_left_out=log_mass)
        return fewer if fewer.remove or fewer._cannot_be_capped else fewer.capped_from_below()

    def largest_loss(self) -> float:
        return math.inf if self.full else super().largest_loss()

    @cached_property
    def core(self) -> float:
        if not self.mirrored:
            return super().core
        return LossCumulant(self.counts, self.rates, self.sigmas, mirrored=True).core

    @property
    def participation(self) -> FloatArray:
        return self.rates * (1.0 - self.full) + self.full * self.full_rate

    @property
    def is_unbounded(self) -> bool:
        return True

    @property
    def _cannot_be_capped(self) -> bool:
        return super()._cannot_be_capped or not self._leaves_out_full

    @property
    def _leaves_out_full(self) -> bool:
        return float(self.counts.sum()) * self.full <= 0.5 * math.exp(self.log_left_out)

    @property
    def _left_out_of_each(self) -> float:
        return super()._left_out_of_each - math.log(2.0)

    def _step(self, rate: float, sigma: float) -> Loss:
        rarely = min(self._left_out_of_each - math.log(self.full), _LEAST_LEFT_OUT)  # the share of full batches counts
        full = MixtureLoss(binomial_points(1, self.full_rate, 2.0 / sigma), self.remove, rarely, mirrored=True)
        if self.full == 1.0:
            return full
        usual = super()._step(rate, sigma)
        if self._leaves_out_full:
            return KnownKindLoss(((1.0 - self.full, usual),), self.full)
        return KnownKindLoss(((1.0 - self.full, usual), (self.full, full)), 0.0)


def truncated_cumulant(run: DPSGD) -> TruncatedCumulant:
    """Return K(z) of P over Q for truncated Poisson sampling."""
    rates, sigmas, counts = distinct(np.asarray(run.sample_rate), np.asarray(run.noise_multiplier), run.steps)
    full, full_rate = full_batches(run)
    return TruncatedCumulant(
        counts, rates, sigmas, mirrored=run.neighbours == "replace", full=full, full_rate=full_rate
    )
