"""Rows on seeds: equal seeds give equal models, different seeds different models, and zero steps change nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.spatial.distance import pdist

from lastiterate.checking.check_result import Row, cannot_tell, judged, not_checked
from lastiterate.checking.effects import huge_canary
from lastiterate.checking.parameters import flatten, require_finite, require_same_form
from lastiterate.checking.trainings import Setting, Trainings, seed_of
from lastiterate.common.errors import TrainerFailed, guarded
from lastiterate.common.trees import ForeignTree
from lastiterate.common.types import FloatArray

EQUAL, DIFFERENT, INITIAL, NO_STEPS = "equal seeds", "different seeds", "initial values", "no steps"


def equal_row(setting: Setting, models: FloatArray, again: FloatArray) -> Row:
    """Return the distance of two models of one seed, in units of the noise between two models."""
    found = _distances(setting, np.stack([models[0], again]))[0]
    why = "two trainings with the same seed give different models; look for randomness that does not depend on the seed"
    return judged(EQUAL, (found, 0.0, found, found), found > setting.allowances.equal, why, "any difference")


def different_row(setting: Setting, models: FloatArray) -> Row:
    """Return the distance of the two closest models of different seeds, in units of the noise between two models."""
    distances = _distances(setting, models)
    least = min(distances)
    why = "two seeds give the same model; check whether noise and batches depend on the seed"
    numbers = least, 1.0, least, max(distances)
    return judged(DIFFERENT, numbers, least <= setting.allowances.equal, why, "two equal models")


def _distances(setting: Setting, models: FloatArray) -> list[float]:
    unit = float(np.sqrt(2.0 * setting.declared.variance * models.shape[1]))
    distances: list[float] = (pdist(models) / unit).tolist()
    return distances


def stated_starts(initial: Callable[[int], ForeignTree], trainings: Trainings, count: int) -> FloatArray:
    """Return the initial parameters by ``initial``, one row for each model."""
    found = []
    for seed in (seed_of(trainings.seed, number) for number in range(count)):
        what = f"initial({seed})"
        result = guarded(lambda seed=seed: initial(seed), what)  # type: ignore[misc]
        try:
            parameters = flatten(result)
            require_same_form(parameters, trainings.like)
            require_finite(parameters)
        except ValueError as error:
            raise TrainerFailed(error, what) from error
        found.append(parameters.vector)
    return np.stack(found)


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
    if effect is not None and stated is None and 0.0 < between.min() / 2.0 <= np.linalg.norm(effect):
        why = "initial values differ with a canary as much as between seeds: draw them before the canary's place"
        return cannot_tell(NO_STEPS, 0.0, why, "initial values that the canary does not change")
    unit = float(np.sqrt(setting.declared.variance))
    found = np.inf if effect is None else float(np.abs(effect).max()) / unit
    if stated is not None:
        found = max(found, float(np.abs(starts - stated[: len(starts)]).max()) / unit)
    elif len(starts) > 2:  # if initial values vary as much as after one step, a step was taken
        ratio = float(starts.var(axis=0, ddof=1).mean()) / setting.declared.prefix(1).variance
        found = max(found, ratio if abs(ratio - 1.0) < setting.allowances.curvature else 0.0)
    why = "parameters change in zero steps; look for steps, or other uses of the data, that are not counted"
    numbers = found, 0.0, found, found
    return judged(NO_STEPS, numbers, found > setting.allowances.equal, why, "a step on the canary")
