"""The recursion for right guesses of one run, with any curve."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate.auditing.evidence.one_run.allowed_guesses import gaussian, guessing, lines_of, slack

GAUSSIAN = li.DPSGD(1, 1.0, 1.0)


def tails(least_wrong, canaries, count, right, error):
    """The same recursion as in docs/method.md, for the tails themselves: P(at least t are right), t = right, ..., 0."""
    tail, above = error, 0.0
    for fewer in range(right - 1, -1, -1):
        wrong = canaries * least_wrong((above + (fewer + 1) * tail) / canaries)
        above += tail
        tail = max(tail, (wrong + above) / (count - fewer))
    return tail


def test_lines_are_the_larger_of_both_directions_and_one_alone_would_be_too_strict():
    """A canary that is seldom used: a rare high score gives it away, but no score says that it is not there."""
    curve = li.last_iterate(li.DPSGD(1, 0.1, 0.3))
    lines = lines_of(curve, 200)
    rates = np.array([0.01, 0.05, 0.2])
    forward = np.interp(rates, 1.0 - curve.fnr(grid := np.linspace(0.0, 1.0, 20_001)), grid)  # "in" found, "out" called
    backward = curve.fnr(1.0 - rates)  # "out" found, "in" called
    for of_right, one, other in zip(rates, forward, backward, strict=True):
        assert lines(float(of_right)) <= min(one, other) + 1e-6
    assert np.any(backward > 2.0 * np.array([lines(float(rate)) for rate in rates]))


@pytest.mark.parametrize(("canaries", "count", "right"), [(100, 40, 36), (1000, 90, 85), (50, 50, 44), (20, 16, 16)])
def test_the_recursion_is_that_of_the_tails(canaries, count, right):
    for least_wrong in (guessing, gaussian(0.7), lines_of(li.last_iterate(li.DPSGD(20, 0.1, 0.8)), 50)):
        for error in (1e-4, 0.01, 0.05, 0.5):
            assert (slack(least_wrong, canaries, count, right, error) < 0.0) == (
                tails(least_wrong, canaries, count, right, error) > 1.0
            )


@pytest.mark.filterwarnings("ignore")
def test_a_family_that_is_gaussian_agrees_with_jax_privacy():
    import jax_privacy.auditing as auditing

    for canaries, wrong in [(1000, 300), (100, 13), (60, 2)]:
        half = canaries // 2
        scores_in, scores_out = np.ones(half), np.repeat([1.0, 0.0], [wrong, half - wrong])
        theirs = auditing._epsilon_one_run_fdp(0, canaries, canaries, canaries - wrong, 0.05, 1e-5)
        for method, loss in [("one-run-last-iterate", 2e-3), ("one-run-composition", 2e-2)]:
            if method == "one-run-composition" and canaries < 1000:
                continue  # with little noise it takes seconds
            found = li.estimate(scores_in, scores_out, method=method, threshold=0.5, run=GAUSSIAN)
            assert theirs * (1.0 - loss) <= found.epsilon <= theirs + 2e-5
