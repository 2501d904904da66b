"""Models included in the library. They act on one example and return its logits."""

from lastiterate.training.models.layers import (
    Conv,
    Dense,
    GroupNorm,
    accuracy,
    augmentation_multiplicity,
    cross_entropy,
    random_view,
)
from lastiterate.training.models.networks import CNN, MLP, WideResNet

__all__ = [
    "CNN",
    "MLP",
    "Conv",
    "Dense",
    "GroupNorm",
    "WideResNet",
    "accuracy",
    "augmentation_multiplicity",
    "cross_entropy",
    "random_view",
]
