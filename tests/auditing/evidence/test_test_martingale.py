"""Bounds and test martingales that hold however often one looks and whenever one stops."""

import numpy as np
import pytest
from scipy.integrate import quad

import lastiterate as li
from lastiterate.auditing.evidence.error_rates import anytime_bound, upper_bound
from lastiterate.auditing.evidence.test_martingale import ClaimedCurve, Martingale
from tests.tools.stopped_audits import refuted, too_much

ERROR = 0.025


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
