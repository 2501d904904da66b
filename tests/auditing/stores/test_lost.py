"""A store that disappears while its audit runs: noticed at the next commit, written elsewhere, and continued there."""

import os
import shutil
import sqlite3
import sys
from pathlib import Path

import numpy as np
import pytest

import lastiterate as li
from lastiterate.auditing.stores.store import Store
from lastiterate.common.errors import StoreLost
from tests.auditing.stores.helpers import begin, chunk

RUN = li.DPSGD(steps=30, sample_rate=0.1, noise_multiplier=1.0)
MODELS = 10
ACT = {"at": None, "how": None, "calls": 0}  # a trainer's own damage; not part of its source


def train(seed, canary):
    """Scores that a seed determines; at one call something happens to the store."""
    from tests.auditing.stores import test_lost  # what is imported from tests is compared by its source alone

    act = test_lost.ACT
    act["calls"] += 1
    if act["calls"] == act["at"]:
        act["how"]()
    return seed % 1000 / 500 + canary


def other_store(path):
    with begin(path) as store:
        store.add(chunk(count=50))
    return path


def removed(store):
    store.unlink()


def replaced_by_a_text(store):
    store.unlink()
    store.write_text("mine " * 5000)


def overwritten_by_a_text(store):
    with store.open("r+b") as file:
        file.write(b"mine " * 5000)


def replaced_by_a_store(store):
    other_store(store.with_name("other.sqlite")).replace(store)


def overwritten_by_a_store(store):
    store.write_bytes(other_store(store.with_name("other.sqlite")).read_bytes())


def emptied(store):
    os.truncate(store, 0)


def cut(store):
    os.truncate(store, store.stat().st_size // 2)


def moved(store):
    store.rename(store.with_name("elsewhere.sqlite"))


def folder_gone(store):
    shutil.rmtree(store.parent)


def folder_renamed(store):
    store.parent.rename(store.parent.with_name("renamed"))


def log_removed(store):
    store.with_name(f"{store.name}-wal").unlink()


def scores_changed(store):
    with sqlite3.connect(store, isolation_level=None) as database:
        database.execute("UPDATE trials SET score = score + 1")
    database.close()


def trigger_planted(store):
    with sqlite3.connect(store, isolation_level=None) as database:
        database.execute("CREATE TRIGGER t AFTER INSERT ON trials BEGIN UPDATE trials SET score = 9; END")
    database.close()


KINDS = [
    removed,
    replaced_by_a_text,
    overwritten_by_a_text,
    replaced_by_a_store,
    overwritten_by_a_store,
    emptied,
    cut,
    moved,
    folder_gone,
    folder_renamed,
    log_removed,
    scores_changed,
    trigger_planted,
]


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys.modules[__name__], "ACT", {"at": None, "how": None, "calls": 0})
    return tmp_path / "runs" / "s.sqlite"


def audit(store):
    return li.audit(RUN, train, models=MODELS, store=store)


@pytest.mark.parametrize(
    ("damage", "at"),
    [
        (damage, at) for damage in KINDS for at in (1, 2 * MODELS) if (damage, at) != (scores_changed, 1)
    ],  # it has none yet
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_all_trials_are_in_another_store_and_the_audit_goes_on_there(place, damage, at):
    whole = audit(None)
    ACT.update(at=at, how=lambda: damage(place), calls=0)
    with pytest.raises(StoreLost, match=r"^the store '.*s\.sqlite' was \w+.* while the audit ran: ") as caught:
        audit(place)
    rescued = caught.value.rescued
    assert repr(str(rescued)) in str(caught.value)
    assert f"its {at} trials are now in" in str(caught.value)
    gone = damage in (folder_gone, folder_renamed)
    assert rescued == (Path.cwd() if gone else place.parent) / "s-rescued.sqlite"
    with Store.read(rescued) as store:
        assert len(store.done()) == at
    ACT.update(at=None, calls=0)
    resumed = audit(rescued)
    assert ACT["calls"] == 2 * MODELS - at
    np.testing.assert_array_equal(resumed.scores_in, whole.scores_in)
    np.testing.assert_array_equal(resumed.scores_out, whole.scores_out)
    assert resumed.estimates == whole.estimates


@pytest.mark.parametrize("damage", [replaced_by_a_store, overwritten_by_a_store])
def test_what_is_in_its_place_now_is_left_as_it_is(place, damage):
    ACT.update(at=7, how=lambda: damage(place))
    with pytest.raises(StoreLost):
        audit(place)
    with Store.read(place) as other:
        assert len(other.done()) == 100
        assert other.record.data == "a test"
