"""A data set has one form, and cannot lose it."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from lastiterate.data import Dataset
from tests.data.writers import arrays, refusal


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


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x_train": np.zeros((6, 5, 7), np.int64)}, "x_train must be uint8 or floats in [0, 1], got int64"),
        ({"x_train": np.zeros((6, 5, 7), object)}, "x_train must be uint8 or floats in [0, 1], got object"),
        ({"x_train": [[1], [1, 2]]}, "x_train must be an array, got list"),
        (
            {"x_train": np.zeros((6, 35), np.uint8)},
            "x_train must have shape [n, height, width] or [n, height, width, channels], each at least 1, got (6, 35)",
        ),
        ({"x_test": np.full((4, 5, 7), 255.0)}, "x_test must be in [0, 1], or in 0..255 as uint8, got 255.0"),
        ({"x_test": np.full((4, 5, 7), 1e300)}, "x_test must be in [0, 1], or in 0..255 as uint8, got 1e+300"),
        ({"y_test": np.zeros(4)}, "y_test must be integers, got float64"),
        ({"y_test": ["a"] * 4}, "y_test must be integers, got <U1"),
        ({"y_test": np.eye(4, dtype=int)}, "y_test must have shape [n] or [n, 1], got (4, 4)"),
        ({"y_test": np.array(3)}, "y_test must have shape [n] or [n, 1], got ()"),
        ({"y_test": [0, 1, 2, -1]}, "y_test must be at least 0 and below 2147483647, got -1"),
        ({"y_test": [0, 1, 2, 2**40]}, "y_test must be at least 0 and below 2147483647, got 1099511627776"),
        ({"classes": 2}, "y_train must be in 0..1, got 2"),
    ],
)
def test_arrays_that_are_no_images_and_labels_are_refused_by_name(changes, said):
    assert refusal(lambda: Dataset.from_arrays("some", **arrays() | changes)) == said
