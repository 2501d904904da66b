"""The cumulant generating function of the privacy loss when some iterates are released: one term for each block."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lastiterate.privacy.losses.condensed import Condensed
from lastiterate.privacy.losses.loss_cumulant import Certain, LossCumulant
from lastiterate.privacy.losses.mixture import Mixture
from lastiterate.privacy.losses.mixture_loss import MixtureLoss
from lastiterate.privacy.losses.mixture_of_law import mixture_of
from lastiterate.privacy.losses.step_loss import Loss
from lastiterate.privacy.mixtures.law import Law


@dataclass(frozen=True, eq=False)
class BlockCumulant(LossCumulant):
    """K(z) of blocks: ``counts[j]`` of them have the loss of ``mixtures[j]``, or a Gaussian one with that slope.

    In ``rates`` there is the probability that a block has the canary at all, and in ``sigmas`` its noise in units of
    what one more canary adds. If it ``is_rounded`` some of the mixtures are only bounds.
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
        """Where the density of the loss may be sharp: where no block has the canary."""
        if self.mirrored:
            return super().edge()
        total = float(self.counts @ np.log(np.maximum([_unseen(mixture) for mixture in self.mixtures], 1e-16)))
        return total if self.remove else -total

    @cached_property
    def core(self) -> float:
        """The scale of what the loss mostly is, without the rare large ones."""
        return self._core_of_kinds()

    def _condensed(self, nodes: int) -> Condensed | None:
        return None

    @property
    def _cannot_be_capped(self) -> bool:
        return self.mirrored or bool(np.any(self.rates == 1.0))


def _unseen(mixture: Mixture | float) -> float:
    return 0.0 if isinstance(mixture, float) else mixture.unseen


def block_cumulant(laws: list[tuple[float, Law]], *, mirrored: bool, up: bool = True) -> BlockCumulant:
    """The direction "remove" of blocks with these laws, so many of each; rounded up, or down, where that is needed."""
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
