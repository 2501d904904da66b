"""A data set has one form, and cannot lose it."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from lastiterate.data import Dataset
from tests.data.writers import arrays


def fields(**changes) -> dict:
    rng = np.random.default_rng(0)
    return {
        "name": "some",
        "x_train": rng.random((6, 5, 7, 2), dtype=np.float32),
        "y_train": np.array([0, 1, 2, 0, 1, 2], dtype=np.int32),
        "x_test": rng.random((3, 5, 7, 2), dtype=np.float32),
        "y_test": np.array([2, 1, 0], dtype=np.int32),
        "classes": 3,
    } | changes


@pytest.mark.parametrize("key", ["x_train", "y_train", "x_test", "y_test"])
def test_nothing_in_it_can_be_changed_not_even_through_the_arrays_it_was_made_of(key):
    given = fields()
    data = Dataset(**given)
    with pytest.raises(ValueError, match="read-only"):
        getattr(data, key)[0] = 1
    with pytest.raises(FrozenInstanceError):
        setattr(data, key, given[key])
    before = getattr(data, key).copy()
    given[key][:] = 0
    np.testing.assert_array_equal(getattr(data, key), before)


def test_bytes_become_floats_with_an_axis_of_channels():
    given = arrays()
    data = Dataset.from_arrays("some", **given)
    np.testing.assert_array_equal(data.x_train, (given["x_train"] / np.float32(255))[..., None])
    assert (data.x_train.dtype, data.y_train.dtype, data.classes) == (np.float32, np.int32, 3)
    np.testing.assert_array_equal(data.y_test, given["y_test"])
