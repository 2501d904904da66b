"""The curve of two distributions on finitely many points is what trying every set of points gives."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures.distributions import DiscretePair

ROUNDING = 1e-9
# No sum of the masses below equals one of these, where epsilon would jump.
deltas = st.sampled_from([1.234e-9, 0.0031831, 0.0723, 0.18371, 0.41421])


def curve(p, q) -> PrivacyCurve:
    with np.errstate(divide="ignore"):
        return PrivacyCurve(DiscretePair(np.log(p), np.log(q)), "test", is_guarantee=False)


@st.composite
def pairs(draw, least=0):
    """Two distributions on up to six points; with ``least`` 0 many points occur under one of them only."""
    count = draw(st.integers(1, 6))
    masses = st.lists(st.integers(least, 9), min_size=count, max_size=count).filter(any)
    return tuple(np.array(each) / sum(each) for each in (draw(masses), draw(masses)))


def epsilon_of_all_sets(p, q, delta):
    """The definition of (epsilon, delta)-DP, for every set of points and both directions."""
    largest = 0.0
    for chosen in itertools.product([False, True], repeat=len(p)):
        for inside, outside in (
            (p[list(chosen)].sum(), q[list(chosen)].sum()),
            (q[list(chosen)].sum(), p[list(chosen)].sum()),
        ):
            if inside > delta:
                largest = max(largest, math.log((inside - delta) / outside) if outside > 0.0 else math.inf)
    return largest


def delta_of_all_sets(p, q, epsilon):
    sets = [list(chosen) for chosen in itertools.product([False, True], repeat=len(p))]
    return max(
        max(p[s].sum() - math.exp(epsilon) * q[s].sum(), q[s].sum() - math.exp(epsilon) * p[s].sum()) for s in sets
    )


def fnr_of_all_tests(p, q, fpr):
    """The best test that may toss coins, as a linear program: it calls point i "in" with probability x_i."""
    found = linprog(-p, A_ub=[q], b_ub=[fpr], bounds=(0.0, 1.0))
    return 1.0 + found.fun


@given(pair=pairs(), delta=deltas)
def test_epsilon_is_that_of_the_most_telling_of_all_sets(pair, delta):
    found = curve(*pair).epsilon(delta)
    assert found == pytest.approx(epsilon_of_all_sets(*pair, delta), rel=ROUNDING, abs=ROUNDING)


@given(pair=pairs(), epsilon=st.floats(0.0, 4.0))
def test_delta_is_that_of_the_most_telling_of_all_sets(pair, epsilon):
    assert curve(*pair).delta(epsilon) == pytest.approx(delta_of_all_sets(*pair, epsilon), abs=1e-12)


@given(pair=pairs(), fpr=st.floats(0.001, 0.999))
@settings(max_examples=40)
def test_fnr_is_that_of_the_best_test_with_coins(pair, fpr):
    assert curve(*pair).fnr(fpr) == pytest.approx(fnr_of_all_tests(*pair, fpr), abs=1e-7)  # the program's own tolerance


@given(pair=pairs(), epsilon=st.floats(0.0, 3.0))
@settings(max_examples=40)
def test_trade_off_and_delta_tell_the_same_story(pair, epsilon):
    p, q = pair
    corners = np.clip(_sums(q), 1e-250, 1.0)  # where a trade-off function can have its kinks, 0 approached from above
    forward = np.max(1.0 - curve(p, q).fnr(corners) - math.exp(epsilon) * corners)
    corners = np.clip(_sums(p), 1e-250, 1.0)
    backward = np.max(1.0 - curve(q, p).fnr(corners) - math.exp(epsilon) * corners)
    assert curve(p, q).delta(epsilon) == pytest.approx(max(forward, backward), abs=1e-12)


def _sums(masses):
    """The masses of all sets."""
    return np.array(
        [sum(itertools.compress(masses, chosen)) for chosen in itertools.product([0, 1], repeat=len(masses))]
    )


def test_randomised_response_is_the_closed_form():
    this = curve([0.75, 0.25], [0.25, 0.75])
    assert this.epsilon(1e-12) == pytest.approx(math.log(3.0), abs=1e-11)
    for delta in (1e-6, 0.01, 0.3):
        assert this.epsilon(delta) == pytest.approx(math.log((0.75 - delta) / 0.25))
    assert this.epsilon(0.51) == 0.0
    assert this.delta([0.0, 0.5, 1.0, 1.1]) == pytest.approx(
        [0.5, 0.75 - 0.25 * math.exp(0.5), 0.75 - 0.25 * math.e, 0.0]
    )
    assert this.advantage() == pytest.approx(0.5)
    assert this.fnr([0.1, 0.25, 0.5, 0.85]) == pytest.approx([0.7, 0.25, 0.5 / 3.0, 0.05])
    lower, upper = this.bracket(0.01)
    assert lower < math.log(0.74 / 0.25) < upper
    assert upper - lower < 1e-8
