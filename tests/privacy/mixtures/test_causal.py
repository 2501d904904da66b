"""Products and inverses of filters, against rational numbers and against their own error bounds."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastiterate.privacy.mixtures import correlated_noise as causal
from lastiterate.privacy.mixtures.correlated_noise import inverse, product

numbers = st.floats(-4.0, 4.0, allow_subnormal=False).filter(lambda value: value == 0.0 or abs(value) > 1e-30)
filters = st.lists(numbers, min_size=1, max_size=12)


def exact_product(first, second, size):
    one, two = ([Fraction(value) for value in each] + [Fraction(0)] * size for each in (first, second))
    return [sum((one[j] * two[i - j] for j in range(i + 1)), Fraction(0)) for i in range(size)]


def exact_inverse(coefficients, size):
    given = [Fraction(value) for value in coefficients] + [Fraction(0)] * size
    result = [1 / given[0]]
    for place in range(1, size):
        result.append(-sum(given[j] * result[place - j] for j in range(1, place + 1)) / given[0])
    return result


@given(filters, filters, st.integers(1, 20))
def test_a_product_is_exact_up_to_its_bound_and_the_bound_is_rounding(first, second, size):
    found, error = product(np.array(first), np.array(second), size)
    exact = exact_product(first, second, size)
    off = np.sqrt(float(sum((Fraction(value) - true) ** 2 for value, true in zip(found.tolist(), exact, strict=True))))
    assert off <= error
    assert error <= 2e-16 * np.linalg.norm(found) + 1e-29 * np.sum(np.abs(first)) * np.linalg.norm(second)


@pytest.mark.parametrize("seed", range(3))
def test_long_products_by_blocks_keep_their_bound(seed):
    rng = np.random.default_rng(seed)
    size = 3000 + 7 * seed
    first = rng.normal(size=size) / (1.0 + np.arange(size)) ** (seed / 2.0)
    second = 1.0 + 0.1 * rng.normal(size=size - 100 * seed)
    by_blocks, error = causal._by_blocks(first, second, size)
    compensated, rest = causal._compensated(first, second, size)
    off = float(np.linalg.norm(by_blocks - compensated))
    assert off + rest <= error
    assert 0.0 < off < error < 1e5 * off  # neither broken nor void


@given(st.lists(numbers, min_size=0, max_size=8), st.floats(0.25, 4.0), st.integers(1, 15))
def test_an_inverse_is_exact_up_to_its_bound(rest, first, size):
    coefficients = [first, *(0.5 * value for value in rest)]
    found, error = inverse(np.array(coefficients), size)
    exact = exact_inverse(coefficients, size)
    off = float(sum(abs(Fraction(value) - true) for value, true in zip(found.tolist(), exact, strict=True)))
    assert off <= error
    if float(np.max(np.abs(found))) < 1e4:
        assert error <= 1e-8 * float(np.sum(np.abs(found)))
