"""Mu of Gaussian DP, its regret, and the risk of an attack, against closed forms and other tools."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

import lastiterate as li
from lastiterate.privacy.gaussian_dp import find_mu, find_mu_bracket

RUNS = [li.DPSGD(100, 0.01, 0.7), li.DPSGD(6000, 0.01, 1.0), li.DPSGD(300, 0.3, 8.0), li.DPSGD(50, 0.1, 2.0)]


@pytest.mark.parametrize("analysis", [li.last_iterate, li.composition, li.full_batch, li.no_amplification])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 7.0, 300.0])
def test_the_gaussian_mechanism_has_its_mu_no_regret_and_the_risk_of_its_closed_form(analysis, sigma):
    curve = analysis(li.DPSGD(4, 1.0, sigma))
    mu = 2.0 / sigma
    assert curve.mu() == pytest.approx(mu, rel=1e-9)
    lower, upper = curve.mu_bracket()
    assert lower <= mu <= upper < lower + 1e-8
    assert curve.regret() < 1e-9
    baselines = np.array([1e-6, 0.01, 0.1, 0.5, 0.9])
    assert curve.risk(baselines) == pytest.approx(ndtr(ndtri(baselines) + mu), rel=1e-9)
    assert curve.risk(0.1) == pytest.approx(float(ndtr(ndtri(0.1) + mu)), rel=1e-9)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("analysis", [li.last_iterate, li.composition])
@pytest.mark.parametrize("smallest", [1e-3, 1e-10])
def test_the_gaussian_curve_of_mu_lies_below_the_runs_curve_and_no_smaller_mu_does(run, analysis, smallest):
    curve = analysis(run)
    mu, (lower, upper) = curve.mu(smallest), curve.mu_bracket(smallest)
    assert lower <= mu <= upper <= lower * (1.01 if smallest < 1e-3 else 1.03)
    fpr = ndtr(np.linspace(ndtri(smallest), 3.0, 60))
    fnr = np.asarray(curve.fnr(fpr))
    inside = (fnr >= smallest) & (fnr <= 0.9999)  # a rate close to 1 is not accurate enough for its quantile
    local = -ndtri(fpr[inside]) - ndtri(fnr[inside])
    assert np.all(local <= upper * (1.0 + 1e-4))
    if smallest == 1e-3:
        assert local.max() >= upper * (1.0 - 1e-2)


def test_mu_grows_with_the_range_of_error_rates():
    curve = li.composition(li.DPSGD(100, 0.01, 0.7))
    values = [curve.mu(smallest) for smallest in (0.4, 0.01, 1e-5, 1e-10, 1e-12)]
    assert values == sorted(values)
    assert values[-1] == pytest.approx(0.88, abs=0.01)  # by the issue, and .22 at a rate of .5
    assert curve.mu(0.49) == pytest.approx(0.22, abs=0.01)


@pytest.mark.parametrize("run", RUNS)
def test_the_polygon_gives_the_mu_that_the_mixture_has_in_closed_form(run):
    pair = li.last_iterate(run).pair
    with np.errstate(all="ignore"):
        exact, (lower, upper) = pair.mu(1e-10), find_mu_bracket(pair.epsilon, pair.bracket, 1e-10)
        assert exact * (1.0 - 1e-9) <= find_mu(pair.epsilon, 1e-10) <= exact * (1.0 + 1e-3)
    assert lower * (1.0 - 1e-9) <= exact <= upper * (1.0 + 1e-9)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 3000), st.floats(-3.0, 0.0), st.floats(-0.3, 1.0), st.sampled_from([1e-10, 1e-4]))
def test_mu_falls_with_noise_and_the_guarantee_is_above_the_prediction(steps, log_rate, log_noise, smallest):
    run = li.DPSGD(steps, 10.0**log_rate, 10.0**log_noise)
    more = run.replace(noise_multiplier=1.1 * run.noise_multiplier)
    for analysis in (li.last_iterate, li.composition):
        assert analysis(more).mu(smallest) <= analysis(run).mu(smallest) * (1.0 + 1e-9)
        baselines = [0.0, 1e-4, 0.1, 0.7, 1.0]
        risk = np.asarray(analysis(run).risk(baselines))
        assert np.all(np.diff(risk) >= -1e-7)
        assert np.all(risk >= np.array(baselines) - 1e-12)
        assert np.all(analysis(more).risk(baselines) <= risk + 1e-6)
    assert li.last_iterate(run).mu(smallest) <= li.composition(run).mu_bracket(smallest)[1] * (1.0 + 1e-9)
    assert np.all(li.last_iterate(run).risk(baselines) <= risk + 1e-6)


def test_the_risk_is_that_of_the_direction_with_the_baseline_of_models_without_the_person():
    assert li.composition(li.DPSGD(6000, 0.01, 1.0)).risk(0.01) == pytest.approx(1.0 - 0.90456, abs=5e-6)


def test_risk_and_mu_agree_with_the_privacy_profiles_of_dp_accounting():
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution as pld

    curve = li.composition(li.DPSGD(600, 0.01, 1.0))
    loss = pld.from_gaussian_mechanism(
        1.0,
        sampling_prob=0.01,
        value_discretization_interval=1e-4,
        neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    ).self_compose(600)
    epsilons = np.linspace(0.0, 4.0, 4001)
    deltas = np.asarray(loss.get_delta_for_epsilon(epsilons))
    for baseline in (1e-4, 1e-3, 0.01):  # each epsilon bounds the success of an attack
        assert curve.risk(baseline) == pytest.approx(np.min(deltas + np.exp(epsilons) * baseline), rel=2e-3)
    fpr, tpr = 1e-6, np.min(deltas + np.exp(epsilons) * 1e-6)
    assert curve.mu(1e-6) == pytest.approx(float(ndtri(tpr) - ndtri(fpr)), rel=2e-3)


def test_regret_is_the_distance_of_the_curves_along_the_diagonal():
    curve = li.composition(li.DPSGD(100, 0.01, 0.7))
    mu, regret = curve.mu(), curve.regret()
    epsilons = np.linspace(0.0, 1.8, 10)  # the distance is largest where epsilon 0 bounds the curve
    delta, factor = np.asarray(curve.delta(epsilons))[:, None], np.exp(epsilons)[:, None]
    fpr = np.linspace(1e-4, 0.9, 400)

    def missed(fpr):  # the smaller curve of both directions
        return np.maximum(1.0 - delta - factor * fpr, (1.0 - delta - fpr) / factor).max(axis=0)

    gaussian = ndtr(-ndtri(fpr) - mu)
    short, far = (missed(fpr + share * regret) - share * regret - gaussian for share in (0.98, 1.02))
    assert far.max() < 0.0 < short.max()


TARGETS = [{"epsilon": 2.0, "delta": 1e-5}, {"mu": 0.7}, {"advantage": 0.1}, {"tpr": 0.05, "fpr": 0.01}]


def reached(curve, target):
    if "mu" in target:
        return curve.mu_bracket()[1] if curve.is_guarantee else curve.mu(), target["mu"]
    if "advantage" in target:
        return curve.advantage(), target["advantage"]
    if "tpr" in target:
        return curve.risk(target["fpr"]), target["tpr"]
    return curve.bracket(target["delta"])[1] if curve.is_guarantee else curve.epsilon(target["delta"]), 2.0


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: next(iter(target)))
@pytest.mark.parametrize("analysis", [li.last_iterate, li.composition, li.no_amplification])
@settings(max_examples=4, deadline=None)
@given(steps=st.integers(100, 3000), log_rate=st.floats(-1.5, -0.5))
def test_calibrated_noise_reaches_each_kind_of_target_from_the_safe_side(target, analysis, steps, log_rate):
    run = li.calibrate(li.DPSGD(steps, 10.0**log_rate, 1.0), analysis=analysis, **target)
    value, goal = reached(analysis(run), target)
    assert goal * (1.0 - 1e-4) <= value <= goal * (1.0 + (1e-12 if analysis is not li.no_amplification else 1e-8))


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({}, "exactly one of epsilon with delta, mu, advantage, or tpr with fpr, got none of them"),
        ({"epsilon": 1.0}, "exactly one of .*, got epsilon"),
        ({"epsilon": 1.0, "delta": 1e-5, "mu": 1.0}, "got epsilon and delta and mu"),
        ({"tpr": 0.1}, "got tpr"),
        ({"mu": 1.0, "advantage": 0.1}, "got mu and advantage"),
        ({"tpr": 0.01, "fpr": 0.1}, "tpr must be above fpr"),
        ({"mu": -1.0}, "mu must be"),
        ({"advantage": 1.5}, "advantage must be"),
    ],
)
def test_a_bad_combination_of_targets_is_refused_in_one_sentence(target, words):
    with pytest.raises(ValueError, match=words):
        li.calibrate(RUNS[0], analysis=li.composition, **target)


@pytest.mark.parametrize("value", [0.0, 0.5, -1.0, float("nan")])
def test_a_bad_range_is_refused(value):
    with pytest.raises(ValueError, match="smallest_error must be"):
        li.composition(RUNS[0]).mu(value)
    with pytest.raises(ValueError, match="baseline must be"):
        li.composition(RUNS[0]).risk(2.0)
