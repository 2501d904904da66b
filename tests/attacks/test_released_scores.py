"""Exact draws of what people, replaced examples and several releases show reach the analyses. About 8 seconds."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate.attacks import Adversarial
from lastiterate.attacks.adversarial import sample_scores
from lastiterate.auditing.evidence.score_signal import expected_signal, false_alarms, score_below, signal_of
from lastiterate.auditing.load_evidence import read

RUN = li.DPSGD(100, 0.05, 1.0)
DECAYED = li.DPSGD(60, 0.1, 1.0, optimizer=li.SGD(np.linspace(0.2, 0.1, 60), weight_decay=0.2))
RUNS = {
    "group": RUN.replace(group_size=4),
    "replace": RUN.replace(neighbours="replace"),
    "replaced group": RUN.replace(neighbours="replace", group_size=3),
    "releases": RUN.replace(releases=5),
    "given releases of groups": RUN.replace(releases=[10, 70], group_size=2),
    "replace, releases": RUN.replace(neighbours="replace", releases=4),
    "all released": RUN.replace(releases=100),
    "schedule and decay": DECAYED.replace(releases=3),
}


@pytest.mark.parametrize("name", RUNS)
def test_drawn_scores_have_the_errors_of_the_heuristic(name):
    run = RUNS[name]
    scores = sample_scores(run, np.arange(80_000) % 2 == 0, np.random.default_rng(1))
    inside, outside = scores[::2], scores[1::2]
    curve = li.last_iterate(run)
    for rate in (0.02, 0.2, 0.6):
        threshold = np.quantile(outside, 1.0 - rate)
        assert np.mean(inside < threshold) == pytest.approx(curve.fnr(rate), abs=0.015)
    if run.release_count > 1:  # the score is the loss itself: at epsilon, above it, delta
        for epsilon in (0.3, 1.0):
            shown = np.mean(inside >= epsilon) - np.exp(epsilon) * np.mean(outside >= epsilon)
            other = np.mean(outside <= -epsilon) - np.exp(epsilon) * np.mean(inside <= -epsilon)
            assert max(shown, other) == pytest.approx(curve.delta(epsilon), abs=0.015)


@pytest.mark.parametrize("name", ["group", "replace", "replaced group"])
def test_law_of_linear_scores_is_that_of_the_draws(name):
    run = RUNS[name]
    scores = sample_scores(run, np.arange(100_000) % 2 == 0, np.random.default_rng(2))
    inside, outside = scores[::2], scores[1::2]
    at = np.array([-0.5, 0.4, 1.5])
    np.testing.assert_allclose(score_below(run, at), [np.mean(inside < x) for x in at], atol=0.01)
    np.testing.assert_allclose(false_alarms(run, at), [np.mean(outside > x) for x in at], atol=0.01)
    assert expected_signal(run) == pytest.approx(signal_of(inside, outside), abs=0.03)


@pytest.mark.parametrize("name", ["group", "replace", "releases"])
def test_audit_by_exact_draws_is_near_the_heuristic_and_never_refutes(name, tmp_path):
    run = RUNS[name]
    result = li.audit(run, None, Adversarial(), models=20_000, seed=3, store=tmp_path / "s.sqlite")
    assert result.verdict not in ("violation", "above heuristic")
    assert 0.85 * result.last_iterate < result.empirical["last-iterate"] <= 1.02 * result.last_iterate
    assert result.run == run
    assert read(tmp_path / "s.sqlite").empirical == result.empirical
    assert "sees only" in result.waterfall[1].words


def test_half_of_the_noise_is_refuted_for_people():
    claimed, trained = RUN.replace(group_size=4), RUN.replace(group_size=4, noise_multiplier=0.4)
    result = li.audit(trained, None, Adversarial(), models=20_000, seed=0, methods=["gdp"], claim_noise=1.0)
    assert result.verdict == "violation"
    scores = sample_scores(trained, np.arange(4000) % 2 == 0, np.random.default_rng(0))
    found = li.estimate(scores[::2], scores[1::2], method="last-iterate", run=claimed)
    assert found.noise_multiplier < 1.0
