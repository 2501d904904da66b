"""Seeds: equal ones give equal models, different ones different models, and no steps change nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lastiterate.checking.check_result import Row, Status, cannot_tell, not_checked
from lastiterate.checking.parameters import Foreign, flatten, require_finite, require_same_form
from lastiterate.checking.trainings import Setting, Trainings, seed_of
from lastiterate.common.errors import TrainerFailed, guarded
from lastiterate.common.types import FloatArray

EQUAL, DIFFERENT, INITIAL, NO_STEPS = "equal seeds", "different seeds", "initial values", "no steps"
_ROUNDING = 1e-4  # of the noise: what is left between equal seeds if sums are not always taken in one order
_COPY = 1e-3  # of the noise: models so close are one model


def equal_row(one: FloatArray, again: FloatArray, variance: float) -> Row:
    """Return how far apart two models of one seed are, in units of the noise between two models."""
    measured = _distance(one, again, variance)
    status: Status = "ok" if measured <= _ROUNDING else "fault"
    why = "one seed, trained twice, gives two models: look for randomness that does not follow the seed"
    return Row(
        EQUAL, None, measured, 0.0, measured, measured, status, why if status == "fault" else "", "any difference"
    )


def different_row(models: FloatArray, variance: float) -> Row:
    """Return how close the two closest models of different seeds are, in units of the noise between two models."""
    distances = [_distance(one, two, variance) for i, one in enumerate(models) for two in models[i + 1 :]]
    measured = min(distances)
    status: Status = "ok" if measured > _COPY else "fault"
    why = "two seeds give the same model: look whether noise and batches follow the seed"
    return Row(
        DIFFERENT,
        None,
        measured,
        1.0,
        measured,
        max(distances),
        status,
        why if status == "fault" else "",
        "two equal models",
    )


def _distance(one: FloatArray, two: FloatArray, variance: float) -> float:
    return float(np.linalg.norm(one - two)) / float(np.sqrt(2.0 * variance * len(one)))


def initial_values(initial: Callable[[int], Foreign], trainings: Trainings, count: int) -> FloatArray:
    """Return the initial parameters that ``initial`` states, one model a row."""
    return np.stack([_one(initial, trainings, seed_of(trainings.seed, number)) for number in range(count)])


def _one(initial: Callable[[int], Foreign], trainings: Trainings, seed: int) -> FloatArray:
    what = f"initial({seed})"
    found = guarded(lambda: initial(seed), what)
    try:
        parameters = flatten(found)
        require_same_form(parameters, trainings.like)
        require_finite(parameters)
    except ValueError as error:
        raise TrainerFailed(error, what) from error
    return parameters.vector


def initial_row(starts: FloatArray) -> Row:
    """Return whether initial values that are declared to follow the seed do."""
    differ = float(np.abs(starts - starts[0]).max())
    status: Status = "ok" if differ > 0.0 else "fault"
    why = "initial values are declared to follow the seed, but are the same for all"
    return Row(
        INITIAL, None, differ, None, differ, differ, status, why if status == "fault" else "", "equal initial values"
    )


def models_of_no_steps(trainings: Trainings, count: int) -> FloatArray | None:
    """Return models of zero steps; None: the trainer does not make them."""
    if not trainings.with_steps:
        return None
    try:
        return trainings.models(count, 0)
    except TrainerFailed:
        return None


def no_steps_row(
    setting: Setting, starts: FloatArray | None, stated: FloatArray | None, canary: FloatArray | None
) -> Row:
    """Return what happens beside the steps: with zero of them, a canary does nothing and initial values stay."""
    if starts is None:
        return not_checked(NO_STEPS, "the trainer does not train for zero steps")
    effect = setting.trainings.effect(0, canary, 0, "with a canary, no steps")
    if effect is not None and stated is None and _is_like_another_seed(effect, starts):
        why = "initial values differ with a canary as they differ between seeds: draw them before the canary's place"
        return cannot_tell(NO_STEPS, 0.0, why)
    unit = float(np.sqrt(setting.declared.variance))
    moved = np.inf if effect is None else float(np.abs(effect).max()) / unit
    drawn = 0.0 if stated is None else float(np.abs(starts - stated).max()) / unit
    measured = max(moved, drawn)
    if stated is None and len(starts) > 2:  # initial values that differ as one step does are those after a step
        ratio = float(starts.var(axis=0, ddof=1).mean()) / setting.declared.prefix(1).variance
        measured = max(measured, ratio if abs(ratio - 1.0) < setting.allowances.curvature else 0.0)
    status: Status = "fault" if measured > _ROUNDING else "ok"
    why = "parameters change without a step: look for steps, or other uses of the data, outside the counted ones"
    return Row(
        NO_STEPS,
        None,
        measured,
        0.0,
        measured,
        measured,
        status,
        why if status == "fault" else "",
        "a step on the canary",
    )


def _is_like_another_seed(effect: FloatArray, starts: FloatArray) -> bool:
    """Return whether an effect at zero steps has the size of the difference between two seeds' initial values."""
    between = np.linalg.norm(starts[1:] - starts[0], axis=1)
    return bool(0.5 * between.min() <= np.linalg.norm(effect) <= 2.0 * between.max() and between.min() > 0.0)
