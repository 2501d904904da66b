"""DP-SGD (Algorithm 1 of the paper) in JAX: one compiled program trains many models at once."""

from lastiterate.common.errors import MissingExtra, not_installed

try:
    import equinox as _equinox  # noqa: F401
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise MissingExtra(not_installed("training", error.name, "audit")) from error

from lastiterate.common.errors import TrainingDiverged
from lastiterate.training.problem import ExampleCanary, GradientCanary, Moment, Problem
from lastiterate.training.train import Trained, second_moment, train
from lastiterate.training.trainer import TrainedChunk, Trainer

__all__ = [
    "ExampleCanary",
    "GradientCanary",
    "Moment",
    "Problem",
    "Trained",
    "TrainedChunk",
    "Trainer",
    "TrainingDiverged",
    "second_moment",
    "train",
]
