"""Many canaries in one training: the coins decide who is in, and every canary gets its own score."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate import data, training
from lastiterate.attacks import OneRun
from lastiterate.registry import ONE_RUN_METHODS
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
def test_one_run_finds_something_but_no_more_than_is_guaranteed(kind):
    result = li.audit(RUN, PROBLEM, OneRun(kind, references=4), models=300, seed=1)
    assert set(result.empirical) == {*ONE_RUN_METHODS}
    assert len(result.scores_in) + len(result.scores_out) == 300
    assert result.signal > 0.1
    assert all(value <= result.composition for value in result.empirical.values())
    if kind == "gradient":
        assert result.signal == pytest.approx(result.ideal_signal, rel=0.25)
        assert result.empirical["one-run-fdp"] > 0.0
