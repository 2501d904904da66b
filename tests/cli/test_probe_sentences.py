"""What is said of a counterexample claims no more than its numbers."""

from lastiterate.cli.probe import STORIES, compare
from lastiterate.paper.counterexamples import NAMES


def test_every_counterexample_has_its_story():
    assert tuple(STORIES) == NAMES


def test_a_prediction_that_is_enough_is_not_called_too_low():
    assert compare(2.0, 2.0) == compare(1.0, 2.0) == "the example does not leak more"
    assert compare(2.5, 2.0) == "the example leaks 25% more"
    assert compare(5.0, 2.0) == "the example leaks 2.5 times as much"
    assert compare(1e5, 2.0) == "the example leaks 50,000 times as much"
