"""What the tests of stores share."""

import numpy as np
import pytest

from lastiterate.auditing.stores.store import Store
from lastiterate.auditing.stores.trials import StoredTrials

SPECIFICATION = {"run": {"steps": 10, "weights": [1.0, 0.5]}, "models": 64, "seed": 0}
COLUMNS = ("models", "present", "scores", "accuracies", "seconds")
SETUP = {"chunk": 8, "python": "3"}


def chunk(first=0, count=4, **columns):
    both = dict(
        models=np.repeat(np.arange(first, first + count), 2),
        present=np.tile([True, False], count),
        scores=np.arange(2.0 * count),
        accuracies=np.full(2 * count, np.nan),
        seconds=np.full(2 * count, 0.25),
    )
    return StoredTrials(**{**both, **columns})


def begin(path, specification=SPECIFICATION, setup=SETUP):
    return Store.open(path, specification, setup)


def refusal(call, *arguments):
    with pytest.raises(ValueError, match=r".") as caught:
        call(*arguments)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-shm")}
