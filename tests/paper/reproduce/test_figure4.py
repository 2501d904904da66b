import pytest

import lastiterate as li
from lastiterate.attacks import InputSpace
from lastiterate.paper.reproduce import figure2, figure4
from lastiterate.paper.reproduce.audited_figures import Audits
from tests.paper.reproduce.conftest import COMMON, FOUND, SIGNAL, Idle


@pytest.mark.usefixtures("few_references")
def test_rows_are_audits_of_both_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(figure4, "STEPS", {"quick": (6,)})
    monkeypatch.setattr(figure4, "CANARIES", {"mislabelled": "mislabelled example"})
    monkeypatch.setattr(figure2, "HEURISTIC", 2.0)
    rows = figure4.rows("quick", audits=Audits(store=tmp_path, models=12))
    assert [(row["setting"], row["attack"]) for row in rows] == [("blank", "mislabelled"), ("natural", "mislabelled")]
    for row in rows:
        assert list(row) == ["setting", "attack", *COMMON, *FOUND, *SIGNAL]
        run = li.DPSGD(6, 0.08, row["noise_multiplier"])
        assert row["last_iterate"] == pytest.approx(li.last_iterate(run).epsilon(1e-5), rel=1e-9)
        assert row["last_iterate"] == pytest.approx(2.0, rel=1e-6)
        assert row["composition"] == pytest.approx(li.composition(run).epsilon(1e-5), rel=1e-6)
        assert (row["models"], row["confidence"]) == (12, 0.95)
    assert rows[0]["signal"] != rows[1]["signal"]
    assert figure4.rows("quick", audits=Audits(store=tmp_path, models=12, engine=Idle())) == rows


def test_full_scale_has_the_papers_sample_rate(cifar10):
    cases = figure4.cases("full", cifar10)
    assert {case.run.sample_rate for case in cases} == {0.01}
    assert {case.labels["setting"] for case in cases} == {"blank", "natural"}
    assert {case.labels["attack"] for case in cases} == {"mislabelled", "clipbkd"}
    for case in cases:
        assert isinstance(case.attack, InputSpace)
        assert (case.attack.others, case.attack.canary) == (case.labels["setting"], case.labels["attack"])
