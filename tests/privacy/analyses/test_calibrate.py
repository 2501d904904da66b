"""Noise for a target epsilon."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import lastiterate as li
from lastiterate.privacy.analyses.calibrate import bracket_noise
from tests.privacy.helpers import sample_rates, weighted_runs


@settings(max_examples=40)
@given(st.integers(1, 10**5), sample_rates, st.floats(0.01, 50.0), st.floats(-12.0, -4.0).map(lambda x: 10.0**x))
def test_epsilon_is_on_the_safe_side_of_the_target_and_within_a_millionth(steps, rate, epsilon, delta):
    assume(delta < 0.5 * -math.expm1(steps * math.log1p(-rate)))  # else any noise will do
    run = li.DPSGD(steps=steps, sample_rate=rate, noise_multiplier=1.0)
    value = li.last_iterate(li.calibrate(run, epsilon=epsilon, delta=delta, analysis=li.last_iterate)).epsilon(delta)
    assert epsilon - 1e-6 * max(1.0, epsilon) <= value <= epsilon


@settings(max_examples=15)
@given(weighted_runs(longest=12), st.floats(0.1, 10.0))
def test_a_schedule_of_noise_keeps_its_shape(run, epsilon):
    found = li.calibrate(run, epsilon=epsilon, delta=1e-6, analysis=li.last_iterate)
    ratio = np.asarray(found.noise_multiplier) / np.asarray(run.noise_multiplier)
    assert np.ptp(ratio) < 1e-12 * ratio[0]
    assert epsilon - 1e-6 <= li.last_iterate(found).epsilon(1e-6) <= epsilon


@pytest.mark.parametrize("root", [-7.3, -0.2, 0.0, 0.4, 9.1])
def test_noise_is_bracketed_by_too_little_and_enough(root):
    tried = []

    def is_enough(log_factor):
        tried.append(log_factor)
        return log_factor >= root

    low, high = bracket_noise(is_enough, 0.0, lambda _: -8.0, 10.0, lambda: 1.5)
    assert low < root <= high <= low + 1.5
    assert {low, high} <= set(tried)
    assert -8.0 <= min(tried) <= max(tried) <= 10.0
