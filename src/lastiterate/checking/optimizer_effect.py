"""How much a step counts in the end: effects of a canary must be sums of weights of the run's steps.

Curvature makes them smaller, by amounts that differ from step to step. A wrong learning rate changes all by one factor, and
division by the size of each batch by factors on both sides of one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lastiterate.arrays import FloatArray
from lastiterate.checking.contraction import Fit, fit, fit_freely
from lastiterate.checking.declared import Declared
from lastiterate.checking.effects import Effect
from lastiterate.checking.row import Row, Status, cannot_tell, not_checked

NAME = "size of steps"
_NO_CURVATURE = (0.3, 1.3)  # ratios beyond these are no matter of curvature
_COMMON = 0.003  # ratios so close to each other have one cause
_FEW = 3  # seeds that must agree on it
_HARMLESS = 0.9  # curvature of such a size needs no word


def steps_row(effects: Sequence[Effect], declared: Declared, clip: float) -> Row:
    """The effect of a canary over the nearest sum of weights."""
    if not all(effect.shared for effect in effects):
        return _unshared_row(effects, declared)
    seen = [effect for effect in effects if effect.took_part]
    if not seen:
        return cannot_tell(NAME, 1.0, "the canary was in no batch: more models, or more steps")
    if declared.sums is None:
        return not_checked(NAME, "too many sums of weights are possible: see participation, or check fewer steps")
    fits = [fit(effect, declared, clip) for effect in seen]
    freely = [fit_freely(effect, declared, clip) for effect in seen]
    if all(each.is_close for each in freely):  # whole steps, though perhaps not those declared: see participation
        fits = freely
    ratios = np.array([each.ratio for each in fits])
    low, high = float(ratios.min()), float(ratios.max())
    status, advice = _judge(fits, ratios, declared)
    return Row(NAME, None, float(ratios.mean()), 1.0, low, high, status, advice)


def _judge(fits: Sequence[Fit], ratios: FloatArray, declared: Declared) -> tuple[Status, str]:
    low, high = float(ratios.min()), float(ratios.max())
    if all(each.explained for each in fits):
        return "ok", ""
    if low < _NO_CURVATURE[0] or high > _NO_CURVATURE[1]:
        factor = 1.0 / low if low < _NO_CURVATURE[0] else high
        return "fault", (
            f"steps count {ratios.mean():.3g} times what is declared: look at the learning rate, which is that of the sum "
            f"of gradients (if {factor:.3g} is about the size of a batch, divide it by that), and at what the optimizer does"
        )
    common = high - low < _COMMON
    if declared.run.steps == 1 or (common and len(fits) >= _FEW and not declared.is_certain):
        return "fault", f"steps count {ratios.mean():.4g} times what is declared: look at the learning rate"
    if any(each.ratio > 1.0 + each.slack for each in fits):
        return "fault", (
            "steps count more than declared, by factors that differ: look whether sums are divided by the batch size that "
            "was drawn instead of the expected one, and at the schedule of learning rates"
        )
    if low >= _HARMLESS:
        return "ok", "a little less than declared, as by curvature"
    return "cannot tell", (
        "steps count less in the end than declared: curvature that is the same in all directions, or a smaller learning "
        "rate; train for fewer steps"
    )


def _unshared_row(effects: Sequence[Effect], declared: Declared) -> Row:
    """With noise between the worlds: no canary may count more than in every batch."""
    count = len(effects)
    summed = sum(effect.along for effect in effects)
    margin = float(np.sqrt(sum(effect.margin**2 for effect in effects)))
    low, high = (summed - margin) / count / declared.most, (summed + margin) / count / declared.most
    if low > 1.0:
        why = "a canary counts more than a clipping norm in every batch: look at clipping and at the learning rate"
        return Row(NAME, None, summed / count / declared.most, 1.0, low, high, "fault", why)
    why = "models with and without a canary do not share noise and batches, so that its effect is lost in the noise"
    return Row(NAME, None, None, 1.0, None, None, "cannot tell", why)
