"""Models that ship. They act on one example, and return its logits."""

from lastiterate.training.models.augment import augmentation_multiplicity, random_view
from lastiterate.training.models.cnn import CNN
from lastiterate.training.models.layers import Conv, Dense, GroupNorm
from lastiterate.training.models.loss import accuracy, cross_entropy
from lastiterate.training.models.mlp import MLP
from lastiterate.training.models.wide_resnet import WideResNet

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
