"""The full-batch baseline."""

import pytest
from hypothesis import given

import lastiterate as li
from tests.privacy.helpers import deltas, runs


@given(runs(), deltas)
def test_is_the_gaussian_mechanism_with_noise_over_the_rate(run, delta):
    single = li.DPSGD(steps=run.steps, sample_rate=1.0, noise_multiplier=run.noise_multiplier / run.sample_rate)
    expected = li.last_iterate(single).epsilon(delta)
    assert li.full_batch(run).epsilon(delta) == pytest.approx(expected, rel=1e-9, abs=1e-12)
