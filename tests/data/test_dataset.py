"""A data set has one form, and cannot lose it."""

from __future__ import annotations

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


def test_it_holds_what_it_was_given():
    given = fields()
    data = Dataset(**given)
    for key, value in given.items():
        np.testing.assert_array_equal(getattr(data, key), value)
    assert repr(data) == "Dataset(name='some', classes=3)"


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


def test_a_read_only_view_of_memory_that_others_can_write_is_copied():
    images = fields()["x_train"]
    view = images[:]
    view.flags.writeable = False
    data = Dataset(**fields(x_train=view))
    images[:] = 0
    assert data.x_train.any()


def test_taking_some_gives_the_first_and_keeps_the_classes_without_copying():
    data = Dataset(**fields())
    part = data.take(train=2, test=1)
    np.testing.assert_array_equal(part.x_train, data.x_train[:2])
    np.testing.assert_array_equal(part.y_train, data.y_train[:2])
    np.testing.assert_array_equal(part.x_test, data.x_test[:1])
    np.testing.assert_array_equal(part.y_test, data.y_test[:1])
    assert (part.name, part.classes) == ("some", 3)
    assert np.shares_memory(part.x_train, data.x_train)
    assert len(data.take(train=2).x_test) == 3
    assert len(data.take(test=2).x_train) == 6


@pytest.mark.parametrize("count", [0, 7, -1, 2.0, True])
def test_taking_more_than_there_is_or_none_is_refused(count):
    message = refusal(lambda: Dataset(**fields()).take(train=count))
    assert message == f"train must be an integer in [1, 6], got {count!r}"


def test_bytes_become_floats_with_an_axis_of_channels():
    given = arrays()
    data = Dataset.from_arrays("some", **given)
    np.testing.assert_array_equal(data.x_train, (given["x_train"] / np.float32(255))[..., None])
    assert (data.x_train.dtype, data.y_train.dtype, data.classes) == (np.float32, np.int32, 3)
    np.testing.assert_array_equal(data.y_test, given["y_test"])


def test_all_bytes_stay_distinct_and_reach_both_ends():
    ramp = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    data = Dataset.from_arrays("ramp", ramp, [0], ramp, [0])
    assert len(np.unique(data.x_train)) == 256
    assert (data.x_train.min(), data.x_train.max()) == (0.0, 1.0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f8"])
def test_floats_keep_their_values_whatever_their_width(dtype):
    images = np.array([0.0, 0.25, 0.5, 1.0], dtype).reshape(1, 2, 2, 1)
    data = Dataset.from_arrays("some", images, [1], images, [0], classes=5)
    np.testing.assert_array_equal(data.x_test.ravel(), [0.0, 0.25, 0.5, 1.0])
    assert data.classes == 5


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, ">i4"])
def test_labels_may_be_integers_of_any_width_and_a_column(dtype):
    data = Dataset.from_arrays("some", **arrays() | {"y_test": np.array([[0], [1], [2], [1]], dtype)})
    np.testing.assert_array_equal(data.y_test, [0, 1, 2, 1])


def test_classes_are_counted_over_both_parts():
    assert Dataset.from_arrays("some", **arrays() | {"y_test": [0, 1, 2, 8]}).classes == 9


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
