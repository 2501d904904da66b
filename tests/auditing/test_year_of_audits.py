"""A tenth of a simulated year of audits; ``python -m tests.auditing.year_of_audits`` is all of it."""

import pytest

from tests.auditing.year_of_audits import year


@pytest.fixture(scope="module")
def found():
    """100 correct trainings, 100 faulty ones and 33 audits that cannot tell: about half a minute."""
    return year(100)


@pytest.mark.slow
def test_correct_trainings_are_refuted_no_more_often_than_stated(found):
    assert sum(found.correct.values()) == 100
    for verdict in ("violation", "above heuristic"):
        assert found.correct[verdict] <= found.allowed + 3.0 * found.spread
    assert found.correct["inconclusive"] <= 2
    assert found.correct["consistent"] >= 80


@pytest.mark.slow
def test_faults_are_found(found):
    """Of shuffled batches little is guaranteed, so that a fault may only be above the heuristic."""
    verdicts = sum(found.faulty.values(), start=type(found.correct)())
    assert sum(verdicts.values()) == 100
    assert verdicts["violation"] >= 90
    assert verdicts["violation"] + verdicts["above heuristic"] >= 99
    assert {name for name in found.faulty if "wrong sign" in name}


@pytest.mark.slow
def test_audits_that_cannot_tell_are_inconclusive(found):
    assert set(found.hopeless) == {"too few models", "broken attack", "wrong sign"}
    for verdicts in found.hopeless.values():
        assert verdicts["consistent"] == verdicts["violation"] == 0
        assert verdicts["inconclusive"] >= 0.9 * sum(verdicts.values())
