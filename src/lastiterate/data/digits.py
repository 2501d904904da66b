"""The data set that needs no download: 1,797 handwritten digits of 8 by 8 pixels, which scikit-learn carries."""

from __future__ import annotations

from importlib import import_module

import numpy as np

from lastiterate.arrays import IntArray
from lastiterate.data.dataset import Dataset

TEST_IMAGES = 360  # a fifth
_SEED = 0


def digits() -> Dataset:
    """1,437 images to train on and 360 to test, every class in the same proportion; the same split everywhere."""
    try:
        bunch = import_module("sklearn.datasets").load_digits()
    except ImportError:
        raise ValueError(
            'the digits need scikit-learn, which could not be imported: pip install "lastiterate[audit]"'
        ) from None
    images, labels = (bunch.images / 16).astype(np.float32), bunch.target
    train, test = _split(labels)
    return Dataset.from_arrays("digits", images[train], labels[train], images[test], labels[test], classes=10)


def _split(labels: IntArray) -> tuple[IntArray, IntArray]:
    """Indices of both parts, in shuffled order.

    NumPy promises that the raw bits of a generator stay the same from version to version, but not its permutations.
    """
    choice, order = np.random.PCG64(_SEED).random_raw((2, len(labels)))
    quantile = np.empty(len(labels))  # of the choice among those of the same class
    for label in np.unique(labels):
        same = np.flatnonzero(labels == label)
        quantile[same[np.argsort(choice[same])]] = (np.arange(len(same)) + 0.5) / len(same)
    tested = np.zeros(len(labels), dtype=bool)
    tested[np.argsort(quantile, kind="stable")[:TEST_IMAGES]] = True
    shuffled = np.argsort(order)
    return shuffled[~tested[shuffled]], shuffled[tested[shuffled]]
