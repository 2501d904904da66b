"""A data set has one form, and cannot lose it."""

import numpy as np

from lastiterate.data import Dataset
from tests.data.writers import arrays


def test_bytes_become_floats_with_an_axis_of_channels():
    given = arrays()
    data = Dataset.from_arrays("some", **given)
    np.testing.assert_array_equal(data.x_train, (given["x_train"] / np.float32(255))[..., None])
    assert (data.x_train.dtype, data.y_train.dtype, data.classes) == (np.float32, np.int32, 3)
    np.testing.assert_array_equal(data.y_test, given["y_test"])
