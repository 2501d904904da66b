"""Values at the ends of floating point, and shapes that do not fit."""

import numpy as np
import pytest

import lastiterate as li


@pytest.mark.parametrize("epsilon", [1e121, 1e200, 1e308, np.inf])
@pytest.mark.parametrize(("steps", "rate"), [(1, 0.1), (10, 1.0), (100, 0.01)])
@pytest.mark.parametrize("analysis", [li.last_iterate, li.composition, li.full_batch])
def test_delta_of_a_huge_epsilon_is_zero(analysis, steps, rate, epsilon):
    assert analysis(li.DPSGD(steps=steps, sample_rate=rate, noise_multiplier=1.0)).delta(epsilon) == 0.0


def test_shapes_that_do_not_broadcast_are_named():
    with pytest.raises(ValueError, match=r"must have shapes that broadcast, got steps \(3,\), sample_rate \(2,\)"):
        li.last_iterate_epsilon([1, 2, 3], [0.1, 0.2], 1.0, 1e-5)


def test_long_values_are_cut():
    with pytest.raises(ValueError, match="steps must be") as refused:
        li.DPSGD(steps="9" * 1_000_000, sample_rate=0.1, noise_multiplier=1.0)
    assert len(str(refused.value)) < 300
