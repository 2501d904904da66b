"""The MLP and the CNN: what they compute, and how, when many are trained at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from lastiterate.training import Moment
from lastiterate.training.gradients import Product, gradient_form
from lastiterate.training.models import CNN, augmentation_multiplicity, cross_entropy
from tests.training.models.reference import array, channels_first, cnn, gradients, random_model, tensors

SHAPES = [(28, 28, 1), (8, 8, 1), (32, 32, 3)]


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def moment() -> Moment:
    return Moment(jnp.asarray(0), jax.random.key(5))


def with_background(shape: tuple[int, int, int]) -> np.ndarray:
    """An image that is zero around its middle, so that many windows of a pooling hold the same number four times."""
    image, margin = array(3, *shape), shape[0] // 4
    image[:margin] = image[-margin:] = 0
    image[:, :margin] = image[:, -margin:] = 0
    return image


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_logits_and_gradients_are_those_of_pytorch_also_where_pooled_pixels_tie(shape):
    model, x = random_model(lambda key: CNN(shape, 10, key)), with_background(shape)
    theirs = tensors(model)
    expected = cnn(theirs, channels_first(x))
    torch.nn.functional.cross_entropy(expected, torch.tensor(7)).backward()

    @jax.jit
    def ours(model):
        return model(x), jax.grad(cross_entropy)(model, (x, 7), moment())

    logits, gradient = ours(model)
    np.testing.assert_allclose(logits, expected.detach(), rtol=0, atol=1e-13)
    for mine, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(gradients(theirs)), strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-13)


@pytest.mark.parametrize("views", [None, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_of_all_weights_of_a_cnn_are_single_products(shape, views):
    model = jax.eval_shape(lambda key: CNN(shape, 10, key), jax.random.key(0))
    loss = cross_entropy if views is None else augmentation_multiplicity(cross_entropy, views)
    form = gradient_form(jax.grad(loss), model, (jnp.zeros(shape), jnp.asarray(0)), moment())
    matrices = [leaf for leaf in form.leaves if len(leaf.shape) == 2]
    assert len(matrices) == 4
    assert all(isinstance(leaf, Product) for leaf in matrices)
