"""What the tests of stores share."""

from dataclasses import replace

import numpy as np
import pytest

import lastiterate as li
from lastiterate.attacks.attack import LinearScores, Words
from lastiterate.auditing.design import Paired, Quality
from lastiterate.auditing.identity import Identity
from lastiterate.auditing.stores.audit_record import Crafted, Record, ScoredTrials
from lastiterate.auditing.stores.store import Store

VALUES = {"run": {"steps": 10, "weights": [1.0, 0.5]}, "models": 64, "seed": 0}
SETUP = {"versions": {"python": "3"}, "created": "today"}
RUN = li.DPSGD(10, 0.5, 1.0, optimizer=li.SGD(0.1))
RECORD = Record(RUN, Paired(10**6), "a test", Quality("accuracy"), SETUP)
CRAFTED = Crafted({"best": float("inf")}, LinearScores(), Words("a test", "none")).fields() | {"chunk_size": 1}


def chunk(first=0, count=4, **columns):
    both = dict(
        models=np.repeat(np.arange(first, first + count), 2),
        present=np.tile([True, False], count),
        scores=np.arange(2.0 * count),
        qualities=np.full(2 * count, np.nan),
        seconds=np.full(2 * count, 0.25),
    )
    return ScoredTrials(**{**both, **columns})


def begin(path, values=VALUES, record=RECORD, unknown=()):
    store = Store.open(path, Identity(values, unknown), record)
    store.set_crafted(CRAFTED)
    return store


def recorded(**changes):
    return replace(RECORD, **changes)


def refusal(call, *arguments):
    with pytest.raises(ValueError, match=r".") as caught:
        call(*arguments)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-shm")}
