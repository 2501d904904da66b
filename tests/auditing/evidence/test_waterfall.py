"""Why the number found is below the guarantee, level by level."""

import pytest

import lastiterate as li
from lastiterate import attacks
from lastiterate.auditing.evidence.forecast import Forecast

RUN = li.DPSGD(100, 0.1, 1.2)
EXACT = attacks.Adversarial()


@pytest.fixture(scope="module")
def result():
    return li.audit(RUN, None, EXACT, models=512, seed=3, methods=["clopper-pearson", "last-iterate"])


def test_levels_go_from_the_guarantee_to_what_was_found_by_one_family(result):
    levels = {step.name: step.epsilon for step in result.waterfall}
    assert list(levels) == ["guarantee", "heuristic", "perfect attack", "found"]
    assert levels["guarantee"] == result.composition
    assert levels["heuristic"] == result.last_iterate
    assert levels["perfect attack"] == Forecast(RUN, 512).reached("last-iterate", 0.5)
    assert levels["found"] == result.empirical["last-iterate"]
    assert "last-iterate family" in result.waterfall[2].words
