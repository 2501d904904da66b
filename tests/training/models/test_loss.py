"""Cross-entropy is that of PyTorch, and accuracy the fraction of right answers, however many examples there are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from lastiterate.training import Moment
from lastiterate.training.models import cross_entropy
from tests.training.models.reference import array


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
