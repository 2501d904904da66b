"""Bounds and test martingales that hold however often one looks and whenever one stops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import betainc, betaln
from scipy.stats import norm

import lastiterate as li
from lastiterate.auditing.evidence.claims import claim_of
from lastiterate.auditing.evidence.error_rates import anytime_bound, upper_bound
from lastiterate.auditing.evidence.score_signal import Kind
from lastiterate.auditing.evidence.test_martingale import ClaimedCurve, Martingale
from lastiterate.auditing.evidence.threshold import CHOOSING
from lastiterate.auditing.evidence.verdict import judge_scores
from tests.auditing.evidence.stopped_audits import GAUSSIAN, refuted, too_much

ERROR = 0.025
RUN = li.DPSGD(steps=100, sample_rate=0.1, noise_multiplier=1.0)


def _log_evidence(rate, errors, models):
    right = models - errors
    mixture = betaln(errors + 0.5, right + 0.5) + np.log(betainc(errors + 0.5, right + 0.5, rate))
    prior = betaln(0.5, 0.5) + np.log(betainc(0.5, 0.5, rate))
    return mixture - prior - errors * np.log(rate) - right * np.log1p(-rate)


@pytest.mark.parametrize(("errors", "models"), [(0, 1), (0, 20), (3, 20), (19, 20), (40, 512), (2000, 4096)])
def test_at_the_bound_the_mixture_of_likelihood_ratios_is_one_over_the_error(errors, models):
    bound = float(anytime_bound(errors, models, ERROR))

    def ratio(angle):  # Jeffreys' prior is uniform in it
        rate = np.sin(angle) ** 2
        logarithm = errors * np.log(rate / bound) + (models - errors) * np.log((1 - rate) / (1 - bound))
        return np.exp(logarithm)

    end = np.arcsin(np.sqrt(bound))
    peak = np.arcsin(np.sqrt(max(errors / models, 1e-6)))
    mean = quad(ratio, 1e-12, end, points=[min(peak, 0.99 * end)], epsabs=0, epsrel=1e-10, limit=500)[0] / end
    assert mean == pytest.approx(1 / ERROR, rel=1e-6)


@given(st.integers(1, 5000), st.floats(0.0, 1.0), st.floats(1e-9, 0.5))
def test_more_errors_give_a_larger_bound_and_looking_once_a_smaller_one(models, share, error):
    errors = int(share * models)
    bound, more = anytime_bound([errors, min(errors + 1, models)], models, error)
    assert upper_bound(errors, models, error) <= bound <= more <= 1.0
    assert anytime_bound(models, models, error) == 1.0
    assert anytime_bound(errors, models, error) == pytest.approx(bound, rel=1e-11)


@given(st.integers(1, 3000), st.floats(0.0, 1.0), st.floats(1e-5, 0.999))
def test_evidence_increases_in_the_rate_wherever_it_is_two_or_more(models, share, rate):
    errors = min(int(share * models), models - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        here, there = (_log_evidence(at, errors, models) for at in (rate, rate * 1.001))
    if here >= np.log(2.0) and np.isfinite(there):
        assert there >= here


@pytest.mark.parametrize(("models", "fixed", "anytime"), [(512, 4.93, 4.71), (4096, 7.01, 6.80)])
def test_the_price_of_looking_at_a_perfect_attack_is_small(models, fixed, anytime):
    perfect = np.ones(models), np.zeros(models)
    assert li.estimate(*perfect, threshold=0.5).epsilon == pytest.approx(fixed, abs=0.005)
    assert li.estimate(*perfect, threshold=0.5, validity="anytime").epsilon == pytest.approx(anytime, abs=0.005)


def _share_ever_wrong(bound, rate, sequences, models):
    """Of error counts that are looked at after every model, the share whose bound was below the rate at some time."""
    wrong = np.random.default_rng(3).random((sequences, models)) < rate
    counts = np.cumsum(wrong, axis=1)
    ever = np.zeros(sequences, bool)
    for n in range(1, models + 1):
        ever |= bound(counts[:, n - 1], n, 0.05) < rate
    return ever.mean()


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.9])
def test_bounds_hold_for_those_who_look_after_every_model_and_fixed_ones_do_not(rate):
    assert _share_ever_wrong(anytime_bound, rate, 1000, 400) <= 0.05
    assert _share_ever_wrong(upper_bound, rate, 1000, 400) > 0.1


@pytest.mark.parametrize("threshold", ["split", 0.5])
def test_audits_stopped_at_their_best_moment_hardly_ever_exceed_the_truth(threshold):
    """The stated error allows for 10. Both rates share it and seldom err together, so that far fewer do.

    Bounds for a fixed number of models, looked at in the same way, claim too much in 7 of these where models choose the
    threshold: this test would see it.
    """
    assert too_much(100, threshold, "anytime", 0.9, seed=5) <= 2


def test_a_martingale_refutes_a_true_claim_no_more_often_than_stated_and_a_false_one_soon():
    assert refuted(150, 1.0, 0.2, seed=7) <= 30
    assert refuted(30, 2.0, 0.05, seed=7) == 30


def test_a_martingale_on_a_claimed_epsilon_is_fair_at_the_mechanism_that_has_just_this_epsilon():
    """Randomised response: the score is the bit, flipped with probability 1 / (1 + e^epsilon)."""
    random = np.random.default_rng(11)
    epsilon, refuted, caught = 1.0, 0, 0
    for _ in range(150):
        for actual in (epsilon, 2.5 * epsilon):
            keep = 1.0 / (1.0 + np.exp(-actual))
            inside, outside = (random.random(200) < keep).astype(float), (random.random(200) >= keep).astype(float)
            found = Martingale(inside, outside, ClaimedCurve.of_epsilon(epsilon, 0.0), 0.2).refuted_after() is not None
            refuted, caught = refuted + (found and actual == epsilon), caught + (found and actual != epsilon)
    assert refuted <= 0.2 * 150
    assert caught >= 0.9 * 150


def test_deltas_of_an_epsilon_are_what_its_trade_off_curve_allows():
    claimed = ClaimedCurve.of_epsilon(2.0, 1e-3)
    fpr = np.linspace(0.0, 1.0, 200_001)
    fnr = np.maximum.reduce([1 - 1e-3 - np.exp(2.0) * fpr, np.exp(-2.0) * (1 - 1e-3 - fpr), np.zeros_like(fpr)])
    allowed = [np.max(1 - fnr - np.exp(epsilon) * fpr) for epsilon in claimed.epsilons]
    np.testing.assert_allclose(claimed.deltas, allowed, atol=1e-5)
    assert ClaimedCurve.of_epsilon(5000.0, 1e-5).deltas == pytest.approx(1.0)


def test_scores_of_the_wrong_sign_lose_a_martingale_nothing():
    random = np.random.default_rng(2)
    inside, outside = random.normal(4.0, 1.0, 200), random.normal(0.0, 1.0, 200)
    claimed = ClaimedCurve.of_curve(li.composition(GAUSSIAN).delta)
    assert Martingale(-inside, -outside, claimed, ERROR).refuted_after() == pytest.approx(
        Martingale(inside, outside, claimed, ERROR).refuted_after(), abs=5
    )


def test_an_extended_audit_has_the_threshold_that_it_began_with():
    random = np.random.default_rng(0)
    inside, outside = random.normal(2.0, 1.0, 1000), random.normal(0.0, 1.0, 1000)
    for threshold in ("split", "a-priori"):
        begun, extended = (
            li.estimate(inside[:n], outside[:n], threshold=threshold, run=RUN, validity="anytime") for n in (200, 1000)
        )
        assert begun.threshold == extended.threshold


def test_before_the_threshold_is_chosen_nothing_is_shown():
    found = li.estimate(np.ones(CHOOSING), np.zeros(CHOOSING), validity="anytime")
    assert (found.epsilon, found.models_in, found.fpr_upper) == (0.0, 0, 1.0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"threshold": "corrected"}, "threshold must be a-priori, split or a number"),
        ({"threshold": "uncorrected"}, "threshold must be a-priori, split or a number"),
        ({"method": "one-run"}, "validity must be 'fixed' for method 'one-run'"),
        ({"validity": "always"}, "validity must be one of fixed, anytime, got 'always'"),
    ],
)
def test_what_does_not_hold_at_any_time_is_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        li.estimate([1.0, 2.0], [0.0, 1.0], **{"validity": "anytime", **options})


def test_a_false_claim_is_refuted_by_looking_and_a_true_one_is_not():
    random = np.random.default_rng(1)
    claim = claim_of(GAUSSIAN, 1e-5)
    for distance, models, verdict in ((1.0, 800, "consistent"), (3.0, 300, "violation")):
        scores = norm.rvs(distance, size=models, random_state=random), norm.rvs(size=models, random_state=random)
        found, reason, _ = judge_scores(*scores, claim, Kind.LAST_ITERATE, 1e-5, 0.95, "split", GAUSSIAN, "anytime")
        assert found == verdict, reason


def test_too_few_models_for_any_martingale_are_inconclusive():
    claim = claim_of(None, 1e-5, epsilon=4.0)
    scores = np.random.default_rng(0).normal(3.0, 1.0, 100), np.random.default_rng(1).normal(size=100)
    found, reason, _ = judge_scores(*scores, claim, Kind.LAST_ITERATE, 1e-5, 0.95, "split", None, "anytime")
    assert found == "inconclusive"
    assert "lacks power" in reason
