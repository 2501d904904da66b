"""Privacy of several released iterates: the privacy losses of the blocks of steps between them add up."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lastiterate.privacy.analyses.composition import EstimatedPair, pair_of_all_iterates
from lastiterate.privacy.curve import Pair
from lastiterate.privacy.losses.gaussian_mixture import Mixture
from lastiterate.privacy.losses.loss_cumulant import Certain, Condensed, LossCumulant
from lastiterate.privacy.losses.mixture_loss import MixtureLoss, mixture_of
from lastiterate.privacy.losses.step_loss import Loss
from lastiterate.privacy.mixtures.law import BLOCKS, Law, law_of, released_laws
from lastiterate.privacy.mixtures.pairs import TOO_LITTLE_NOISE, NothingPair, pair_of, replaced_pair_of
from lastiterate.run import DPSGD
from lastiterate.supported_runs import require_supported, reveals_every_step

# Cumulant of the privacy loss: one term for each block between released iterates.


@dataclass(frozen=True, eq=False)
class BlockCumulant(LossCumulant):
    """The cumulant generating function K(z) of the privacy loss of blocks of steps.

    ``counts[j]`` blocks have the loss of ``mixtures[j]``. If ``mixtures[j]`` is a number, the loss is Gaussian and the
    number is mu. ``rates`` holds the probability that a block has the canary. ``sigmas`` holds the noise, in units of
    the largest gap between two values of the canary's signal.
    """

    mixtures: tuple[Mixture | float, ...] = ()
    is_rounded: bool = False

    @cached_property
    def steps(self) -> list[tuple[float, Loss | Certain]]:
        return [
            (count, self._loss(mixture)) for count, mixture in zip(self.counts.tolist(), self.mixtures, strict=True)
        ]

    def _loss(self, mixture: Mixture | float) -> Loss | Certain:
        if isinstance(mixture, float):
            return Certain(mixture * self._certain)
        return MixtureLoss(mixture, self.remove, self._left_out_of_each, self.cap, self.mirrored)

    def edge(self) -> float:
        if self.mirrored:
            return super().edge()
        total = float(self.counts @ np.log(np.maximum([_unseen(mixture) for mixture in self.mixtures], 1e-16)))
        return total if self.remove else -total

    @cached_property
    def core(self) -> float:
        return self._core_of_kinds()

    def _condensed(self, nodes: int) -> Condensed | None:
        return None

    @property
    def _cannot_be_capped(self) -> bool:
        return self.mirrored or bool(np.any(self.rates == 1.0))


def _unseen(mixture: Mixture | float) -> float:
    return 0.0 if isinstance(mixture, float) else mixture.unseen


def block_cumulant(laws: list[tuple[float, Law]], *, mirrored: bool, up: bool = True) -> BlockCumulant:
    """Return K(z) of P over Q. ``laws`` has pairs (number of blocks, law). A law without an exact mixture is
    replaced by an upper bound, or by a lower bound if ``up`` is False.
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


def released_pair(run: DPSGD) -> Pair:
    """Return the pair of distributions of several released iterates, for linear losses."""
    mirrored = run.is_mirrored
    require_supported(run, BLOCKS)
    if reveals_every_step(run):
        return pair_of_all_iterates(run)
    laws = released_laws(run)
    if all(law.low == law.high for _, law in laws):  # several Gaussian mechanisms equal a single one
        mu = math.sqrt(math.fsum(count * (law.high / law.noise) ** 2 for count, law in laws))
        return pair_of(Law(1.0, 2.0 * mu if mirrored else mu)) if mu else NothingPair()
    if len(laws) == 1 and laws[0][0] == 1.0:
        return replaced_pair_of(laws[0][1]) if mirrored else pair_of(laws[0][1])
    cumulant = block_cumulant(laws, mirrored=mirrored)
    if cumulant.is_rounded and mirrored:
        raise ValueError(TOO_LITTLE_NOISE)
    return ReleasedPair(cumulant, run, cumulant.is_rounded)


@dataclass(frozen=True)
class ReleasedPair(EstimatedPair):
    """The sum of the privacy losses of all blocks, for P over Q and for Q over P."""

    is_rounded: bool = False  # the laws of some blocks are rounded up

    def _at_least(self, value: float, log_delta: float) -> float:
        if not self.is_rounded:
            return value
        down = ReleasedPair(block_cumulant(released_laws(self.run), mirrored=False, up=False), self.run)
        return min(value, float(down.epsilon(np.float64(log_delta))))

    @cached_property
    def _last_iterate(self) -> Pair:
        """The pair of the last released iterate alone, which reveals at most as much as all of them."""
        law = law_of(self.run)
        if not self.cumulant.mirrored:
            return pair_of(law)
        return NothingPair() if law.low < 0.0 < law.high else replaced_pair_of(law)
