"""How much of a step's effect curvature has taken away until the end, as canaries show it.

Where losses are curved, what a step did is pulled back by the steps after it. That happens to noise and canary alike,
so that the effect of a canary says how much less noise a correct training may have. The effect must be a sum of weights
of some steps (of the batches that the canary was in); how far it is below such a sum is contraction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lastiterate.arrays import FloatArray
from lastiterate.checking.declared import Declared
from lastiterate.checking.effects import Effect

SLACK = 0.01  # relative: of float32, and of curvature that does not show besides the canary
_CLOSE = 0.003  # relative distance of an effect from a sum of weights that is no accident
_SPREADS = 3.0  # how many times the rest of an effect the contraction along it may be
_FAR = 0.2  # of a sum of weights: how much of it is missing where it matters what took it
_STRAIGHT = 0.02  # rest of an effect over what is missing along it; that of curvature is larger, by far
_BENT = 0.08  # the least rest of an effect over what curvature took along it, in models of several tensors
_DOUBTFUL = 0.1  # how often effects of a training without curvature are taken for smaller than they should be
_MOSTLY = 0.8  # of what canaries should do on average, from which on they seem to have done it
_SEEDS = 3  # at which effects must show it
UNKNOWN = 0.55  # the least noise of a correct training where effects do not tell how much curvature took
UNKNOWN_OF_A_TENSOR = 0.1  # the same of one tensor, which may be pulled more than others


@dataclass(frozen=True)
class Fit:
    """An effect beside the nearest sum of weights that explains it.

    Attributes:
        sum: the nearest sum of weights; None: there are too many to list.
        ratio: the effect over it.
        slack: how far from 1 the ratio may be by curvature and rounding.
        most: the largest sum of which the effect may be what curvature left.
        near: the effect over the sum that it is nearest to, above or below.
    """

    sum: float | None
    ratio: float
    slack: float
    most: float
    near: float = 1.0

    @property
    def explained(self) -> bool:
        """Whether curvature as it shows elsewhere explains the effect."""
        return abs(self.ratio - 1.0) <= self.slack

    @property
    def is_close(self) -> bool:
        """Whether the effect is such a sum so closely that curvature is no explanation for another one."""
        return self.sum is not None and self.slack < 2.0 * SLACK and abs(self.ratio - 1.0) < _CLOSE


def slack_of(effect: Effect) -> float:
    """How far the effect may be from a sum of weights, relatively."""
    return SLACK + _SPREADS * effect.spread + effect.margin / max(abs(effect.along), 1e-300)


def fit(effect: Effect, declared: Declared, clip: float = 1.0) -> Fit:
    """The sum of weights nearest to an effect; ``clip`` is the norm to which the canary was really clipped."""
    return _fit(effect, declared.sums, clip)


def fit_freely(effect: Effect, declared: Declared, clip: float = 1.0) -> Fit:
    """The same among sums of any steps' weights, also those that the declared sampling does not allow."""
    return _fit(effect, declared.free_sums, clip)


def _fit(effect: Effect, sums: FloatArray | None, clip: float) -> Fit:
    along, slack = effect.along / clip, slack_of(effect)
    if sums is None:
        return Fit(None, 1.0, slack, abs(along) / max(1.0 - slack, 0.2))
    some = sums[sums != 0.0]
    ratios = along / some
    nearest = int(np.argmin(np.abs(ratios - 1.0)))
    if abs(ratios[nearest] - 1.0) > slack and (ratios < 1.0).any():  # if none explains it, curvature took something
        nearest = int(np.argmax(np.where(ratios < 1.0, ratios, -np.inf)))
    least = min(1.0 - slack, _largest_below_one(ratios))
    possible = some[(ratios >= least) & (ratios <= 1.0 + slack)]
    most = float(possible.max()) if len(possible) else float(some[nearest])
    near = float(ratios[int(np.argmin(np.abs(np.log(np.maximum(ratios, 1e-300)))))])
    return Fit(float(some[nearest]), float(ratios[nearest]), slack, most, near)


def _largest_below_one(ratios: FloatArray) -> float:
    below = ratios[ratios <= 1.0 + SLACK]
    return float(below.max()) if len(below) else 1.0


def are_short(effects: Sequence[Effect], declared: Declared, clip: float) -> bool:
    """Whether effects are far below sums of weights, and yet straight: curvature bends what it takes from.

    Unless it is the same in all directions, as that of a mean of points is: ask for models of several tensors only.
    """
    pairs = [(effect, 1.0 - fit(effect, declared, clip).ratio) for effect in effects if effect.took_part]
    bends = [effect.bend / lost for effect, lost in pairs if lost > _FAR]
    return len(bends) >= _SEEDS and float(np.median(bends)) < _STRAIGHT


def least_noise(
    effects: Sequence[Effect], declared: Declared, clip: float, error: float, several: bool
) -> tuple[float, float]:
    """The least ratio of variances that contraction can bring about in a correct training, and the likely one.

    ``several``: there are tensors that curvature does not pull alike, so that it bends what it takes from.

    Contraction goes on from step to step. If N participations fall on steps at random, all of them are in the last
    error^(1/N) of the training with probability ``error``: what was lost over that part is lost so many times in all.
    """
    if declared.run.steps == 1:
        return 1.0, 1.0
    fits = [fit(effect, declared, clip) for effect in effects]
    if declared.is_plain or declared.is_certain:
        kept = min(1.0, *(effect.along / clip / each.most for effect, each in zip(effects, fits, strict=True)))
        likely = [min(each.ratio, 1.0) for each in fits]
    else:  # sums lie too close to tell what is missing: as much as effects are not straight
        kept = min(max(1.0 - each.slack, 0.0) for each in fits)
        likely = [max(1.0 - effect.spread, 0.0) for effect in effects]
    tells = True
    if declared.is_certain:
        power = 1.0
    else:
        mean = float(np.mean(np.abs(declared.weights)))
        taken = max(len(fits), sum(each.most for each in fits) / mean)
        power = 1.0 / error ** (1.0 / taken)
        tells = (
            declared.run.steps ** -float(taken) < error
        )  # else all may have been in the last step, which shows nothing
    least = kept ** (2.0 * power)
    # What a model of several tensors may lose that bends canaries no more than it does.
    lost = float(np.median([effect.bend for effect in effects])) / _BENT if several else 1.0
    straight = (1.0 - min(lost, 1.0)) ** 2
    by_participation = least_by_participation(effects, declared, clip, error)
    if by_participation < 1.0:
        least = min(least, max(straight, by_participation))
    elif not tells or declared.sums is None or not (declared.is_plain or declared.is_certain):
        did = min(1.0, _share(effects, declared, clip) / _MOSTLY)
        least = min(least, max(straight, UNKNOWN * did ** _power(declared)))
    return float(np.clip(least, declared.last, 1.0)), float(np.mean(likely)) ** 2


def least_by_participation(effects: Sequence[Effect], declared: Declared, clip: float, error: float) -> float:
    """What effects leave of the noise that are smaller than those of canaries in so many batches mostly are.

    If contraction leaves a part of all that canaries do, then of the variance no less than a power of it.
    """
    expected = len(effects) * float(np.sum(declared.weights * declared.rates))
    found = expected * _share(effects, declared, clip)
    if found > expected - declared.reach(len(effects), _DOUBTFUL):
        return 1.0
    share = max(found, 0.0) / (expected + declared.reach(len(effects), error))
    return float(share ** _power(declared))


def _share(effects: Sequence[Effect], declared: Declared, clip: float) -> float:
    """How much canaries did, of what they do on average if nothing takes from it."""
    on_average = float(np.sum(declared.weights * declared.rates))
    return float(np.mean([effect.along for effect in effects])) / clip / on_average


def _power(declared: Declared) -> int:
    """Of a part of all effects, so that it is no more than that of the variance: two, by Jensen's inequality.

    Where early steps weigh more than late ones, most of the variance is theirs, of which contraction takes most.
    """
    return 2 if declared.is_plain else 4
