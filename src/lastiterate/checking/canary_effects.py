"""What a canary did to the parameters: along itself, and besides.

``along`` is the part of the displacement in the canary's direction, in units of the clipping norm: the sum of the
weights of the steps that the canary was in, if it was clipped to the norm declared. It is known up to the rest of the
displacement: signs of the canary's coordinates are random, so that a rest r, which has nothing to do with them, has by
Hoeffding's inequality a part along the canary of at most sqrt(2 log(2 / error)) sqrt(sum_k r_k^2 g_k^2).

Worlds that share noise and batches have next to no rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lastiterate.checking.declared import Declared
from lastiterate.common.types import BoolArray, FloatArray, IntArray

_SHARED = 0.05  # the most of the noise of two models that may be left in their difference
_BENT, _STRAIGHT = 1e-4, 1e-3  # rests over effects that are there, and that are not
_SHARE_OF_QUIET = 8
_ROUNDINGS = 10.0  # how many times rounding what a canary does besides must be, to be looked at
_SEEDS = 3  # at so many seeds
_ALIKE = 0.15  # cosine between what it does at two seeds
_SHARES, _CHANCE = 3.0, 4.0  # of a cosine with the noise: what sampling explains, and standard deviations of chance
_NEXT_TO_NONE = 0.01  # or of the effect itself, where there is no noise


@dataclass(frozen=True, eq=False)
class Effect:
    """The effect of one canary on the model of one seed.

    Attributes:
        along: part of the displacement along the canary, over the clipping norm.
        margin: half the width of the interval of ``along``.
        rest: all the rest of the displacement, over the clipping norm.
        direction: of the canary, with norm 1.
        shared: whether both models had the same noise and, but for the canary, the same batches.
        bound: how many standard deviations a sum with random signs may be, at the error that was asked for.
        bend: the rest over what is along the canary, of all coordinates, where only some are looked at.
    """

    number: int
    along: float
    margin: float
    rest: FloatArray
    direction: FloatArray
    shared: bool
    bound: float
    bend: float

    @property
    def spread(self) -> float:
        """The rest over what is along the canary: none where losses are linear."""
        return float(np.linalg.norm(self.rest)) / abs(self.along) if self.along else 0.0

    @property
    def took_part(self) -> bool:
        """Whether the canary was in a batch at all, as far as can be seen."""
        return self.shared and abs(self.along) > max(self.margin, 0.0) and self.along != 0.0


def effect_of(
    number: int, displacement: FloatArray, direction: FloatArray, clip_norm: float, variance: float, error: float
) -> Effect:
    """The effect of a canary; ``variance`` is that of the noise in each parameter, as declared or as found."""
    scaled = -displacement / clip_norm
    along = float(scaled @ direction)
    rest = scaled - along * direction
    size = int(np.count_nonzero(direction))
    squares = float(rest @ rest)
    noise = 2.0 * variance * len(rest) / clip_norm**2
    shared = squares <= _SHARED * noise or squares <= _NEXT_TO_NONE * along**2
    bound = float(np.sqrt(2.0 * np.log(2.0 / error)))
    if size > 1:
        margin = bound * along_at_random(rest, direction)
    else:  # one coordinate: as much as another one, or two models' noise in one
        margin = bound * float(np.sqrt(squares / max(len(rest) - 1, 1) if shared else noise / len(rest)))
    bend = float(np.sqrt(squares)) / abs(along) if along else 0.0
    return Effect(number, along, margin, rest, direction, shared, bound, bend)


def along_at_random(rest: FloatArray, direction: FloatArray) -> float:
    """The standard deviation of the part of a displacement along a direction, over all signs of the direction."""
    return float(np.sqrt(np.sum((rest * direction) ** 2)))


def still_at(effects: Sequence[Effect]) -> Effect:
    """The effect that tells best where there is no curvature: the one that bends most elsewhere."""
    return max((effect for effect in effects if effect.took_part), key=lambda effect: effect.spread)


def quiet(effect: Effect) -> IntArray:
    """An eighth of the canary's coordinates in which its effect is most nearly the same: where there is no curvature.

    In coordinates that no gradient moves the effect is the sum of weights itself. Others differ, in their own ways.
    """
    which = np.flatnonzero(effect.direction)
    shares = effect.along + effect.rest[which] / effect.direction[which]
    order = np.argsort(shares, kind="stable")
    count = max(1, len(which) // _SHARE_OF_QUIET)
    widths = shares[order[count - 1 :]] - shares[order[: len(which) - count + 1]]
    begin = int(np.argmin(widths))
    low, high = shares[order[begin]], shares[order[begin + count - 1]]
    rounding = 1e-9 * max(abs(low), abs(high))
    among = (shares >= low - rounding) & (shares <= high + rounding)
    return np.asarray(which[among], np.int64)


def is_dead(effects: Sequence[Effect], quiet_ones: Sequence[Effect], floor: float) -> bool:
    """Whether effects bend, but not in the quiet coordinates at all: no gradient moves these, whatever the batches.

    ``floor`` is what rounding does to an effect; it must not hide whether they bend.
    """
    pairs = [(one, part) for one, part in zip(effects, quiet_ones, strict=True) if one.took_part]
    bent = [(one, part) for one, part in pairs if one.spread > max(_BENT, 10.0 * floor / abs(one.along))]
    return bool(bent) and all(part.spread < _STRAIGHT * one.spread + floor / abs(one.along) for one, part in bent)


def restricted(effect: Effect, which: IntArray) -> Effect:
    """The effect as these coordinates of the canary alone show it."""
    part = effect.direction[which]
    norm = float(np.linalg.norm(part))
    scaled = (effect.along * part + effect.rest[which]) / norm
    direction = part / norm
    along = float(scaled @ direction)
    rest = scaled - along * direction
    margin = effect.bound * along_at_random(rest, direction)
    return Effect(effect.number, along, margin, rest, direction, effect.shared, effect.bound, effect.bend)


def in_tensor(effect: Effect, where: slice) -> float:
    """``along`` as this tensor alone shows it."""
    part = effect.direction[where]
    return effect.along + float(effect.rest[where] @ part) / float(part @ part)


def share_batches(effects: Sequence[Effect], models: FloatArray, clip_norm: float, floor: float) -> bool:
    """Whether worlds share batches too, by what a canary does besides; ``models`` are those without it, one a row.

    Curvature answers one canary in much the same way at every seed, and division by another batch size scales the noise
    of the model itself. Other batches have next to nothing in common with either, and may hide in noise that is shared.
    """
    some = [effect for effect in effects if np.linalg.norm(effect.rest) > _ROUNDINGS * floor]
    if len(some) < _SEEDS:
        return True
    rests = _units(np.array([effect.rest for effect in some]))
    if (float(np.sum(rests.sum(axis=0) ** 2)) - len(rests)) / (len(rests) * (len(rests) - 1)) > _ALIKE:
        return True
    around = models - models.mean(axis=0)
    own = abs(float(np.mean(np.sum(rests * _units(around[[effect.number for effect in some]]), axis=1))))
    # Of the noise between models, what other batches can make up, and chance.
    noise = 2.0 * float(np.mean(np.sum(around**2, axis=1)))
    share = sum(float(effect.rest @ effect.rest) for effect in some) / len(some) * clip_norm**2 / noise
    return bool(own > _SHARES * np.sqrt(share) + _CHANCE / np.sqrt(rests.size))


def _units(rows: FloatArray) -> FloatArray:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300))


# Parameters that no gradient moves, such as weights of pixels that are always black: they show steps as they are.
#
# What a canary does there is the sum of its steps' weights, to the last digit, whatever curvature does elsewhere. So
# they are known by their effects, which are all the same where others differ; their noise is just that declared.

_FEWEST = 8  # parameters that agree by accident are fewer
_SHARP = 0.01  # of how much effects differ: within so little of each other few agree by accident
_STANDS_OUT = 4  # times as many as agree anywhere else
_ROUNDINGS_DEAD = 1.5
_EXACT = 1e-9  # relative, of float64


def dead_parameters(effects: Sequence[Effect], floor: float) -> IntArray | None:
    """Parameters without gradients, as all effects that bend show them; None: there are none, or none is seen.

    ``floor`` is what rounding does to an effect.
    """
    found: IntArray | None = None
    for effect in effects:
        which = np.flatnonzero(effect.direction)
        if not effect.took_part or len(which) < 2 * _FEWEST:
            continue
        shares = effect.along + effect.rest[which] / effect.direction[which]
        width = _ROUNDINGS_DEAD * floor + _EXACT * abs(effect.along)
        if width > _SHARP * float(shares.std()):
            continue  # too straight, or rounded too coarsely, to tell them
        same = which[_densest(shares, width)]
        found = same if found is None else np.intersect1d(found, same)
    return None if found is None or len(found) < _FEWEST else np.asarray(found, np.int64)


def _densest(shares: FloatArray, width: float) -> IntArray:
    """Where most numbers agree, if others differ: curvature that is the same for many makes groups, too."""
    among = _most_alike(shares, width)
    others = shares[~among]
    if len(others) < _FEWEST or np.count_nonzero(among) < _STANDS_OUT * np.count_nonzero(_most_alike(others, width)):
        return np.zeros(0, np.int64)
    if float(np.median(shares)) > shares[among].max():  # what is pulled least is not pulled at all
        return np.zeros(0, np.int64)
    return np.flatnonzero(among)


def _most_alike(shares: FloatArray, width: float) -> BoolArray:
    order = np.sort(shares)
    counts = np.searchsorted(order, order + width, "right") - np.arange(len(order))
    begin = order[int(np.argmax(counts))]
    return np.asarray((shares >= begin) & (shares <= begin + width))


# How much of a step's effect curvature has taken away until the end, as canaries show it.
#
# Where losses are curved, what a step did is pulled back by the steps after it. That happens to noise and canary
# alike, so that the effect of a canary says how much less noise a correct training may have. The effect must be a sum
# of weights of some steps (of the batches that the canary was in); how far it is below such a sum is contraction.

SLACK = 0.01  # relative: of float32, and of curvature that does not show besides the canary
_CLOSE = 0.003  # relative distance of an effect from a sum of weights that is no accident
_SPREADS = 3.0  # how many times the rest of an effect the contraction along it may be
_FAR = 0.2  # of a sum of weights: how much of it is missing where it matters what took it
_STRAIGHT_CONTRACTION = 0.02  # rest of an effect over what is missing along it; that of curvature is larger, by far
_BENT_CONTRACTION = 0.08  # the least rest of an effect over what curvature took along it, in models of several tensors
_DOUBTFUL = 0.1  # how often effects of a training without curvature are taken for smaller than they should be
_MOSTLY = 0.8  # of what canaries should do on average, from which on they seem to have done it
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
    return len(bends) >= _SEEDS and float(np.median(bends)) < _STRAIGHT_CONTRACTION


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
    lost = float(np.median([effect.bend for effect in effects])) / _BENT_CONTRACTION if several else 1.0
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
