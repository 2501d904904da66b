"""What can be checked of a training with Adam, whose steps do not tell how large gradients are.

Adam divides by the running size of its gradients: with half of the noise, models differ from each other as before, and
a canary of half the size may have any effect. What does not depend on the optimizer can be seen all the same: that two
gradients which must be clipped to one do the same, at how many seeds a canary does anything, and that noise is
everywhere. And against the differences between models, a canary must not count more than in all its batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lastiterate.checking import clipping, noise, optimizer_effect
from lastiterate.checking.canary_effects import Effect, effect_of
from lastiterate.checking.check_result import Row, Status, cannot_tell, loud, not_checked, spread
from lastiterate.checking.clipping import PRESENCE
from lastiterate.checking.gradient_checks import taking_part_row
from lastiterate.checking.measurements import Measured
from lastiterate.common.types import FloatArray

LARGE = "clipping of large gradients"
_JUST_ABOVE = 1.05  # clipping norms of a canary that is clipped, and next to nothing is taken from it
_SAME = 0.02  # relative difference between effects of gradients that are clipped to one
_MORE = 1.3  # times what is declared: that far Adam's first steps may count more than on average
_WHY_NOT = (
    "Adam's steps do not tell how large gradients are: check the same training with SGD in its place, as noise, "
    "clipping and sampling come before the optimizer"
)
_TOO_RARE = "the canary was in no batch of any model: more models, more steps, or a higher sample rate"


def adam_rows(measured: Measured, *, with_gradients: bool) -> tuple[list[Row], list[str]]:
    """Noise, clipping and participation, as far as they show, and what does not."""
    if not with_gradients:
        return _example_rows(measured), []
    like, clip_norm = measured.like, measured.declared.run.clip_norm
    direction = spread(like, measured.moved, measured.trainings.seed)
    found: list[FloatArray] = []
    for number in range(min(len(measured.plain), measured.plan.pairs)):
        effect = measured.trainings.effect(number, _JUST_ABOVE * clip_norm * direction, "with a canary on all tensors")
        if effect is None:
            return [*_noise_rows(measured, []), clipping.not_finite_row(), *_not_checked()], []
        found.append(effect)
    effects = [_effect(measured, number, each, direction) for number, each in enumerate(found)]
    rows = [
        *_noise_rows(measured, effects),
        *_unmoved_rows(measured, any(each.any() for each in found)),
        noise.repeated_row(measured.plain, like, measured.moved, measured.error, np.ones(len(measured.moved))),
        _clipping_row(measured, effects, direction),
        taking_part_row(measured, found),
    ]
    return [*rows, *_not_checked()], []


def _example_rows(measured: Measured) -> list[Row]:
    """With an example of the trainer's own."""
    effects: list[FloatArray] = []
    for number in range(min(len(measured.plain), measured.plan.pairs)):
        effect = measured.trainings.effect(number, None, "with the canary")
        if effect is None:
            return [*_noise_rows(measured, []), clipping.not_finite_row(), *_not_checked()]
        effects.append(effect)
    return [*_noise_rows(measured, []), taking_part_row(measured, effects), *_not_checked()]


def _not_checked() -> list[Row]:
    names = (clipping.NORM, clipping.SMALLER, PRESENCE, optimizer_effect.NAME)
    return [not_checked(name, _WHY_NOT) for name in names]


def _effect(measured: Measured, number: int, displacement: FloatArray, direction: FloatArray) -> Effect:
    clip_norm = measured.declared.run.clip_norm
    return effect_of(number, displacement, direction, clip_norm, measured.variance, measured.error)


def _noise_rows(measured: Measured, effects: Sequence[Effect]) -> list[Row]:
    """How much canaries count, against the differences between models, over the most that chance allows.

    Whatever Adam divides by, it divides both. Sampling adds to the differences, so that this is never too much.
    """
    declared, count = measured.declared, len(effects)
    found = measured.plain[:, np.concatenate([_within(measured, tensor) for tensor in measured.moved])]
    scale = float(np.sqrt(found.var(axis=0, ddof=1).mean() / declared.variance))
    expected = float(np.sum(declared.weights * declared.rates))
    if not count or not scale or expected <= 0.0:
        return [cannot_tell(noise.NAME, None, _WHY_NOT)]
    most = min(count * expected + declared.reach(count, measured.error), count * declared.most)
    summed = sum(effect.along for effect in effects) / scale
    margin = float(np.sqrt(sum(effect.margin**2 for effect in effects))) / scale
    low, high = (summed - margin) / most, (summed + margin) / most
    if low <= _MORE:
        return [cannot_tell(noise.NAME, None, _WHY_NOT)]
    why = (
        "against the differences between models, canaries count more than in all batches that they may be in: look at "
        "the noise, at the norm that is clipped to, and at how batches are drawn"
    )
    return [Row(noise.NAME, None, summed / most, 1.0, low, high, "fault", why)]


def _within(measured: Measured, tensor: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    where = measured.like.slices[tensor]
    return np.arange(where.start, where.stop)


def _unmoved_rows(measured: Measured, took_part: bool) -> list[Row]:
    """Tensors that are the same in all models have no noise, if a canary moves them."""
    if not took_part:
        return [noise.unmoved_row(measured.like.names[tensor], None) for tensor in measured.unmoved]
    if not measured.unmoved:
        return []
    like, run = measured.like, measured.declared.run
    alone = spread(like, measured.unmoved, measured.trainings.seed + 1)
    moves = False
    for number in range(min(len(measured.plain), measured.plan.pairs)):
        found = measured.trainings.effect(number, loud(alone, run.clip_norm), "with a canary (tensor)")
        moves = moves or found is None or bool(np.any(found[alone != 0.0]))
    return [noise.unmoved_row(like.names[tensor], moves) for tensor in measured.unmoved]


def _clipping_row(measured: Measured, effects: Sequence[Effect], direction: FloatArray) -> Row:
    """A large canary and one just above the clipping norm are clipped to the same, and must do the same."""
    best = max(effects, key=lambda effect: abs(effect.along))
    if not best.shared:
        why = "models with and without a canary do not share noise and batches, so that its effect is lost in the noise"
        return cannot_tell(LARGE, 1.0, why)
    if not best.along:
        return cannot_tell(LARGE, 1.0, _TOO_RARE)
    unsure = 2.0 * measured.floor / abs(best.along)
    if unsure > 0.5:
        return cannot_tell(LARGE, 1.0, "what canaries do is hidden by rounding: train for more steps")
    large = loud(direction, measured.declared.run.clip_norm)
    found = measured.trainings.effect(best.number, large, "with a large canary")
    if found is None:
        return clipping.not_finite_row()
    ratio = _effect(measured, best.number, found, direction).along / best.along
    low, high = ratio - unsure, ratio + unsure
    status: Status = "ok" if low <= 1.0 + _SAME and high >= 1.0 - _SAME else "fault"
    why = (
        "a large gradient does not do what it does when clipped to the norm declared: look at clipping, at the norm, "
        "at what it is taken of (all tensors of one example), and whether sums or means are clipped"
    )
    said = "gradients are clipped, to the norm declared or to less"
    return Row(LARGE, None, ratio, 1.0, low, high, status, why if status == "fault" else said)
