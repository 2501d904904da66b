"""One bit a step: two binomials, whose epsilon is exact and lies below composition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

import lastiterate as li
from lastiterate.paper.counterexamples.malicious import best_threshold, bits, epsilon_bounds, one_bit


def epsilon_by_tails(steps, a, c, delta):
    """Tests that count bits from one end, by SciPy's distribution functions: the largest ratios are at the ends."""
    k = np.arange(steps + 1)
    found = [0.0]
    for inside, outside in (
        (binom.sf(k - 1, steps, c), binom.sf(k - 1, steps, a)),
        (binom.cdf(k, steps, a), binom.cdf(k, steps, c)),
    ):
        telling = inside > delta
        found += list(np.log((inside[telling] - delta) / outside[telling]))
    return max(found)


@given(
    steps=st.integers(1, 300),
    rate=st.sampled_from([0.01, 0.1, 0.5, 1.0]),
    noise=st.sampled_from([0.5, 1.0, 3.0]),
    threshold=st.floats(-1.0, 4.0),
    delta=st.sampled_from([1e-2, 1e-5, 1e-8]),
)
def test_the_curve_is_that_of_two_binomials(steps, rate, noise, threshold, delta):
    a, b = norm.sf(threshold, 0.0, noise), norm.sf(threshold, 1.0, noise)
    c = (1.0 - rate) * a + rate * b
    found = one_bit(li.DPSGD(steps, rate, noise), threshold)
    assert found.epsilon(delta) == pytest.approx(epsilon_by_tails(steps, a, c, delta), rel=1e-9, abs=1e-9)
    assert found.is_guarantee is False


# Measured apart from this code, by dense scans of thresholds; the search may miss the highest peak by a little.
@pytest.mark.parametrize(("rate", "best", "is_above"), [(0.01, 6.6532, True), (0.1, 5.5258, False)])
def test_best_thresholds_at_the_paper_s_setting(rate, best, is_above):
    run = li.calibrate(li.DPSGD(100, rate, 1.0), epsilon=8.0, delta=1e-5, analysis=li.composition)
    found = one_bit(run, best_threshold(run, 1e-5)).epsilon(1e-5)
    assert found == pytest.approx(best, rel=5e-4)
    assert found < 0.9 * 8.0
    assert (found > li.last_iterate(run).epsilon(1e-5)) is is_above


@given(
    steps=st.integers(1, 40),
    rate=st.sampled_from([0.05, 0.3, 0.8]),
    noise=st.sampled_from([0.7, 1.2, 2.5]),
    threshold=st.floats(-2.0, 5.0),
    delta=st.sampled_from([1e-3, 1e-6]),
)
@settings(max_examples=25)
def test_bits_are_a_function_of_all_iterates_and_leak_no_more(steps, rate, noise, threshold, delta):
    run = li.DPSGD(steps, rate, noise)
    assert one_bit(run, threshold).epsilon(delta) <= li.composition(run).bracket(delta)[1] + 1e-9


def test_bounds_hold_as_often_as_they_say_and_close_in_on_epsilon():
    steps, models, delta, repetitions = 20, 200, 1e-3, 300
    without, together = 0.03, 0.06
    truth = bits(steps, without, together).epsilon(delta)
    generator = np.random.default_rng(0)
    drawn = [generator.binomial(steps, rate, (repetitions, models)) for rate in (together, without)]
    for confidence in (0.95, 0.6):
        bounds = np.array([epsilon_bounds(steps, *pair, delta, confidence) for pair in zip(*drawn, strict=True)])
        allowed = binom.isf(1e-4, repetitions, 1.0 - confidence)  # a false alarm in 10,000
        assert np.sum(bounds[:, 0] > truth) <= allowed
        assert np.sum(bounds[:, 1] < truth) <= allowed
        assert np.all(bounds[:, 0] < bounds[:, 1])
    many = [generator.binomial(steps, rate, 100_000) for rate in (together, without)]
    low, high = epsilon_bounds(steps, *many, delta, 0.95)
    assert 0.95 * truth < low < truth < high < 1.05 * truth


def test_a_canary_that_clears_bits_leaks_no_more_than_the_upper_bound():
    steps, models, delta, repetitions = 20, 500, 1e-5, 100
    without, together = 0.1, 0.05
    truth = epsilon_by_tails(steps, together, without, delta)  # both ends count, so that the roles may be exchanged
    generator = np.random.default_rng(1)
    drawn = [generator.binomial(steps, rate, (repetitions, models)) for rate in (together, without)]
    bounds = np.array([epsilon_bounds(steps, *pair, delta, 0.95) for pair in zip(*drawn, strict=True)])
    assert np.all(bounds[:, 0] == 0.0)
    assert np.sum(bounds[:, 1] < truth) <= binom.isf(1e-4, repetitions, 0.05)
    assert np.median(bounds[:, 1]) < 1.5 * truth
