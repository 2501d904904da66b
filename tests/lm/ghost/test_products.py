"""Products are the same whichever library computes them, and narrow factors are multiplied in the quicker order."""

import pytest
import torch

from lastiterate.lm.ghost import parameter_uses as products


def random(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(3, 5, 7), (64, 128, 96), (2, 3, 4, 5)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("least", [0, 2**21])
def test_a_product_is_that_of_pytorch(shape, transposed, least, monkeypatch):
    monkeypatch.setattr(products, "_WORTHWHILE", least)
    inputs, vector = random(0, *shape), random(1, 11)
    matrix = random(2, shape[-1], 11).t() if transposed else random(2, 11, shape[-1])
    expected = (inputs.double() @ matrix.double().t()) + vector.double()
    found = products.linear(inputs, matrix, vector)
    assert found.dtype == torch.float32
    assert float((found.double() - expected).abs().max()) < 1e-5 * float(expected.abs().max())
