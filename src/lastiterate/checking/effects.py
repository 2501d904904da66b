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

from lastiterate.arrays import FloatArray, IntArray

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
