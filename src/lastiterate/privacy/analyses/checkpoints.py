"""The pair of several released iterates: the privacy losses of the blocks between them add up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.privacy.analyses.composition import CompositionPair, pair_of_steps
from lastiterate.privacy.analyses.no_amplification import TOLD_NOTHING, KnownParticipations, told_run
from lastiterate.privacy.losses.composition_values import fnr_of
from lastiterate.privacy.losses.gaussian_mixture import Mixture
from lastiterate.privacy.losses.loss_cumulant import Certain, Condensed, LossCumulant, loss_cumulant
from lastiterate.privacy.losses.mixture_loss import MixtureLoss, mixture_of
from lastiterate.privacy.losses.step_loss import Loss
from lastiterate.privacy.mixtures.law import Law, law_of, require_independence
from lastiterate.privacy.mixtures.pairs import TOO_LITTLE_NOISE, NothingPair, pair_of, replaced_pair_of
from lastiterate.privacy.mixtures.released_blocks import released_laws, require_independent_noise, tells_every_step
from lastiterate.run import DPSGD

if TYPE_CHECKING:
    from lastiterate.privacy.curve import Pair


# Cumulant of the privacy loss: one term for each block between released iterates.


@dataclass(frozen=True, eq=False)
class BlockCumulant(LossCumulant):
    """K(z) of blocks: ``counts[j]`` blocks have the loss of ``mixtures[j]``, or a Gaussian loss if that is a slope.

    ``rates`` holds the probability that a block has the canary at all. ``sigmas`` holds the noise of a block in units
    of the change by one more canary. If ``is_rounded``, some of the mixtures are only bounds.
    """

    mixtures: tuple[Mixture | float, ...] = ()
    is_rounded: bool = False

    @cached_property
    def steps(self) -> list[tuple[float, Loss | Certain]]:
        """Kinds of blocks, each with its number."""
        return [
            (count, self._loss(mixture)) for count, mixture in zip(self.counts.tolist(), self.mixtures, strict=True)
        ]

    def _loss(self, mixture: Mixture | float) -> Loss | Certain:
        if isinstance(mixture, float):
            return Certain(mixture * self._certain)
        return MixtureLoss(mixture, self.remove, self._left_out_of_each, self.cap, self.mirrored)

    def edge(self) -> float:
        """Return the loss at which the density of the loss may be sharp: the loss if no block has the canary."""
        if self.mirrored:
            return super().edge()
        total = float(self.counts @ np.log(np.maximum([_unseen(mixture) for mixture in self.mixtures], 1e-16)))
        return total if self.remove else -total

    @cached_property
    def core(self) -> float:
        """The scale of the bulk of the loss, without the rare large losses."""
        return self._core_of_kinds()

    def _condensed(self, nodes: int) -> Condensed | None:
        return None

    @property
    def _cannot_be_capped(self) -> bool:
        return self.mirrored or bool(np.any(self.rates == 1.0))


def _unseen(mixture: Mixture | float) -> float:
    return 0.0 if isinstance(mixture, float) else mixture.unseen


def block_cumulant(laws: list[tuple[float, Law]], *, mirrored: bool, up: bool = True) -> BlockCumulant:
    """Return the direction "remove" of blocks with these laws and their counts.

    Laws are rounded up, or down, if needed.
    """
    counts, rates, sigmas, mixtures, is_rounded = [], [], [], [], False
    for count, law in laws:
        mixture: Mixture | float = law.high / law.noise
        if law.low < law.high:
            mixture, is_bound = mixture_of(law, up=up)
            is_rounded |= is_bound
        if mixture == 0.0:
            continue
        counts.append(count)
        mixtures.append(mixture)
        rates.append(1.0 - _unseen(mixture))
        sigmas.append(1.0 / (mixture if isinstance(mixture, float) else mixture.jump))
    return BlockCumulant(
        *(np.array(counts), np.array(rates), np.array(sigmas)),
        mirrored=mirrored,
        mixtures=tuple(mixtures),
        is_rounded=is_rounded,
    )


# Pair of the released iterates.

_ERROR = 2e-9  # of max(1, epsilon): lines agree to half of this error


def released_pair(run: DPSGD) -> Pair:
    """Return the pair of distributions of several released iterates, for linear losses."""
    mirrored = run.neighbours == "replace"
    require_independent_noise(run)
    if tells_every_step(run):
        require_independence(run)
        return pair_of_steps(loss_cumulant(run))
    laws = released_laws(run)
    if all(law.low == law.high for _, law in laws):  # Gaussian mechanisms compose to one
        mu = math.sqrt(math.fsum(count * (law.high / law.noise) ** 2 for count, law in laws))
        none = np.empty(0)
        return pair_of(Law(1.0, 2.0 * mu if mirrored else mu, none, none, none)) if mu else NothingPair()
    if len(laws) == 1 and laws[0][0] == 1.0:
        return replaced_pair_of(laws[0][1]) if mirrored else pair_of(laws[0][1])
    cumulant = block_cumulant(laws, mirrored=mirrored)
    if cumulant.is_rounded and mirrored:
        raise ValueError(TOO_LITTLE_NOISE)
    return ReleasedPair(cumulant, run, cumulant.is_rounded)


@dataclass(frozen=True)
class ReleasedPair(CompositionPair):
    """Sums of privacy losses of blocks, in both directions."""

    run: DPSGD
    is_rounded: bool = False  # laws are rounded up

    def _bracket(self, log_delta: float) -> tuple[float, float]:
        try:
            value = self._by_two_lines(log_delta)
        except ArithmeticError:  # Unreliable, or out of the range of floats: use bounds that always hold
            return self._proved(log_delta, None)
        error = _ERROR * max(1.0, value)
        return self._lower(value, log_delta) - error, value + error

    def _lower(self, value: float, log_delta: float) -> float:
        """Return the value; if laws are rounded up, the value of laws rounded down."""
        if not self.is_rounded:
            return value
        down = ReleasedPair(block_cumulant(released_laws(self.run), mirrored=False, up=False), self.run)
        return min(value, float(down.epsilon(np.float64(log_delta))))

    def _fnr(self, fpr: float) -> float:
        try:
            return min(max(fnr_of(self.cumulant, fpr), 0.0), 1.0 - fpr)
        except ArithmeticError:  # Unreliable, or out of the range of floats: use bounds that always hold
            return float(told_run(self.run).fnr(np.float64(fpr)))

    @cached_property
    def _told(self) -> tuple[KnownParticipations, KnownParticipations]:
        """A trivial lower bound, and an upper bound on the privacy loss of all iterates."""
        return TOLD_NOTHING, told_run(self.run)

    @cached_property
    def _last_iterate(self) -> Pair:
        """The pair of the last released iterate, which reveals at most as much as all of them."""
        law = law_of(self.run)
        if not self.cumulant.mirrored:
            return pair_of(law)
        return NothingPair() if law.low < 0.0 < law.high else replaced_pair_of(law)
