"""The WideResNet of De et al. (2022): the same network in PyTorch, its standardised kernels, how it begins."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from lastiterate.training.models import StandardisedConv, WideResNet
from tests.training.models.reference import array, channels_first, gradients, random_model, tensors, wide_resnet


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def standardised(layer: StandardisedConv) -> np.ndarray:
    """The kernel that a layer uses, read from its answers to images of 3x3 with one pixel each."""
    pixels = jnp.eye(layer.weight.shape[0]).reshape(-1, 3, 3, 4)
    return np.asarray(jax.vmap(layer)(pixels)[:, 1, 1] - layer.bias)


def test_logits_and_gradients_of_a_wide_resnet_are_those_of_pytorch():
    model, x = random_model(lambda key: WideResNet(16, 1, 10, key)), array(99, 12, 12, 3)
    theirs = tensors(model)
    expected = wide_resnet(theirs, channels_first(x))
    weights = array(98, 10)
    (expected @ torch.tensor(weights)).backward()

    @jax.jit
    def ours(model):
        logits, back = jax.vjp(lambda model: model(x), model)
        return logits, back(jnp.asarray(weights))[0]

    logits, gradient = ours(model)
    np.testing.assert_allclose(logits, expected.detach(), rtol=0, atol=1e-11)
    for mine, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(gradients(theirs)), strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-10)
