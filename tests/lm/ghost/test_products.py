"""Products are the same whichever library computes them, and narrow factors are multiplied in the quicker order."""

from __future__ import annotations

import pytest
import torch

from lastiterate.lm.ghost import parameter_uses as products
from lastiterate.lm.ghost.norms_and_sums import add_weighted
from lastiterate.lm.ghost.parameter_uses import Product, Uses


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


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(3, 40), (40, 3), (3, 4), (40, 50), (1, 40), (40, 1), (1, 1)])
def test_written_out_gradients_have_the_shape_of_the_matrix_in_either_order(inputs, outputs, transposed):
    product = Product(random(0, 5, 6, inputs), random(1, 5, 6, outputs), transposed)
    expected = torch.einsum("kti,ktj->kij" if transposed else "kti,ktj->kji", product.inputs, product.gradient)
    torch.testing.assert_close(product.written_out(), expected)

    uses, factors, total = Uses(5, torch.device("cpu")), random(2, 5), {}
    uses.add_written("matrix", product.written_out())
    add_weighted(total, {"matrix": torch.zeros(expected.shape[1:])}, uses, factors)
    torch.testing.assert_close(total["matrix"], torch.tensordot(factors, expected, 1))
    assert total["matrix"].is_contiguous()
