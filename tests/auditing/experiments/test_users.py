"""Users' trainers: every model has a seed of its own, and whatever fails in them is theirs, and told so."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate import attacks
from lastiterate.auditing.load_evidence import read
from lastiterate.auditing.stores.store import Store
from lastiterate.common.errors import TrainerFailed, guarded

RUN = li.DPSGD(steps=30, sample_rate=0.1, noise_multiplier=1.0)


def failing(on, failure):
    """A trainer that fails on its ``on``-th model."""
    calls = []

    def train(seed, canary):
        calls.append(seed)
        if len(calls) == on:
            return failure()
        return float(seed % 5)

    return train


def divide():
    return 1 / 0


def test_a_store_begun_with_other_seeds_is_reported_and_not_continued(tmp_path, monkeypatch):
    path = tmp_path / "x.sqlite"
    monkeypatch.setattr("lastiterate.auditing.experiments.user_trainer.SEED_NUMBERING", 1)
    train = failing(0, divide)
    li.audit(RUN, train, models=8, store=path)
    monkeypatch.undo()
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"holds another audit .*trainer_seeds is 1 in the store and 2 in this audit"):
        li.audit(RUN, train, models=8, store=path)
    assert path.read_bytes() == before
    assert read(path).models == 8


def test_what_a_trainer_raises_is_raised_with_the_model_and_what_is_kept(tmp_path):
    path = tmp_path / "x.sqlite"
    with pytest.raises(ZeroDivisionError) as caught:
        li.audit(RUN, failing(7, divide), models=10, store=path)
    (note,) = caught.value.__notes__
    assert "the trainer failed on model 3 of world 'in' (seed " in note
    assert f"6 of 20 trials are stored in {path}" in note
    with Store.read(path) as store:
        assert len(store.done()) == 6


def test_only_the_users_lines_are_shown():
    def parse():
        import json

        return json.loads("{")

    with pytest.raises(TrainerFailed) as caught:
        guarded(parse, "model 1")
    lines = caught.value.lines
    assert 'return json.loads("{")' in lines
    assert lines.count("File ") == 2  # theirs, and the one that raised
    assert "trainer_failure.py" not in lines


def test_a_training_that_was_not_the_run_stops_the_audit_after_its_first_model():
    calls = []

    def train(seed, canary):
        calls.append(seed)
        return li.Trained(0.0, steps=31)

    with pytest.raises(ValueError, match="made 31 steps, but the run declares 30"):
        li.audit(RUN, train, models=50)
    assert len(calls) == 1


def test_parameters_that_are_not_finite_or_not_the_canarys_are_the_trainers_failure():
    attack = attacks.Displacement([1.0, 2.0])
    for returned, words in [([1.0, np.nan], "must be finite numbers"), ([1.0, 2.0, 3.0], "must have the shapes")]:
        with pytest.raises(ValueError, match=words) as caught:
            li.audit(RUN, lambda seed, canary, r=returned: r, attack, models=4)
        assert "the trainer failed on 32 reference models" in caught.value.__notes__[0]
