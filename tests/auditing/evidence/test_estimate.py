"""Estimates on ordinary and on degenerate scores."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom

import lastiterate as li
from lastiterate.auditing.evidence.error_rates import upper_bound
from lastiterate.auditing.evidence.score_signal import signal_of
from lastiterate.auditing.evidence.threshold import predicted_threshold
from lastiterate.cli.report import result_fields

RUN = li.DPSGD(steps=100, sample_rate=0.1, noise_multiplier=1.0)
RATES = ("clopper-pearson", "gdp", "last-iterate", "composition")
CHOICES = ("a-priori", "split", "corrected", "uncorrected", 0.5)
SCORES = st.lists(st.integers(-6, 6).map(float), min_size=1, max_size=40)


def normal(seed, shift, size):
    return np.random.default_rng(seed).normal(shift, 1.0, size)


def test_bounds_are_clopper_and_pearsons():
    for errors, models, error in [(0, 512, 0.025), (3, 10, 0.1), (9, 10, 0.01), (50_000, 100_000, 1e-6)]:
        bound = upper_bound(errors, models, error)
        assert bound == pytest.approx(beta.isf(error, errors + 1, models - errors), rel=1e-9)
        assert binom.cdf(errors, models, bound) == pytest.approx(error, rel=1e-6)
    assert upper_bound(10, 10, 0.05) == 1.0


@pytest.mark.parametrize("threshold", CHOICES)
@pytest.mark.parametrize("method", RATES)
@pytest.mark.parametrize(
    ("scores_in", "scores_out"),
    [
        ([0.0], [0.0]),
        ([math.inf], [math.inf]),
        ([1.0] * 300, [1.0] * 20),
        ([2.0], [1.0]),
        ([5, 5, 6], [5, 7, -math.inf]),
    ],
)
def test_degenerate_scores_without_signal_give_exactly_0(method, threshold, scores_in, scores_out):
    found = li.estimate(scores_in, scores_out, method=method, threshold=threshold, run=RUN)
    assert found.epsilon == 0.0
    assert found.noise_multiplier == (None if method == "clopper-pearson" else math.inf)


@given(SCORES, SCORES, st.sampled_from(CHOICES[1:]), st.sampled_from(RATES[:3]))
def test_more_confidence_shows_less(scores_in, scores_out, threshold, method):
    at = [
        li.estimate(scores_in, scores_out, confidence=c, method=method, threshold=0.5, run=RUN).epsilon
        for c in (0.5, 0.9, 0.99)
    ]
    assert at == sorted(at, reverse=True)
    found = li.estimate(scores_in, scores_out, method=method, threshold=threshold, run=RUN)
    assert 0.0 <= found.epsilon <= found.largest


@given(SCORES, SCORES, st.sampled_from(["corrected", "uncorrected", 0.5]), st.sampled_from(RATES[:3]))
def test_only_the_order_of_scores_matters(scores_in, scores_out, threshold, method):
    def stretch(score):
        return np.sinh(np.asarray(score)) + 7.0

    plain = li.estimate(scores_in, scores_out, method=method, threshold=threshold, run=RUN)
    moved = threshold if isinstance(threshold, str) else float(stretch(threshold))
    other = li.estimate(stretch(scores_in)[::-1], stretch(scores_out), method=method, threshold=moved, run=RUN)
    assert (plain.epsilon, plain.false_positives, plain.false_negatives) == (
        other.epsilon,
        other.false_positives,
        other.false_negatives,
    )


@given(SCORES, SCORES)
def test_the_two_worlds_are_alike_without_assumptions(scores_in, scores_out):
    forward = li.estimate(scores_in, scores_out, threshold="uncorrected").epsilon
    backward = li.estimate(-np.array(scores_out), -np.array(scores_in), threshold="uncorrected").epsilon
    assert forward == pytest.approx(backward, abs=1e-12)


def test_the_best_of_all_thresholds_is_found():
    scores_in, scores_out = normal(3, 1.5, 150), normal(4, 0, 170)
    each = [li.estimate(scores_in, scores_out, threshold=float(t)).epsilon for t in [*scores_in, *scores_out]]
    assert li.estimate(scores_in, scores_out, threshold="uncorrected").epsilon == max(each)


@pytest.mark.parametrize("method", RATES[:3])
def test_predicted_threshold_is_nearly_the_best_there_is(method):
    """Compared by the mean over simulated audits."""
    generator = np.random.default_rng(5)
    audits = [
        (generator.binomial(100, 0.1, 400) / 10.0 + generator.normal(size=400), generator.normal(size=400))
        for _ in range(20)
    ]

    def mean(threshold):
        return np.mean([li.estimate(*audit, method=method, threshold=threshold, run=RUN).epsilon for audit in audits])

    predicted = predicted_threshold(RUN, 400, 400, method=method)
    others = [predicted + shift for shift in (-1.5, -0.7, 0.7, 1.5)]
    assert mean(predicted) >= 0.93 * max(mean(other) for other in others)
    assert li.estimate(*audits[0], method=method, threshold="a-priori", run=RUN).threshold == predicted


HUGE_RUN = li.DPSGD(30, 0.1, 1.0)
MOST = np.finfo(float).max
KINDS = {
    "1e308": lambda z, canary: (1.0 if canary else -1.0) * 1e308 * (1 + 1e-3 * z),
    "the largest": lambda z, canary: MOST if canary else -MOST,
    "some huge": lambda z, canary: 1e308 if canary and z > 0 else z,
    "all equal": lambda z, canary: 1e308,
    "infinite": lambda z, canary: np.inf if canary else -np.inf,
    "some infinite": lambda z, canary: np.inf if canary and z > 0 else z,
    "tiny": lambda z, canary: 5e-324 * round(abs(z) + canary),
}


@pytest.mark.parametrize("threshold", ["a-priori", "corrected"])
@pytest.mark.parametrize("kind", KINDS)
def test_huge_scores_are_answered_without_a_warning(kind, threshold):
    result = li.audit(
        HUGE_RUN, lambda seed, canary: KINDS[kind]((seed % 1001 - 500) / 200, canary), models=30, threshold=threshold
    )
    assert all(estimate.epsilon >= 0.0 for estimate in result.estimates.values())
    assert np.isfinite(result.signal)
    json.dumps(result_fields(result), allow_nan=False)
    if kind in ("1e308", "the largest", "infinite"):  # no error at all
        assert result.empirical["clopper-pearson"] > 1.0


def test_the_signal_does_not_depend_on_the_scale():
    scores = np.random.default_rng(1).normal([[1.0], [0.0]], 1.0, (2, 40))
    usual = signal_of(*scores)
    for power in (1000, 600, -600, -1000):
        assert signal_of(*np.ldexp(scores, power)) == usual
