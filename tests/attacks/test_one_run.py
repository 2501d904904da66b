"""Many canaries in one training: the coins decide who is in, and every canary gets its own score."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate import data, training
from lastiterate.attacks import OneRun
from lastiterate.auditing.experiments import shipped_trainer
from lastiterate.auditing.experiments.choose import Given, experiment_on
from lastiterate.auditing.experiments.shipped_trainer import TrainsReferences
from lastiterate.labels import ONE_RUN_METHODS
from lastiterate.training import problems

RUN = li.DPSGD(60, 0.1, 1.0, clip_norm=0.5, optimizer=li.SGD(0.02))
PROBLEM = problems.logistic(data.digits())


def test_gradient_canaries_are_clipped_and_only_those_of_the_coins_are_in():
    attack, silent = OneRun(), RUN.replace(noise_multiplier=1e-6, sample_rate=1.0, sampling="full")
    indices = [0, 7, 640]
    problem = attack.trained_problem(silent, PROBLEM, {"indices": indices}, np.array([True, False, True]))
    assert problem.size == PROBLEM.size + 2
    linear = problems.linear(np.zeros((4, 3), np.float32))
    few = attack.trained_problem(silent, linear, {"indices": [0, 1, 2]}, np.array([True, False, True]))
    moved = -training.train(silent, few, models=1, progress=False).flat()[0]
    expected = 0.5 * np.sum(np.broadcast_to(silent.effective_weights(), RUN.steps)) * np.array([1.0, 0.0, 1.0])
    np.testing.assert_allclose(moved, expected, rtol=1e-3, atol=1e-4)


def test_natural_gradients_are_those_of_the_problem():
    attack, silent = OneRun(), RUN.replace(noise_multiplier=1e-6, sample_rate=1.0, sampling="full")
    problem = attack.trained_problem(silent, PROBLEM, {"indices": [3]}, np.array([False]))
    with_none = training.train(silent, problem, models=1, progress=False).flat()
    plain = training.train(silent, PROBLEM, models=1, progress=False).flat()
    np.testing.assert_allclose(with_none, plain, atol=1e-5)


@pytest.mark.parametrize("kind", ["gradient", "mislabelled"])
def test_one_run_is_one_training(kind, monkeypatch):
    taken = []

    def counting(run, problem, *args, **options):
        taken.append(run.steps)
        return training.train(run, problem, *args, **options)

    monkeypatch.setattr(shipped_trainer, "train", counting)
    li.audit(RUN, PROBLEM, OneRun(kind), models=20, seed=1)
    assert taken == ([1, RUN.steps] if kind == "gradient" else [RUN.steps])  # one batch finds quiet parameters
    given = Given(RUN, OneRun(kind), 20, 1)
    cost = experiment_on(PROBLEM, given).cost()
    assert (cost.models, cost.reference_models) == (1, 0)


def test_scores_without_canaries_are_noise_alone():
    attack, references = OneRun(), TrainsReferences(0, progress=False)
    for optimizer in (li.SGD(0.02), li.SGD(0.02, weight_decay=0.5), li.SGD(0.02, averaging="uniform")):
        run, coins = RUN.replace(optimizer=optimizer), np.zeros(300, bool)
        facts = attack.craft_many(run, PROBLEM, references, 300)
        problem = attack.trained_problem(run, PROBLEM, facts, coins)
        scores = attack.scores(run, PROBLEM, facts, training.train(run, problem, models=1, progress=False).parameters)
        assert abs(scores.mean()) < 0.25
        assert scores.std() == pytest.approx(1.0, abs=0.25)  # 1.7 if the drift by natural gradients is not foreseen


@pytest.mark.parametrize("attack", [OneRun(), OneRun("mislabelled", references=4)], ids=lambda each: each.canary)
def test_one_run_finds_something_but_no_more_than_is_guaranteed(attack):
    is_gradient = attack.canary == "gradient"
    problem = problems.mlp(data.digits()) if is_gradient else PROBLEM
    result = li.audit(RUN, problem, attack, models=1000 if is_gradient else 300, seed=1)
    assert set(result.empirical) == {*ONE_RUN_METHODS}
    assert len(result.scores_in) + len(result.scores_out) == (1000 if is_gradient else 300)
    assert result.signal > 0.1
    assert all(value <= result.composition for value in result.empirical.values())
    if is_gradient:
        assert result.signal == pytest.approx(result.ideal_signal, rel=0.25)
        assert result.empirical["one-run-fdp"] > 0.0
