"""``lastiterate.audit``: reproducible, resumable, ordered as predicted, and clear about what it cannot do."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate import attacks, data
from lastiterate.auditing.stores.store import Store
from lastiterate.training import problems

RUN = li.DPSGD(30, 0.1, 1.0, optimizer=li.SGD(0.02))
PROBLEM = problems.logistic(data.digits())
ATTACK = attacks.GradientSpace("quiet", references=4)


def noisy_sum(seed: int, canary: bool) -> float:
    """DP-SGD in one dimension, written by a user."""
    generator = np.random.default_rng(seed)
    batches = canary * (generator.random(RUN.steps) < RUN.sample_rate)
    return float(np.sum(batches + RUN.noise_multiplier * generator.standard_normal(RUN.steps)))


def test_interrupted_audit_resumes_and_equals_an_uninterrupted_one(tmp_path, monkeypatch):
    whole = li.audit(RUN, PROBLEM, ATTACK, models=40, seed=1)
    add, added = Store.add, []

    def stop_at_third(self, chunk):
        if len(added) == 2:
            raise KeyboardInterrupt
        add(self, chunk)
        added.append(chunk)

    monkeypatch.setattr(Store, "add", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        li.audit(RUN, PROBLEM, ATTACK, models=40, seed=1, store=tmp_path / "x.sqlite")
    monkeypatch.setattr(Store, "add", add)
    with Store.read(tmp_path / "x.sqlite") as store:
        stored = len(store.done())
    assert 0 < stored < 80
    resumed = li.audit(RUN, PROBLEM, ATTACK, models=40, seed=1, store=tmp_path / "x.sqlite")
    np.testing.assert_array_equal(resumed.scores_in, whole.scores_in)
    np.testing.assert_array_equal(resumed.scores_out, whole.scores_out)
    assert resumed.estimates == whole.estimates


@pytest.mark.parametrize(
    "changes",
    [{"models": 21}, {"seed": 1}, {"run": RUN.replace(steps=31)}, {"problem": lambda seed, canary: 0.0}],
    ids=["models", "seed", "run", "trainer"],
)
def test_another_audit_is_refused_and_nothing_touched(tmp_path, changes):
    path = tmp_path / "x.sqlite"
    given = {"run": RUN, "problem": noisy_sum, "models": 20, "store": path}
    li.audit(**given)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"is .* in the store and .* in this audit"):
        li.audit(**(given | changes))
    assert path.read_bytes() == before


def test_score_that_is_no_number_is_refused_and_earlier_ones_are_kept(tmp_path):
    path, calls = tmp_path / "x.sqlite", []

    def fails_late(seed, canary):
        calls.append(seed)
        return float("nan") if len(calls) == 5 else 1.0

    with pytest.raises(ValueError, match="scores must be numbers, infinite ones included, got nan"):
        li.audit(RUN, fails_late, models=10, store=path)
    with Store.read(path) as store:
        assert len(store.done()) == 4
