"""Values at the ends of floating point, and shapes that do not fit."""

import numpy as np
import pytest

import lastiterate as li


@pytest.mark.parametrize("epsilon", [1e121, 1e200, 1e308, np.inf])
@pytest.mark.parametrize(("steps", "rate"), [(1, 0.1), (10, 1.0), (100, 0.01)])
@pytest.mark.parametrize("analysis", [li.last_iterate, li.composition, li.full_batch])
def test_delta_of_a_huge_epsilon_is_zero(analysis, steps, rate, epsilon):
    assert analysis(li.DPSGD(steps=steps, sample_rate=rate, noise_multiplier=1.0)).delta(epsilon) == 0.0
