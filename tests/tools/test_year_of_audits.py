"""A small part of a simulated year of audits; ``python -m tests.tools.year_of_audits`` is all of it."""

import numpy as np
import pytest

from tests.tools.year_of_audits import year


@pytest.fixture(scope="module")
def found():
    """40 correct trainings, 40 faulty ones and 20 audits without power."""
    return year(40, 40, 20)


@pytest.mark.slow
def test_correct_trainings_are_refuted_no_more_often_than_stated(found):
    assert sum(found.correct.values()) == 40
    for verdict in ("violation", "above heuristic"):
        assert found.correct[verdict] <= found.allowed + 3.0 * found.spread
    assert found.correct["consistent"] >= 10


@pytest.mark.slow
def test_faults_of_the_largest_size_are_found(found):
    loud = [verdicts for name, verdicts in found.faulty.items() if name.endswith("size 3")]
    assert sum(verdicts["violation"] + verdicts["above heuristic"] for verdicts in loud) >= 0.8 * sum(
        sum(verdicts.values()) for verdicts in loud
    )


@pytest.mark.slow
def test_audits_without_power_are_not_consistent(found):
    for verdicts in found.powerless.values():
        assert verdicts["consistent"] == 0


@pytest.mark.slow
def test_consistent_verdicts_have_the_power_that_they_state(found):
    assert found.too_kind <= 0.05
    assert np.mean(np.array(found.strengths) >= 0.75) >= 0.9
