"""Bisection finds where a monotone condition begins to hold."""

import math

import pytest

from lastiterate.common.search import bisect, first_integer


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
