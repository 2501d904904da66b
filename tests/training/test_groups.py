"""A group is so many copies of the canary, each sampled and clipped by itself. About 10 seconds."""

import numpy as np
import pytest
from scipy.stats import ks_2samp

import lastiterate as li
from lastiterate import data
from lastiterate.attacks import Adversarial, GradientSpace
from lastiterate.auditing.evidence.score_signal import expected_signal
from lastiterate.training import GradientCanary, problems, train

QUIET = 1e-6  # noise, next to which a canary is counted exactly


def copies_in(run: li.DPSGD, canary: object, problem: object, models: int) -> np.ndarray:
    """How many copies of a canary of norm 1 each model was trained with."""
    trained = train(run, problem, canary, models=models, present=True)
    return np.rint(-np.asarray(trained.parameters).reshape(models, -1)[:, 0]).astype(int)


@pytest.mark.parametrize("others", [None, 5])
def test_copies_of_a_gradient_canary_are_binomial(others):
    run = li.DPSGD(3, 0.3, QUIET, optimizer=li.SGD(1.0), group_size=4)
    problem = problems.linear(np.zeros((others, 1), np.float32)) if others else problems.linear()
    counts = copies_in(run, GradientCanary(np.array([10.0], np.float32)), problem, 4000)
    expected = np.random.default_rng(0).binomial(12, 0.3, 4000)
    assert ks_2samp(counts, expected).pvalue > 1e-3
    assert counts.mean() == pytest.approx(3.6, abs=0.1)


def test_trained_and_drawn_scores_of_a_group_have_one_distribution():
    run = li.DPSGD(60, 0.1, 1.5, optimizer=li.SGD(0.3), group_size=4)
    trained, drawn = (
        li.audit(run, None, Adversarial(kind), models=4000, seed=5, methods=["gdp"]) for kind in ("trained", "exact")
    )
    for world in ("scores_in", "scores_out"):
        assert ks_2samp(getattr(trained, world), getattr(drawn, world)).pvalue > 1e-3


def test_audit_of_digits_has_the_signal_that_is_predicted():
    run = li.DPSGD(40, 0.1, 1.0, optimizer=li.SGD(0.02), group_size=4)
    result = li.audit(run, problems.logistic(data.digits()), GradientSpace("quiet"), models=96, methods=["gdp"])
    assert result.ideal_signal == pytest.approx(expected_signal(run))
    assert result.ideal_signal > 3 * expected_signal(run.replace(group_size=1))
    assert result.signal == pytest.approx(result.ideal_signal, rel=0.2)
    assert result.verdict != "violation"
