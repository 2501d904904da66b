"""``lastiterate.audit``: reproducible, resumable, ordered as predicted, and clear about what it cannot do."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate import attacks, data
from lastiterate.auditing.evidence.estimates import Question
from lastiterate.auditing.load_evidence import read
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


def test_equal_calls_give_equal_scores():
    first, second = (li.audit(RUN, PROBLEM, ATTACK, models=6, seed=4) for _ in range(2))
    np.testing.assert_array_equal(first.scores_in, second.scores_in)
    np.testing.assert_array_equal(first.scores_out, second.scores_out)
    other = li.audit(RUN, PROBLEM, ATTACK, models=6, seed=5)
    assert np.all(first.scores_in != other.scores_in)


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


def test_finished_audit_is_read_and_not_trained_again(tmp_path, monkeypatch):
    path = tmp_path / "x.sqlite"
    first = li.audit(RUN, noisy_sum, models=20, store=path)

    def never(*arguments):
        raise AssertionError("trained again")

    monkeypatch.setattr("lastiterate.auditing.experiments.user_trainer.UserTrainings.score", never)
    again = li.audit(RUN, noisy_sum, models=20, store=path)
    assert again.estimates == first.estimates
    assert again.seconds >= first.seconds


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
    with pytest.raises(ValueError, match=r"is .* there and .* here"):
        li.audit(**(given | changes))
    assert path.read_bytes() == before


def test_users_scores_are_judged_by_split_and_not_refuted():
    result = li.audit(RUN, noisy_sum, models=400, seed=2)
    assert {each.threshold_choice for each in result.estimates.values()} == {"split"}
    assert result.verdict not in ("violation", "above heuristic")
    assert 0.0 < result.empirical["last-iterate"] <= result.last_iterate <= result.composition
    assert result.accuracy is None


def test_trainer_that_returns_parameters_needs_an_attack():
    with pytest.raises(ValueError, match=r"attack must be given where the trainer returns parameters .*shape \(3,\)"):
        li.audit(RUN, lambda seed, canary: np.zeros(3), models=2)


def test_score_that_is_no_number_is_refused_and_earlier_ones_are_kept(tmp_path):
    path, calls = tmp_path / "x.sqlite", []

    def fails_late(seed, canary):
        calls.append(seed)
        return float("nan") if len(calls) == 5 else 1.0

    with pytest.raises(ValueError, match="scores must be numbers, infinite ones included, got nan"):
        li.audit(RUN, fails_late, models=10, store=path)
    with Store.read(path) as store:
        assert len(store.done()) == 4


def test_seeds_of_a_users_trainer_are_all_different():
    seeds = []

    def record(seed, canary):
        seeds.append(seed)
        return float(seed % 7)

    li.audit(RUN, record, models=50, seed=3)
    assert len(set(seeds)) == 100
    assert all(0 <= seed < 2**32 for seed in seeds)


@pytest.mark.slow
def test_quiet_direction_reaches_the_heuristic_on_natural_digits(tmp_path):
    """1,024 models per world at a heuristic epsilon between 6 and 8, with a threshold chosen before training."""
    run = li.calibrate(RUN, epsilon=7.0, delta=1e-5, analysis=li.last_iterate)
    result = li.audit(run, PROBLEM, attacks.GradientSpace("quiet"), models=1024, store=tmp_path / "x.sqlite")
    found = result.estimates["last-iterate"]
    assert found.threshold_choice == "a-priori"
    assert 0.75 * result.last_iterate <= found.epsilon <= result.last_iterate
    assert result.signal == pytest.approx(result.ideal_signal, rel=0.1)
    assert result.verdict not in ("violation", "above heuristic")
    strict = read(tmp_path / "x.sqlite", Question(confidence=0.999))
    assert strict.verdict not in ("violation", "above heuristic")
    assert strict.empirical["last-iterate"] < found.epsilon


def test_what_does_not_go_together_is_refused_and_leaves_no_store(tmp_path):
    path = tmp_path / "x.sqlite"
    for given, sentence in [
        ((RUN.replace(optimizer=None), PROBLEM, ATTACK), "optimizer must be given for the trainer, got None"),
        ((RUN, noisy_sum, ATTACK), "attack must be None or lastiterate.attacks.Displacement for a trainer"),
        ((RUN, PROBLEM, attacks.Displacement([1.0])), "attack must be one of lastiterate.attacks for a problem"),
        ((RUN, None, ATTACK), "problem must be a training.Problem or a trainer for this attack, got None"),
        ((RUN, PROBLEM, attacks.OneRun()), "models must be at most 650"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            li.audit(*given, models=700, store=path)
        assert not list(tmp_path.iterdir())
