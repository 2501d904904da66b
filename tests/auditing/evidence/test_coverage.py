"""The lower bound exceeds the truth no more often than its confidence says, over 1,000 simulated audits each."""

import math

import numpy as np
import pytest

import lastiterate as li
from lastiterate.auditing.evidence.error_rates import upper_bound
from lastiterate.auditing.evidence.threshold import predicted_threshold

AUDITS = 1000
LAST = li.DPSGD(steps=20, sample_rate=0.2, noise_multiplier=1.0)
ALL = li.DPSGD(steps=8, sample_rate=0.3, noise_multiplier=1.2)
THRESHOLDS = ("number", "split", "corrected")
SETTINGS = {  # models in, models out, delta, confidence
    "few": (12, 20, 1e-2, 0.6),
    "some": (100, 60, 1e-5, 0.8),
    "many": (512, 512, 1e-5, 0.95),
}


def assert_covered(bounds, truth, confidence):
    wrong = np.mean(np.asarray(bounds) > truth + 1e-9)
    assert wrong <= 1.0 - confidence + 3.0 * math.sqrt(confidence * (1.0 - confidence) / len(bounds))


def gaussian(generator, models_in, models_out):
    return generator.normal(1.5, 1.0, models_in), generator.normal(size=models_out)


def last_iterates(generator, models_in, models_out):
    """What LAST releases, in standard deviations of its noise."""
    signal = generator.binomial(LAST.steps, LAST.sample_rate, models_in) / math.sqrt(LAST.steps)
    return signal + generator.normal(size=models_in), generator.normal(size=models_out)


def all_iterates(generator, models_in, models_out):
    """Log-likelihood ratios of everything that ALL releases."""
    noise, rate = ALL.noise_multiplier, ALL.sample_rate

    def ratio(steps):
        return np.sum(np.log1p(rate * np.expm1((2.0 * steps - 1.0) / (2.0 * noise**2))), axis=1)

    used = generator.random((models_in, ALL.steps)) < rate
    quiet = generator.normal(0.0, noise, (models_out, ALL.steps))
    return ratio(used + generator.normal(0.0, noise, used.shape)), ratio(quiet)


MECHANISMS = {  # scores, an a-priori threshold, the curve that is the truth
    "gaussian": (gaussian, 1.2, li.last_iterate(li.DPSGD(1, 1.0, 1 / 1.5))),
    "last iterates": (last_iterates, 1.0, li.last_iterate(LAST)),
    "all iterates": (all_iterates, 0.8, li.composition(ALL)),
}


def bounds_of(mechanism, setting, method, threshold, run=None):
    draw, number, curve = MECHANISMS[mechanism]
    models_in, models_out, delta, confidence = SETTINGS[setting]
    generator = np.random.default_rng(7)
    chosen = threshold
    if threshold == "number":
        chosen = number
    elif threshold == "predicted":
        chosen = predicted_threshold(run, models_in, models_out, delta, confidence, method)
    bounds = [
        li.estimate(*draw(generator, models_in, models_out), delta, confidence, method, chosen, run).epsilon
        for _ in range(AUDITS)
    ]
    return bounds, curve.epsilon(delta), confidence


@pytest.mark.slow
@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize(
    ("mechanism", "setting"), [("gaussian", "few"), ("last iterates", "some"), ("all iterates", "many")]
)
def test_clopper_pearson_holds_for_every_mechanism(mechanism, setting, threshold):
    assert_covered(*bounds_of(mechanism, setting, "clopper-pearson", threshold))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "threshold"),
    [("few", "number"), ("some", "number"), ("many", "number"), ("few", "split"), ("some", "corrected")],
)
def test_gdp_holds_for_a_gaussian(setting, threshold):
    assert_covered(*bounds_of("gaussian", setting, "gdp", threshold))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "threshold"),
    [("few", "number"), ("some", "predicted"), ("many", "number"), ("few", "split"), ("some", "corrected")],
)
def test_last_iterate_family_holds_for_last_iterates(setting, threshold):
    bounds, truth, confidence = bounds_of("last iterates", setting, "last-iterate", threshold, LAST)
    assert_covered(bounds, truth, confidence)
    if setting == "many":
        assert np.mean(bounds) > 0.6 * truth  # and it is no empty statement


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["some", "many"])
def test_composition_family_holds_for_likelihood_ratios_of_all_iterates(setting):
    """The noise found is too small exactly where the true curve is above the bounds: one curve serves all audits."""
    draw, threshold, curve = MECHANISMS["all iterates"]
    models_in, models_out, delta, confidence = SETTINGS[setting]
    generator = np.random.default_rng(7)
    counts = np.empty((AUDITS, 2), dtype=int)
    for audit in counts:
        scores_in, scores_out = draw(generator, models_in, models_out)
        audit[:] = np.sum(scores_out >= threshold), np.sum(scores_in < threshold)
    fprs, index = np.unique(upper_bound(counts[:, 0], models_out, 0.5 * (1.0 - confidence)), return_inverse=True)
    fnrs = upper_bound(counts[:, 1], models_in, 0.5 * (1.0 - confidence))
    wrong = curve.fnr(fprs)[index] > fnrs
    truth = curve.epsilon(delta)
    assert_covered(np.where(wrong, math.inf, 0.0), truth, confidence)
    for audit in [0, 1, *np.flatnonzero(wrong)[:2]]:
        scores = [
            np.repeat([1.0, 0.0], [size - zeros, zeros])
            for size, zeros in [(models_in, counts[audit, 1]), (models_out, models_out - counts[audit, 0])]
        ]
        found = li.estimate(*scores, delta, confidence, "composition", 0.5, ALL)
        assert (found.false_positives, found.false_negatives) == tuple(counts[audit])
        assert (found.epsilon > truth) == wrong[audit]
