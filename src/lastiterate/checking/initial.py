"""Initial values that follow the seed: what is left of them at the end is taken out of the noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lastiterate.arrays import FloatArray
from lastiterate.checking.parameters import Foreign, flatten, require_finite, require_same_form
from lastiterate.checking.trials import Trainings, seed_of
from lastiterate.trainer_failure import TrainerFailed, guarded

Initial = Callable[[int], Foreign]


def initial_values(initial: Initial, trainings: Trainings, models: int) -> FloatArray:
    """The parameters before training, one model a row."""
    return np.stack([_one(initial, trainings, seed_of(trainings.seed, number)) for number in range(models)])


def _one(initial: Initial, trainings: Trainings, seed: int) -> FloatArray:
    what = f"initial({seed})"
    found = guarded(lambda: initial(seed), what)
    try:
        parameters = flatten(found)
        assert trainings.first is not None
        require_same_form(parameters, trainings.first)
        require_finite(parameters)
    except ValueError as error:
        raise TrainerFailed(error, what) from error
    return parameters.vector
