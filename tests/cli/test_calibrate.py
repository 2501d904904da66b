import pytest

import lastiterate as li


@pytest.mark.parametrize("analysis", ["last-iterate", "composition", "full-batch"])
def test_noise_reaches_the_target_under_the_chosen_analysis(cli, analysis):
    answer = cli.json(f"calibrate --steps 1000 --sample-rate 0.01 --epsilon 2 --delta 1e-5 --analysis {analysis}")
    name = analysis.replace("-", "_")
    assert answer["analysis"] == name
    assert (answer["epsilon"], answer["delta"]) == (2.0, 1e-5)
    assert 2.0 - 2e-6 <= answer[name] <= 2.0
    run = li.DPSGD(1000, 0.01, answer["noise_multiplier"])
    for each in ("last_iterate", "composition", "full_batch"):
        assert answer[each] == getattr(li, each)(run).epsilon(1e-5)


RUN = "calibrate --steps 1000 --sample-rate 0.01 --epsilon 8 --delta 1e-5"


def test_without_an_analysis_the_guarantee_comes_first_and_the_heuristic_beside_it(cli):
    answer = cli.json(RUN)
    assert "noise_multiplier" not in answer
    assert (answer["steps"], answer["epsilon"], answer["delta"]) == (1000, 8.0, 1e-5)
    guarantee, heuristic = answer["rows"]
    assert (guarantee["analysis"], guarantee["is_guarantee"]) == ("composition", True)
    assert (heuristic["analysis"], heuristic["is_guarantee"]) == ("last_iterate", False)
    assert guarantee["noise_multiplier"] == pytest.approx(0.58626, abs=1e-5)
    assert heuristic["noise_multiplier"] == pytest.approx(0.24381, abs=1e-5)
    assert heuristic["composition"] == pytest.approx(130.935, abs=1e-3)
    for row in answer["rows"]:
        run = li.DPSGD(1000, 0.01, row["noise_multiplier"])
        assert 8.0 - 1e-5 <= row[row["analysis"]] <= 8.0
        assert getattr(li, row["analysis"])(run).is_guarantee == row["is_guarantee"]
        for each in ("last_iterate", "composition", "full_batch"):
            assert row[each] == getattr(li, each)(run).epsilon(1e-5)
