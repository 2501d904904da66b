"""All trainings: 14 that are correct, ``CORRECT``, and 50 with a fault each, ``FAULTS``, in four frameworks."""

from . import jax_trainings, numpy_trainings, opacus_trainings, torch_trainings  # noqa: F401 - they register themselves
from .trainer import FOUND

CORRECT = [training for training in FOUND if training.kind == "correct"]
FAULTS = [training for training in FOUND if training.kind != "correct"]
