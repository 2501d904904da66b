"""One run with many canaries."""

import itertools
import math

import numpy as np
import pytest

import lastiterate as li
from lastiterate.auditing.evidence.estimate import estimate_or_zero
from lastiterate.auditing.evidence.one_run.guesses import p_value

AUDITS = 1000


def coins(generator, canaries):
    """Which canaries are in; at least one in each world."""
    while not 0 < (is_in := generator.random(canaries) < 0.5).sum() < canaries:
        pass
    return is_in


def shown(scores_in, scores_out, **options):
    """The epsilon that is claimed; 0 where counts are refused."""
    asked = {"delta": 1e-5, "confidence": 0.95, "run": None} | options
    return estimate_or_zero(scores_in, scores_out, **asked).epsilon


def share_above(mechanism, canaries, truth, **options):
    generator = np.random.default_rng(11)
    above = 0
    for _ in range(AUDITS):
        is_in = coins(generator, canaries)
        scores = mechanism(generator, is_in)
        above += shown(scores[is_in], scores[~is_in], **options) > truth + 1e-9
    return above / AUDITS


def gaussian(generator, is_in):
    return is_in + generator.normal(size=is_in.size)


def randomised_response(generator, is_in):
    """Epsilon 1.5, without delta."""
    return (is_in ^ (generator.random(is_in.size) < 1.0 / (1.0 + math.exp(1.5)))).astype(float)


def allowed(confidence):
    return 1.0 - confidence + 3.0 * math.sqrt(confidence * (1.0 - confidence) / AUDITS)


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.5, "a-priori", "corrected"])
@pytest.mark.parametrize(("canaries", "delta", "confidence"), [(60, 0.0, 0.6), (400, 1e-5, 0.95)])
def test_one_run_holds_for_randomised_response_and_is_no_empty_statement(canaries, delta, confidence, threshold):
    options = dict(delta=delta, confidence=confidence, method="one-run", threshold=threshold)
    assert share_above(randomised_response, canaries, 1.5, **options) <= allowed(confidence)
    if threshold == 0.5:
        assert share_above(randomised_response, canaries, 1.2, **options) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.5, "a-priori", "corrected"])
@pytest.mark.parametrize("method", ["one-run", "one-run-fdp"])
def test_both_hold_for_a_gaussian(method, threshold):
    truth = li.last_iterate(li.DPSGD(1, 1.0, 1.0)).epsilon(1e-5)
    options = dict(delta=1e-5, confidence=0.8, method=method, threshold=threshold)
    assert share_above(gaussian, 300, truth, **options) <= allowed(0.8)


@pytest.mark.filterwarnings("ignore")
def test_bounds_agree_with_jax_privacy():
    """Another implementation of both papers, at one threshold; it calls only the larger scores."""
    import jax_privacy.auditing as auditing

    for canaries, count, right in [(1000, 100, 92), (1000, 250, 250), (60, 60, 45), (5000, 5000, 3100)]:
        assert p_value(canaries, count, right, 0.7, 1e-4) == pytest.approx(
            auditing._one_run_p_value(canaries, count, right, 0.7, 1e-4), rel=1e-9
        )
    for canaries, wrong_in, wrong_out in [(1000, 150, 180), (100, 10, 3), (40, 0, 0)]:
        half = canaries // 2
        scores_in = np.repeat([1.0, 0.0], [half - wrong_out, wrong_out])
        scores_out = np.repeat([1.0, 0.0], [wrong_in, half - wrong_in])
        right = canaries - wrong_in - wrong_out
        for method, theirs in [("one-run", auditing._epsilon_one_run), ("one-run-fdp", auditing._epsilon_one_run_fdp)]:
            found = li.estimate(scores_in, scores_out, method=method, threshold=0.5)
            assert found.epsilon == pytest.approx(theirs(0, canaries, canaries, right, 0.05, 1e-5), abs=2e-5)
            assert (found.false_positives, found.false_negatives) == (wrong_in, wrong_out)


@pytest.mark.parametrize("threshold", ["a-priori", "split", "corrected", "uncorrected", 0.5])
@pytest.mark.parametrize("method", ["one-run", "one-run-fdp"])
def test_degenerate_scores(method, threshold):
    same = li.estimate([1.0] * 90, [1.0] * 110, method=method, threshold=threshold)
    assert same.epsilon == 0.0
    assert li.estimate([1.0], [0.0], method=method, threshold=threshold).epsilon == 0.0
    apart = li.estimate([math.inf] * 100, [-math.inf] * 100, method=method, threshold=threshold)
    assert apart.epsilon == apart.largest
    if threshold == "a-priori":  # a quarter is to be guessed, but all have one of two scores
        assert apart.epsilon == 0.0
    else:
        assert apart.epsilon > 1.0
    assert math.isnan(apart.fpr_upper)
    assert apart.threshold_choice == {"split": "corrected", 0.5: "a-priori"}.get(threshold, threshold)


def share_of_false_claims(values, threshold, method, confidence=0.95):
    """By enumeration: fair coins that have nothing to do with these scores, given as how many there are of each.

    Equal scores are exchangeable, so that the numbers "in" of each value are all that counts. All in, or all out,
    cannot be estimated and is no claim.
    """
    canaries, share = sum(values.values()), 0.0
    for ins in itertools.product(*(range(count + 1) for count in values.values())):
        if not 0 < sum(ins) < canaries:
            continue
        outs = [count - inside for count, inside in zip(values.values(), ins, strict=True)]
        chance = math.prod(map(math.comb, values.values(), ins)) / 2.0**canaries
        scores_in, scores_out = (np.repeat(list(values), counts).astype(float) for counts in (ins, outs))
        share += chance * (
            shown(scores_in, scores_out, method=method, threshold=threshold, confidence=confidence) > 0.0
        )
    return share


@pytest.mark.parametrize("threshold", ["a-priori", "corrected", 0.5])
@pytest.mark.parametrize("method", ["one-run", "one-run-fdp"])
@pytest.mark.parametrize("values", [{0: 18, 1: 2}, {0: 10, 1: 10}, {0: 4, 1: 30}, {0: 14, 1: 3, 2: 3}, {0: 70, 1: 30}])
def test_tied_scores_of_pure_noise_show_something_no_more_often_than_stated(values, method, threshold):
    assert share_of_false_claims(values, threshold, method) <= 0.05
