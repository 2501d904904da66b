"""What tests of accountants share: the real Opacus, and the warnings that were given."""

import warnings

import pytest

from lastiterate import HeuristicWarning
from lastiterate.integrations.opacus import register_opacus


@pytest.fixture(scope="module")
def opacus():
    import opacus as module

    register_opacus()
    return module


@pytest.fixture(scope="module")
def digits(opacus):
    import torch
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return torch.utils.data.TensorDataset(torch.tensor(images[:1600] / 16.0).float(), torch.tensor(labels[:1600]))


def heuristic_warnings(recorded):
    return [str(each.message) for each in recorded if each.category is HeuristicWarning]


@pytest.fixture
def recorded():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield found
