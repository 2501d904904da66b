"""Memory that is freed inside is kept, and given back after."""

import math
import subprocess
import sys

import pytest

from lastiterate.common.search import bisect, doubled, first_integer

SCRIPT = """
import resource
import numpy as np
from lastiterate.common.system import kept_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

def work():
    np.ones(2**23)

work()
before = faults()
work()
print(faults() - before)
with kept_memory():
    work()
    before = faults()
    work()
    print(faults() - before)
    inside = resident()
print(inside - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told to keep memory")
def test_freed_memory_is_kept_inside_and_given_back_after():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    asked_again, kept, given_back = map(int, done.stdout.split())
    assert kept < asked_again / 10
    assert given_back > 2**25


@pytest.mark.parametrize("first", [0, 1, 17, 99, 100])
def test_the_first_integer_is_found_and_neither_end_is_tried_again(first):
    tried = []

    def holds(number):
        tried.append(number)
        return number >= first

    assert first_integer(holds, -1, 100) == first
    assert len(tried) <= 7
    assert not {-1, 100} & set(tried)


@pytest.mark.parametrize(("first", "short", "found"), [(1.0, 5.0, 8.0), (3.0, 2.0, 3.0), (1.0, math.nan, 1.0)])
def test_doubling_ends_at_the_first_number_that_is_not_known_to_be_too_short(first, short, found):
    assert doubled(lambda x: x < short, first) == found


def test_a_bracket_of_real_numbers_ends_where_it_is_told_to():
    low, high = bisect(
        lambda x: x * x >= 2.0, 1.0, 4.0, lambda low, high: high / low <= 1.001, lambda low, high: math.sqrt(low * high)
    )
    assert low < math.sqrt(2.0) <= high <= 1.001 * low
