"""Whatever trainers return becomes one vector, and a vector takes the form of what they returned."""

from time import process_time
from typing import NamedTuple

import numpy as np
import pytest

import lastiterate
from lastiterate.checking.parameters import flatten, in_form, require_finite


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


def test_what_is_not_trained_is_left_as_it_is():
    found = flatten({"count": np.int64(3), "w": np.zeros(2), "name": "x"})
    assert found.names == ("w",)
    assert in_form(np.ones(2), found)["count"] == 3


def test_precision_is_that_of_the_coarsest_number():
    assert flatten({"w": np.zeros(2, np.float32), "b": np.zeros(2)}).precision == 2.0**-24


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


def test_a_tree_without_a_bottom_and_numbers_that_have_no_square_are_refused():
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="got a tree more than 100 levels deep"):
        flatten(endless)
    with pytest.raises(ValueError, match=r"parameters must be in \[-1e150, 1e150\], but 2 of tensor 'b' are not"):
        require_finite(flatten({"a": np.ones(3), "b": np.array([1e200, 1.0, -1e200])}))


def test_hundreds_of_tensors_take_no_longer_than_their_numbers():
    """Where each tensor is was found anew for each tensor and canary: seconds for a hundred."""

    def train(seed, canary):
        return list(np.random.default_rng(seed).standard_normal((300, 1)))

    run = lastiterate.DPSGD(steps=3, sample_rate=0.5, noise_multiplier=1.0)
    began = process_time()
    assert len(lastiterate.check(run, train, models=8).rows) > 300
    assert process_time() - began < 10.0
