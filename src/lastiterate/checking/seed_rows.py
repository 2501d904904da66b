"""Rows on seeds: equal seeds give equal models, different seeds different models, and zero steps change nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from scipy.spatial.distance import pdist

from lastiterate.checking.check_result import Row, cannot_tell, judged, not_checked
from lastiterate.checking.clipping_rows import huge_canary
from lastiterate.checking.trainings import Setting, Trainings, seed_of
from lastiterate.common.errors import TrainerFailed
from lastiterate.common.trees import ForeignTree
from lastiterate.common.types import FloatArray

EQUAL, DIFFERENT, INITIAL, NO_STEPS = "equal seeds", "different seeds", "initial values", "no steps"


def equal_row(setting: Setting, models: FloatArray, again: FloatArray) -> Row:
    """Return the distance of two models of one seed, in units of the noise between two models."""
    found = float(_distances(setting, np.stack([models[0], again]))[0])
    why = "two trainings with the same seed give different models; look for randomness that does not depend on the seed"
    return judged(EQUAL, (found, 0.0, found, found), found > setting.allowances.equal, why, "any difference")


def different_row(setting: Setting, models: FloatArray) -> Row:
    """Return the distance of the two closest models of different seeds, in units of the noise between two models."""
    distances = _distances(setting, models)
    least, most = float(distances.min()), float(distances.max())
    why = "two seeds give the same model; check whether noise and batches depend on the seed"
    return judged(DIFFERENT, (least, 1.0, least, most), least <= setting.allowances.equal, why, "two equal models")


def _distances(setting: Setting, models: FloatArray) -> FloatArray:
    return np.asarray(pdist(models) / np.sqrt(2.0 * setting.declared.variance * models.shape[1]))


def stated_starts(initial: Callable[[int], ForeignTree], trainings: Trainings, count: int) -> FloatArray:
    """Return the initial parameters by ``initial``, one row for each model."""
    seeds = [seed_of(trainings.seed, number) for number in range(count)]
    return np.stack([trainings.parameters(partial(initial, seed), f"initial({seed})").vector for seed in seeds])


def trained_starts(trainings: Trainings, count: int) -> FloatArray | None:
    """Return models of zero steps, or None if the trainer refuses zero steps. Two if they do not depend on the seed."""
    try:
        two = trainings.models(2, 0)
        return two if np.array_equal(two[0], two[1]) else trainings.models(count, 0)
    except TrainerFailed:
        return None


def initial_row(starts: FloatArray) -> Row:
    """Return the row of initial values that are declared to depend on the seed. Equal values are a fault."""
    differ = float(np.abs(starts - starts[0]).max())
    why = "initial values are declared to depend on the seed, but are the same for all seeds"
    return judged(INITIAL, (differ, None, differ, differ), not differ, why, "equal initial values")


def no_steps_row(setting: Setting, starts: FloatArray | None, stated: FloatArray | None) -> Row:
    """Return the change of parameters in zero steps. A canary must have no effect, and initial values must stay."""
    if starts is None:
        return not_checked(NO_STEPS, "the trainer does not train for zero steps")
    effect = setting.trainings.effect(0, huge_canary(setting), 0, "with a canary, no steps")
    between = np.linalg.norm(starts[1:] - starts[0], axis=1)
    if stated is None and 0.0 < between.min() / 2.0 <= np.linalg.norm(effect):
        why = "initial values differ with a canary as much as between seeds: draw them before the canary's place"
        return cannot_tell(NO_STEPS, 0.0, why, "initial values that the canary does not change")
    unit = float(np.sqrt(setting.declared.variance))
    found = float(np.abs(effect).max()) / unit
    if stated is not None:
        found = max(found, float(np.abs(starts - stated[: len(starts)]).max()) / unit)
    elif len(starts) > 2:  # if initial values vary as much as after one step, a step was taken
        ratio = float(starts.var(axis=0, ddof=1).mean()) / setting.declared.prefix(1).variance
        found = max(found, ratio if abs(ratio - 1.0) < setting.allowances.curvature else 0.0)
    why = "parameters change in zero steps; look for steps, or other uses of the data, that are not counted"
    return judged(NO_STEPS, (found, 0.0, found, found), found > setting.allowances.equal, why, "a step on the canary")
