"""Whole grids of runs."""

import numpy as np
import pytest

import lastiterate as li


def test_grid_equals_single_calls_and_broadcasts():
    rng = np.random.default_rng(0)
    steps = rng.integers(1, 10**6, (40, 1))
    rate = 10.0 ** rng.uniform(-5.0, 0.0, (1, 5))
    rate[0, 0], rate[0, 1] = 0.0, 1.0
    sigma = 10.0 ** rng.uniform(-2.0, 2.0, (40, 5))
    values = li.last_iterate_epsilon(steps, rate, sigma, 1e-6)
    assert values.shape == (40, 5)
    for i in range(40):
        for j in range(5):
            run = li.DPSGD(steps=int(steps[i, 0]), sample_rate=rate[0, j], noise_multiplier=sigma[i, j])
            assert values[i, j] == pytest.approx(li.last_iterate(run).epsilon(1e-6), rel=1e-10, abs=1e-10)


def test_scalars_give_a_float():
    assert isinstance(li.last_iterate_epsilon(1000, 0.01, 1.0, 1e-5), float)
    assert li.last_iterate_epsilon(1000, 0.01, 1.0, 1e-5) == pytest.approx(1.27775588779, abs=1e-11)
