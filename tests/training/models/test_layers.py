"""Layers made of products and slices are the layers everybody knows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from lastiterate.training import Moment
from lastiterate.training.models import Conv, GroupNorm, augmentation_multiplicity, cross_entropy, max_pool
from tests.training.models.reference import array, channels_first, convolution, gradients, random_model, tensors

# Kernel, stride and padding: those of the networks, those that do not divide, and a stride that skips pixels.
CONVOLUTIONS = [(3, 1, 1), (3, 2, 0), (3, 2, 1), (8, 2, 3), (4, 2, 0), (1, 1, 0), (1, 2, 0), (5, 3, 2), (2, 4, 0)]


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


@jax.jit
def value_and_gradients(layer, image, towards):
    value, back = jax.vjp(lambda layer, image: layer(image), layer, image)
    return value, back(towards)


@pytest.mark.parametrize(("kernel", "stride", "padding"), CONVOLUTIONS)
def test_conv_is_that_of_pytorch_and_xla_and_its_gradients_too(kernel, stride, padding):
    layer = random_model(lambda key: Conv(3, 5, kernel, stride, padding, key))
    image = array(1, 13, 10, 3)

    by_xla = jax.lax.conv_general_dilated(
        image[None],
        layer.weight.reshape(kernel, kernel, 3, 5),
        (stride, stride),
        [(padding, padding)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    theirs, pixels = tensors(layer), channels_first(image).requires_grad_()
    expected = convolution(theirs, pixels)
    towards = array(2, *expected.shape[2:], 5)
    expected.backward(channels_first(towards))

    result, (of_layer, of_image) = value_and_gradients(layer, image, towards)
    np.testing.assert_allclose(result, expected.detach()[0].permute(1, 2, 0), rtol=0, atol=1e-13)
    np.testing.assert_allclose(result, by_xla[0] + layer.bias, rtol=0, atol=1e-13)
    np.testing.assert_allclose(of_image, pixels.grad[0].permute(1, 2, 0), rtol=0, atol=1e-13)
    for mine, other in zip(jax.tree.leaves(of_layer), jax.tree.leaves(gradients(theirs)), strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-12)


def test_max_pool_and_its_gradient_are_those_of_pytorch():
    image, towards = array(1, 9, 7, 3), array(2, 8, 6, 3)
    result, back = jax.vjp(max_pool, image)
    pixels = channels_first(image).requires_grad_()
    expected = torch.nn.functional.max_pool2d(pixels, 2, 1)
    expected.backward(channels_first(towards))
    np.testing.assert_array_equal(result, expected.detach()[0].permute(1, 2, 0))
    np.testing.assert_allclose(back(jnp.asarray(towards))[0], pixels.grad[0].permute(1, 2, 0), rtol=0, atol=1e-14)


@pytest.mark.parametrize(("channels", "groups"), [(32, 16), (16, 16), (6, 2), (4, 1)])
def test_group_norm_and_its_gradients_are_those_of_pytorch(channels, groups):
    image, towards = 3 * array(1, 5, 6, channels) + 2, array(2, 5, 6, channels)
    layer = jax.tree.map(lambda leaf: leaf + array(3, channels), GroupNorm(channels, groups))

    theirs, pixels = tensors(layer), channels_first(image).requires_grad_()
    expected = torch.nn.functional.group_norm(pixels, groups, theirs.scale, theirs.offset)
    expected.backward(channels_first(towards))
    result, (of_layer, of_image) = value_and_gradients(layer, image, towards)
    np.testing.assert_allclose(result, expected.detach()[0].permute(1, 2, 0), rtol=0, atol=1e-12)
    np.testing.assert_allclose(of_image, pixels.grad[0].permute(1, 2, 0), rtol=0, atol=1e-12)
    for mine, other in zip(jax.tree.leaves(of_layer), jax.tree.leaves(gradients(theirs)), strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("label", [0, 4, 9])
def test_cross_entropy_and_its_gradient_are_those_of_pytorch(label):
    with jax.enable_x64(True):
        scores = 30 * array(0, 10)  # far from each other, where a naive softmax loses its digits
        moment = Moment(jnp.asarray(0), jax.random.key(0))
        value, gradient = jax.value_and_grad(lambda s: cross_entropy(lambda x: x, (s, label), moment))(scores)
        theirs = torch.tensor(scores, requires_grad=True)
        expected = torch.nn.functional.cross_entropy(theirs, torch.tensor(label))
        expected.backward()
        np.testing.assert_allclose(value, expected.item(), rtol=1e-14, atol=1e-13)
        np.testing.assert_allclose(gradient, theirs.grad, rtol=1e-12, atol=1e-14)


IMAGE = np.random.default_rng(0).normal(size=(10, 10, 2)).astype(np.float32)


def all_views() -> list[np.ndarray]:
    padded = np.pad(IMAGE, ((4, 4), (4, 4), (0, 0)), mode="symmetric")
    moved = [padded[i : i + 10, j : j + 10] for i in range(9) for j in range(9)]
    return moved + [view[:, ::-1] for view in moved]


def test_the_loss_of_an_example_is_the_mean_over_its_views():
    seen = []

    def loss(parameters, example, moment):
        seen.append(moment.step)
        return parameters * example[0].sum() + example[1]

    averaged = augmentation_multiplicity(loss, 2000)
    moment = Moment(jnp.int32(3), jax.random.key(5))
    found = averaged(jnp.float32(2.0), (IMAGE, jnp.float32(1.0)), moment)
    sums = np.array([view.sum() for view in all_views()])
    assert float(found) == pytest.approx(2 * sums.mean() + 1, abs=4 * 2 * sums.std() / np.sqrt(2000))
    assert int(seen[0]) == 3
    assert float(averaged(jnp.float32(2.0), (IMAGE, jnp.float32(1.0)), moment)) == float(found)
