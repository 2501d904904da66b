"""What tests with the real Opacus share."""

import pytest

from lastiterate.integrations.dp_accounting import register_opacus


@pytest.fixture(scope="module")
def opacus():
    module = pytest.importorskip("opacus")
    register_opacus()
    return module


@pytest.fixture(scope="module")
def digits(opacus):
    import torch
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return torch.utils.data.TensorDataset(torch.tensor(images[:1600] / 16.0).float(), torch.tensor(labels[:1600]))
