"""The WideResNet of De et al. (2022): the same network in PyTorch, its standardised kernels, how it begins."""

from __future__ import annotations

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


def conv() -> StandardisedConv:
    return random_model(lambda key: StandardisedConv(4, 6, 3, 1, key))


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


def test_a_standardised_kernel_has_mean_0_and_norm_gain_for_each_output():
    layer = conv()
    kernel = standardised(layer)
    np.testing.assert_allclose(kernel.mean(0), 0, atol=1e-15)
    np.testing.assert_allclose(np.linalg.norm(kernel, axis=0), np.abs(layer.gain), rtol=1e-12)


def test_a_wide_resnet_begins_as_that_of_de_et_al():
    conv = StandardisedConv(30, 40, 3, 1, jax.random.key(1))
    assert np.var(conv.weight) * 9 * 30 == pytest.approx(1, abs=5 * np.sqrt(2 / conv.weight.size))
    assert np.all(conv.gain == 1)
    assert not np.any(conv.bias)
    output = WideResNet(10, 1, 200, jax.random.key(0)).output
    scaled = np.asarray(output.weight) * np.sqrt(64)
    # Normal, cut at two standard deviations, then scaled to variance 1: the cut leaves a deviation of 0.8796.
    assert np.var(scaled) == pytest.approx(1, abs=5 * np.sqrt(2 / scaled.size))
    assert 2.2 < np.abs(scaled).max() < 2 / 0.8796
    assert not np.any(output.bias)
