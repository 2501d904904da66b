from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lastiterate as li
from lastiterate.paper.counterexamples.quadratic import rounded_law, rounded_support


def enumerated(steps, rate):
    """Value -> probability of the rounded sum, over all 2^T outcomes."""
    law: dict[float, float] = {}
    for draws in product((0, 1), repeat=steps):
        value = max(sum(draw / 2**i for i, draw in enumerate(draws)), 0.0005)
        power = next(k for k in range(-156, 16) if 1.05**k >= value)
        law[power] = law.get(power, 0.0) + rate ** sum(draws) * (1 - rate) ** (steps - sum(draws))
    return dict(sorted(law.items()))


@pytest.mark.parametrize(("steps", "rate"), [(1, 0.3), (2, 0.9), (5, 0.07), (12, 0.01), (12, 0.5)])
def test_digits_give_the_law_that_enumeration_gives(steps, rate):
    values, chances = rounded_law(steps, rate, 1.0).blocks[0]
    expected = enumerated(steps, rate)
    np.testing.assert_allclose(values, [1.05**k for k in expected], rtol=1e-12)
    np.testing.assert_allclose(chances, list(expected.values()), rtol=1e-6, atol=1e-16)


def at_most(value, i, steps, rate):
    """P(the sum from step i on <= value), by whether step i counts, in exact arithmetic of the values."""
    if value < 0:
        return 0.0
    if value >= Fraction(2, 2**i) - Fraction(2, 2**steps):
        return 1.0
    without = at_most(value, i + 1, steps, rate)
    return (1 - rate) * without + rate * at_most(value - Fraction(1, 2**i), i + 1, steps, rate)


@pytest.mark.parametrize("steps", [30, 64, 100])
def test_long_sums_have_the_law_of_an_exact_recursion(steps):
    values, chances = rounded_law(steps, 0.6, 1.0).blocks[0]
    expected = [at_most(Fraction(value), 0, steps, 0.6) for value in values.tolist()]
    np.testing.assert_allclose(np.cumsum(chances), expected, rtol=1e-10)


@settings(max_examples=30)
@given(st.integers(1, 80), st.floats(0.001, 0.99), st.floats(0.3, 5.0), st.sampled_from([1e-3, 1e-6, 1e-9]))
def test_rounding_up_never_lowers_epsilon(steps, rate, noise, delta):
    run = li.DPSGD(steps, rate, noise, weights=0.5 ** np.arange(steps))
    exact = li.last_iterate(run).epsilon(delta)
    assert rounded_support(steps, rate, noise).epsilon(delta) >= exact - 1e-9 * max(1.0, exact)
