"""The shifting regulariser: its last iterate is the history of the run, as the paper says, and leaks like it."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp

import lastiterate as li
from lastiterate.attacks.released_iterates import sample_likelihood_ratios
from lastiterate.cli.probe import STORIES
from lastiterate.paper.counterexamples import shift
from lastiterate.paper.counterexamples.setting import last_iterate_scores
from lastiterate.paper.counterexamples.shift import DEFAULTS, Shift, noise_factors
from lastiterate.plot.counterexample import counterexample_chart
from lastiterate.training import train
from lastiterate.training.draws import model_keys, normals

PLAIN = li.SGD(1.0)


def observed(run, growth, models, present, seed=0):
    """Scaled coordinates of trained models."""
    armed = Shift(growth).arm(run, None, {})
    with jax.enable_x64(True):
        trained = train(run, armed.problem, armed.canary, models=models, present=present, seed=seed, progress=False)
    return armed.score.observed(trained.parameters)


def test_the_paper_s_update_adds_up_to_independent_coordinates_of_the_stated_noise():
    steps, growth = 6, 1.7
    matrix = growth * np.eye(steps, k=-1)  # m'_1 = 0, m'_{i+1} = v m_i
    powers = [np.linalg.matrix_power(matrix, ago) for ago in range(steps)]
    covariance = sum(power @ power.T for power in powers)
    assert covariance == pytest.approx(np.diag(np.diag(covariance)))
    size = growth ** np.arange(steps)
    assert np.sqrt(np.diag(covariance)) / size == pytest.approx(noise_factors(growth, steps))
    for ago, power in enumerate(powers):  # A_(T-ago) is in coordinate ago + 1
        assert power[:, 0] / size == pytest.approx(np.eye(steps)[ago])


@pytest.mark.parametrize(("steps", "growth"), [(50, 1e6), (80, 1.0)])
def test_floats_hold_the_whole_history(steps, growth):
    run = li.DPSGD(steps, 0.1, 0.8, clip_norm=2.0, optimizer=li.SGD(0.5))
    absent = np.zeros(8, bool)
    keys = model_keys(3, np.arange(8), absent).noise
    with jax.enable_x64(True):
        draw = jax.jit(lambda step: normals(keys, step, (steps,), 0, np.float64))
        noise = 0.8 * np.stack([draw(np.int32(step)) for step in range(steps)])
    expected = np.zeros((8, steps))
    for coordinate in range(steps):
        for ago in range(coordinate + 1):
            expected[:, coordinate] += growth ** -(coordinate - ago) * noise[steps - 1 - ago, :, coordinate - ago]
    assert observed(run, growth, 8, absent, seed=3) == pytest.approx(expected, abs=1e-12)


def test_trained_coordinates_are_independent_and_have_the_stated_moments():
    run, models = li.DPSGD(6, 0.3, 0.9, optimizer=PLAIN), 20_000
    for present, mean, chance in ((False, 0.0, 0.0), (True, 0.3, 0.3 * 0.7)):
        x = observed(run, 1.5, models, present)
        variance = 0.81 * noise_factors(1.5, 6) ** 2 + chance
        assert x.mean(axis=0) == pytest.approx(mean, abs=4.0 * np.sqrt(variance.max() / models))
        assert x.var(axis=0) == pytest.approx(variance, rel=4.0 * np.sqrt(2.0 / models))
        assert np.corrcoef(x.T) == pytest.approx(np.eye(6), abs=4.0 / np.sqrt(models))


def test_scores_have_the_law_of_the_likelihood_ratio():
    run = li.DPSGD(8, 0.3, 0.9, clip_norm=2.0, optimizer=li.SGD(0.5))
    scores = last_iterate_scores(replace(DEFAULTS, models=10_000), run, Shift(1.2), "test")
    for world, trained in zip((True, False), scores, strict=True):
        drawn = sample_likelihood_ratios(Shift(1.2).seen(run), np.full(50_000, world), np.random.default_rng(1))
        assert ks_2samp(trained, drawn).pvalue > 1e-3


@given(
    steps=st.integers(8, 24),
    rate=st.sampled_from([0.2, 0.4]),
    noise=st.sampled_from([0.8, 1.5]),
    growths=st.lists(st.sampled_from([1.2, 1.5, 2.0, 4.0, 20.0]), min_size=2, max_size=2, unique=True).map(sorted),
)
@settings(max_examples=8)
def test_epsilon_rises_with_growth_up_to_composition(steps, rate, noise, growths):
    run = li.DPSGD(steps, rate, noise)
    (_, lower), (higher, _) = (li.composition(Shift(growth).seen(run)).bracket(1e-5) for growth in growths)
    assert lower < higher < li.composition(run).bracket(1e-5)[1]


def test_large_growth_makes_composition_tight():
    run = li.DPSGD(20, 0.2, 1.0)
    assert li.composition(Shift(1e6).seen(run)).epsilon(1e-5) == pytest.approx(
        li.composition(run).epsilon(1e-5), rel=1e-8
    )


def test_attack_finds_nine_tenths_of_composition():
    run = DEFAULTS.calibrated_run()  # standard epsilon 8 at 50 steps
    found = shift.find_epsilon(replace(DEFAULTS, models=20_000), run, Shift(10.0))
    assert li.last_iterate(run).epsilon(1e-5) < 5.4
    assert 0.9 * 8.0 <= found <= 8.0


def test_probe_tells_what_it_trained_and_what_not(monkeypatch):
    monkeypatch.setattr(shift, "_AUDITED", (2.0,))
    found = shift.probe(replace(DEFAULTS, steps=10, sample_rate=0.3, noise_multiplier=1.0, models=500, growth=4.0))
    rows = {row["growth"]: row for row in found.rows}
    assert [growth for growth, row in rows.items() if row["models"]] == [2.0, 4.0]
    assert all(0.5 * row["exact"] < row["empirical"] <= row["exact"] for row in rows.values() if row["models"])
    assert rows[10.0]["empirical"] is None
    assert rows[10.0]["empirical_reason"]
    exact = [row["exact"] for row in found.rows]
    assert exact == sorted(exact)
    assert exact[-1] <= found.predictions["composition"].value
    assert found.cases[0].exact.value == rows[4.0]["exact"]
    assert "predicts, it does not guarantee" in STORIES["shift"].sentences(found)[-1]
    lines, points = counterexample_chart(found, "A title").to_dict()["layer"]
    levels = {row["analysis"]: row["epsilon"] for row in lines["data"]["values"]}
    assert levels["composition (standard)"] == found.predictions["composition"].value
    shown = {row["growth"]: row["epsilon"] for row in lines["data"]["values"] if "exact" in row["analysis"]}
    assert shown == {growth: row["exact"] for growth, row in rows.items()}
    assert {row["growth"]: row["epsilon"] for row in points["data"]["values"]} == {
        growth: rows[growth]["empirical"] for growth in (2.0, 4.0)
    }
