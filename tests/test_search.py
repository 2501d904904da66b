"""Bisection finds where a monotone condition begins to hold."""

import math

import numpy as np
import pytest

from lastiterate.common.search import bisect, doubled, first_integer


@pytest.mark.parametrize("first", [0, 1, 17, 99, 100])
def test_the_first_integer_is_found_and_neither_end_is_tried_again(first):
    tried = []

    def holds(number):
        tried.append(number)
        return number >= first

    assert first_integer(holds, -1, 100) == first
    assert len(tried) <= 7
    assert not {-1, 100} & set(tried)


def test_a_bracket_of_real_numbers_ends_where_it_is_told_to():
    low, high = bisect(
        lambda x: x * x >= 2.0, 1.0, 4.0, lambda low, high: high / low <= 1.001, lambda low, high: math.sqrt(low * high)
    )
    assert low < math.sqrt(2.0) <= high <= 1.001 * low


@pytest.mark.parametrize(("first", "short", "found"), [(1.0, 5.0, 8.0), (3.0, 2.0, 3.0), (1.0, math.nan, 1.0)])
def test_doubling_ends_at_the_first_number_that_is_not_too_short_also_if_that_is_not_known(first, short, found):
    assert doubled(lambda x: x < short, np.float64(first)) == found
