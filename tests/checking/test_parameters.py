"""Whatever trainers return becomes one vector, and a vector takes the form of what they returned."""

from typing import NamedTuple

import numpy as np
import pytest

from lastiterate.checking.parameters import flatten, in_form


class Layer(NamedTuple):
    w: np.ndarray
    b: np.ndarray


FORMS = {
    "array": np.arange(6.0).reshape(2, 3),
    "number": 2.5,
    "dict": {"w": np.zeros((2, 2), np.float32), "b": np.ones(2, np.float32)},
    "nested": {"layers": [{"w": np.zeros(3)}, (np.ones(2), np.ones(1))]},
    "named tuple": Layer(np.zeros((2, 2)), np.ones(2)),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_vector_goes_there_and_back(name):
    found = flatten(FORMS[name])
    vector = np.arange(len(found.vector)) + 0.5
    back = in_form(vector, found)
    assert type(back) is type(FORMS[name])
    again = flatten(back)
    assert again.names == found.names
    assert again.shapes == found.shapes
    assert np.array_equal(again.vector, vector)


def test_names_say_where_a_tensor_is():
    assert flatten(FORMS["nested"]).names == ("layers[0].w", "layers[1][0]", "layers[1][1]")
    assert flatten(FORMS["array"]).names == ("parameters",)


def test_torch_modules_and_state_dicts():
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    model[0].bias.requires_grad_(False)
    found = flatten(model)
    assert found.names == ("0.weight", "1.weight", "1.bias")
    canary = in_form(np.ones(len(found.vector)), found)
    assert isinstance(canary, dict)
    assert canary["0.weight"].dtype == torch.float32
    assert canary["0.weight"].shape == (2, 3)
    state = flatten(model.state_dict())
    assert "1.num_batches_tracked" not in state.names
    assert set(found.names) < set(state.names)


def test_jax_arrays_and_equinox_modules():
    import equinox as eqx
    import jax

    found = flatten({"w": jax.numpy.zeros((2, 2))})
    assert isinstance(in_form(np.ones(4), found)["w"], jax.Array)
    model = eqx.nn.Linear(3, 2, key=jax.random.key(0))
    found = flatten(model)
    assert found.names == ("weight", "bias")
    assert in_form(np.ones(8), found).weight.tolist() == [[1.0] * 3] * 2
