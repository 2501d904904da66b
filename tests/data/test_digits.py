"""The embedded data set is real, and split the same way everywhere."""

import hashlib

import numpy as np
from sklearn.datasets import load_digits

from lastiterate.data import digits


def test_both_parts_together_are_scikit_learns_digits_each_once():
    original = load_digits()
    data = digits()
    rows = np.concatenate([data.x_train, data.x_test]).reshape(-1, 64) * 16
    found = np.column_stack([rows, np.concatenate([data.y_train, data.y_test])])
    wanted = np.column_stack([original.data, original.target])
    np.testing.assert_array_equal(found[np.lexsort(found.T)], wanted[np.lexsort(wanted.T)])


def test_a_fifth_is_for_testing_with_every_class_in_proportion():
    data = digits()
    assert data.x_train.shape == (1437, 8, 8, 1)
    assert data.x_test.shape == (360, 8, 8, 1)
    assert (data.name, data.classes, data.x_train.max()) == ("digits", 10, 1.0)
    train, test = np.bincount(data.y_train), np.bincount(data.y_test)
    assert np.abs(test - (train + test) * 360 / 1797).max() <= 1


def test_the_order_is_shuffled_and_never_changes():
    data = digits()
    assert len(np.unique(data.y_train[:30])) == 10
    labels = np.concatenate([data.y_train, data.y_test]).astype("<i4").tobytes()
    assert hashlib.sha256(labels).hexdigest()[:16] == "e0823b8962487184"
