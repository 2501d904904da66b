"""How much a step counts in the end: effects of a canary must be sums of weights of the run's steps.

Curvature makes them smaller, by amounts that differ from step to step. A wrong learning rate changes all by one factor,
and division by the size of each batch by factors on both sides of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.stats import binom

from lastiterate.checking.canary_effects import Effect, Fit, are_short, fit, fit_freely, least_by_participation
from lastiterate.checking.check_result import Row, Status, cannot_tell, not_checked
from lastiterate.checking.declared import Declared
from lastiterate.common.types import FloatArray

NAME = "size of steps"
_NO_CURVATURE = 1.3  # ratios above this are no matter of curvature
_COMMON = 0.003  # ratios so close to each other, relatively, have one cause
_PULLED = 0.7  # the least of an effect that a loss leaves which pulls all parameters alike
_ROUNDED = 1e-6  # relative distance from a sum of weights that lies close to others
_AROUND = 0.05  # relative distance within which sums of weights are counted
_SELDOM = 1e-3  # how often a canary is in more batches than are looked at
_EXACT = 2e-4  # relative distance from a sum of weights that rounding does not explain
_SEEDS = 3  # at which a canary must have taken part for steps to go the wrong way
_MORE = 0.05  # by which curvature may make effects larger, without a word
_FEW_STEPS = (1, 2, 3)  # that the canary may have been in where it was in fewest
_TWICE = 2.0  # times the declared size: more is told otherwise
_HARMLESS = 0.9  # curvature of such a size needs no word


def steps_row(
    effects: Sequence[Effect],
    declared: Declared,
    clip: float,
    error: float,
    still: bool,
    several: bool,
    floor: float | None = None,
) -> Row:
    """The effect of a canary over the nearest sum of weights.

    Args:
        still: the noise shows that nothing contracts.
        several: there are tensors that curvature does not pull alike.
        floor: what rounding does to effects that are exact but for it, of parameters that no gradient moves.
    """
    if not all(effect.shared for effect in effects):
        return _unshared_row(effects, declared, error)
    seen = [effect for effect in effects if effect.took_part]
    if not seen:
        return cannot_tell(NAME, 1.0, "the canary was in no batch: more models, or more steps")
    if declared.sums is None:
        return not_checked(NAME, "too many sums of weights are possible: see participation, or check fewer steps")
    backwards = [fit_freely(replace(effect, along=-effect.along), declared, clip) for effect in seen]
    if len(seen) >= _SEEDS and all(e.along < 0.0 and b.explained for e, b in zip(seen, backwards, strict=True)):
        ratio = -float(np.mean([each.ratio for each in backwards]))
        why = "steps go the wrong way: look at the sign with which gradients are taken off the parameters"
        return Row(NAME, None, ratio, 1.0, ratio, ratio, "fault", why)
    exactly = None if floor is None else _exact_row(seen, declared, clip, floor, error)
    if exactly is not None and exactly.status == "fault":
        return exactly
    fits = [fit(effect, declared, clip) for effect in seen]
    freely = [fit_freely(effect, declared, clip) for effect in seen]
    if all(each.is_close for each in freely):  # whole steps, though perhaps not those declared: see participation
        fits = freely
    ratios, near = np.array([each.ratio for each in fits]), np.array([each.near for each in fits])
    if np.ptp(near) < np.ptp(ratios):  # one factor above 1 explains more than curvature
        ratios = near
    if declared.is_plain and not all(each.explained for each in fits):
        ratios = _by_one_factor(np.array([effect.along / clip for effect in seen]) / declared.weights[0], ratios)
    low, high = float(ratios.min()), float(ratios.max())
    status, advice = _judge(fits, ratios, declared, error, still)
    if status != "fault" and several and are_short(effects, declared, clip):
        status, advice = "fault", _SHORT
    if exactly is not None and status != "fault":
        return exactly
    return Row(NAME, None, float(ratios.mean()), 1.0, low, high, status, advice)


_SHORT = (
    "steps count less in the end than declared, and nothing else of a canary's effect is bent, as it would be by "
    "curvature: look at the schedule of the learning rate, and whether iterates are averaged"
)


def are_exact(effects: Sequence[Effect], declared: Declared, clip: float, floor: float, error: float) -> bool:
    """Whether effects are sums of weights so closely that nothing pulled them back.

    Where steps have weights of their own, sums lie close to each other: effects that were pulled back are then near one
    by accident, with a probability that must be small for all of them together.
    """
    seen = [effect for effect in effects if effect.took_part]
    if not seen:
        return False
    alongs, margins = (np.array(each) / clip for each in zip(*((e.along, e.margin) for e in seen), strict=True))
    if declared.is_plain or declared.is_certain:
        sums, within = declared.free_sums, np.maximum(_EXACT * np.abs(alongs), 10.0 * floor)
    else:
        often = int(binom.isf(_SELDOM, declared.run.steps, float(declared.rates.max())))
        sums, within = declared.sums_of_few(max(often, 1)), np.maximum(_ROUNDED * np.abs(alongs), margins)
    if sums is None or not len(sums):
        return False
    if any(np.abs(sums - along).min() > width for along, width in zip(alongs, within, strict=True)):
        return False
    return declared.is_plain or declared.is_certain or _accident(alongs, within, sums) < error


def _accident(alongs: FloatArray, within: FloatArray, sums: FloatArray) -> float:
    """The probability that numbers of about this size are all so near to some of the sums."""
    around = _AROUND * np.abs(alongs)
    counts = np.searchsorted(sums, alongs + around, "right") - np.searchsorted(sums, alongs - around)
    return float(np.prod(np.minimum(1.0, counts * within / around)))


def _exact_row(seen: Sequence[Effect], declared: Declared, clip: float, floor: float, error: float) -> Row | None:
    """A fault, if effects in parameters without gradients are far from sums of weights of any steps; or None.

    Not far below a sum may be decay, or a loss that pulls all parameters alike, as that of a mean.
    """
    sums = declared.free_sums
    if sums is None or are_exact(seen, declared, clip, floor, error):
        return None
    alongs = np.array([effect.along / clip for effect in seen])
    some = sums[sums > 0.0]
    above = [float(np.min(some[some >= along * (1.0 - _EXACT)], initial=np.inf)) for along in alongs]
    kept = alongs / np.array(above)
    low, high = float(kept.min()), float(kept.max())
    status: Status = "fault" if low < _PULLED else "cannot tell"
    why = (
        "in parameters that no gradient moves, the effect of a canary is no sum of weights of declared steps: look at "
        "the learning rate and its schedule, at momentum, weight decay and averaging, and at what sums are divided by"
    )
    return Row(NAME, None, float(kept.mean()), 1.0, low, high, status, why)


def _judge(
    fits: Sequence[Fit], ratios: FloatArray, declared: Declared, error: float, still: bool
) -> tuple[Status, str]:
    if all(each.explained for each in fits):
        return "ok", ""
    mean, low, high = float(ratios.mean()), float(ratios.min()), float(ratios.max())
    steps = declared.run.steps
    common = _is_common(fits, ratios, declared, error)
    if steps == 1 or common or high > _NO_CURVATURE + max(each.slack for each in fits):
        return "fault", (
            f"steps count {mean:.4g} times what is declared: look at the learning rate, which is that of the sum of "
            f"gradients ({'if' if _hint(mean) else 'not of their mean'}{_hint(mean)}), and at what the optimizer does"
        )
    drawn = declared.is_plain and declared.run.sampling == "poisson"  # sums lie apart, and batches differ in size
    if still and drawn and not declared.is_certain and any(each.near > 1.0 + 2.0 * each.slack for each in fits):
        return "fault", (
            "steps count more than declared, by factors that differ, and curvature is none: look whether sums are "
            "divided by the batch size that was drawn instead of the expected one, and at the schedule"
        )
    if high > 1.0 + max(_MORE, 2.0 * max(each.slack for each in fits)):
        return "cannot tell", (
            "steps count more in the end than declared at some seeds: another learning rate, sums that are scaled "
            "after clipping, or curvature; train for fewer steps, or more models"
        )
    if low >= _HARMLESS:
        return "ok", "a little less than declared, as by curvature"
    return "cannot tell", (
        "steps count less in the end than declared: curvature that is the same in all directions, a smaller learning "
        "rate, or division by the batch size that was drawn; train for fewer steps, or more models"
    )


def _by_one_factor(counts: FloatArray, ratios: FloatArray) -> FloatArray:
    """Ratios of steps' sizes; if these are whole numbers of steps of one other size, this size.

    By accident five steps of 1.2 times the size are six. ``counts`` are effects over the declared size of a step.
    """
    least = float(counts.min())
    for steps in _FEW_STEPS:
        size = least / steps
        found = counts / np.maximum(np.round(counts / size), 1.0)
        if 1.0 / _TWICE < size < _TWICE and np.ptp(found) < _COMMON * size and np.ptp(found) < np.ptp(ratios):
            return np.asarray(found)
    return ratios


def _is_common(fits: Sequence[Fit], ratios: FloatArray, declared: Declared, error: float) -> bool:
    """Whether all ratios are one factor, which curvature does not make.

    It takes away by what step it was, so that ratios of k steps differ by 1/sqrt(k) of what it takes; unless all were
    in at the same steps.
    """
    off = abs(float(ratios.mean()) - 1.0)
    if declared.is_certain or declared.run.sampling == "shuffled" or len(fits) < 2 or not off:
        return False
    count = float(np.mean([abs(each.sum or 0.0) for each in fits])) / float(np.mean(np.abs(declared.weights)))
    differ = 4.0 * float(np.ptp(ratios)) / off * np.sqrt(max(count, 1.0))
    chance = max(min(differ, 1.0), 1.0 / declared.run.steps) ** (len(fits) - 1)
    return bool(chance < error and np.ptp(ratios) < _COMMON)


def _hint(mean: float) -> str:
    """If steps are off by much, it may be by the batch size."""
    factor = max(abs(mean), 1.0 / max(abs(mean), 1e-300))
    return f" {factor:.3g} is about the size of a batch, divide by it" if factor > 3.0 else ""


def _unshared_row(effects: Sequence[Effect], declared: Declared, error: float) -> Row:
    """With noise between the worlds: on average no canary may count more than in as many batches as can be expected."""
    count = len(effects)
    summed = sum(effect.along for effect in effects)
    margin = float(np.sqrt(sum(effect.margin**2 for effect in effects)))
    expected = count * float(np.sum(declared.weights * declared.rates))
    most = min(expected + declared.reach(count, error), count * declared.most)
    low, high = (summed - margin) / most, (summed + margin) / most
    if low > 1.0:
        why = "a canary counts more than a clipping norm in its batches: look at clipping and at the learning rate"
        return Row(NAME, None, summed / most, 1.0, low, high, "fault", why)
    why = "models with and without a canary do not share noise and batches, so that its effect is lost in the noise"
    return Row(NAME, None, None, 1.0, None, None, "cannot tell", why)


# How much the effect of a canary differs from seed to seed, where steps have different weights.
#
# Effects are then sums of weights of the steps that the canary was in. Their law follows from the run; it is drawn
# here, and their range over seeds compared with it. If every example is used equally often, effects hardly differ.

_DRAWS = 20_000
_MOST_NUMBERS = 10**8
_UNSURE = 0.5  # of the stated error: the law is known from draws only
_KEPT = 0.6  # the least of an effect that curvature leaves


def weighted_spread_row(name: str, effects: Sequence[Effect], declared: Declared, clip: float, error: float) -> Row:
    """The range of effects over seeds, in units of the mean weight of a step, for batches that are drawn anew."""
    if len(effects) < 3 or declared.is_certain or declared.run.sampling == "shuffled":
        return not_checked(name, "batches do not differ so, or there are too few seeds")
    if declared.run.steps * _DRAWS > _MOST_NUMBERS:
        return not_checked(name, "there are too many steps of different weights")
    if least_by_participation(effects, declared, clip, error) < 1.0:
        return not_checked(name, "the canary weighs less than its batches should: see participation")
    unit = float(np.mean(np.abs(declared.weights)))
    found = float(np.ptp([effect.along / clip for effect in effects]))
    drawn = _drawn(declared)
    expected = float(np.mean(np.ptp(drawn[: _DRAWS // len(effects) * len(effects)].reshape(-1, len(effects)), axis=1)))
    # Curvature makes effects, and with them their range, at most by so much smaller.
    chance = _chance_of_a_range(found / _KEPT, drawn, len(effects))
    status: Status = "fault" if chance < _UNSURE * error else "ok"
    why = (
        "the canary weighs nearly the same at every seed: look whether batches are drawn by "
        f"{declared.run.sampling} sampling, and whether they follow the seed"
    )
    return Row(name, None, found / unit, expected / unit, None, None, status, why if status == "fault" else "")


def _drawn(declared: Declared) -> FloatArray:
    """Sums of weights of one example's batches, drawn by the run."""
    rng = np.random.default_rng(0)
    total = np.zeros(_DRAWS)
    for weight, rate in zip(declared.weights, declared.rates, strict=True):
        total += weight * (rng.random(_DRAWS) < rate)
    return total


def _chance_of_a_range(width: float, drawn: FloatArray, seeds: int) -> float:
    """The probability that so many independent sums lie within an interval of this width, wherever it is."""
    ordered = np.sort(drawn)
    within = (np.searchsorted(ordered, ordered + width * (1.0 + 1e-9), "right") - np.arange(len(ordered))) / len(
        ordered
    )
    # One of them is the least, and all others are above it by at most the width; ties count several times, safely.
    return min(1.0, seeds * float(np.mean(within ** (seeds - 1))))
