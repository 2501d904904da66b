"""All trainings in four frameworks: 14 that are correct, 50 with a fault each, and ten more after public reports."""

from . import jax_trainings, numpy_trainings, opacus_trainings, reported, torch_trainings  # noqa: F401 - they register
from .trainer import FOUND

CORRECT = [training for training in FOUND if training.kind == "correct"]
REPORTED = FOUND[-10:]
FAULTS = [training for training in FOUND[:-10] if training.kind != "correct"]
