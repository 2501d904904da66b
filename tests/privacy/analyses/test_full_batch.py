"""The full-batch baseline."""

import math

import numpy as np
import pytest
from hypothesis import given

import lastiterate as li
from tests.privacy.helpers import deltas, gaussian_delta, runs, weighted_runs


@given(runs(), deltas)
def test_is_the_gaussian_mechanism_with_noise_over_the_rate(run, delta):
    single = li.DPSGD(steps=run.steps, sample_rate=1.0, noise_multiplier=run.noise_multiplier / run.sample_rate)
    expected = li.last_iterate(single).epsilon(delta)
    assert li.full_batch(run).epsilon(delta) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(weighted_runs(longest=10))
def test_keeps_expected_step_and_noise_of_a_schedule(run):
    mu = np.sum(run.weights * run.sample_rate) / math.sqrt(np.sum((run.weights * run.noise_multiplier) ** 2))
    assert li.full_batch(run).delta(0.5) == pytest.approx(gaussian_delta(0.5, mu), rel=1e-6, abs=1e-12)
