import pytest

import lastiterate as li
from lastiterate.paper.reproduce import table2
from lastiterate.paper.reproduce.audited_figures import Audits
from tests.paper.reproduce.conftest import COMMON, FOUND, SIGNAL, Idle, values


@pytest.mark.usefixtures("few_references")
def test_rows_are_audits_at_one_heuristic_epsilon(tmp_path, monkeypatch):
    monkeypatch.setattr(table2, "EPOCHS", {"quick": 1.0})
    monkeypatch.setattr(table2, "BATCHES", {"quick": (256, 128)})
    rows = table2.rows("quick", audits=Audits(store=tmp_path, models=12))
    assert [row["batch_size"] for row in rows] == [256, 128]
    for row in rows:
        assert list(row) == ["batch_size", *COMMON, "accuracy", *FOUND, *SIGNAL]
        assert row["sample_rate"] == pytest.approx(row["batch_size"] / 1437)
        assert row["last_iterate"] == pytest.approx(6.0, rel=1e-6)
        assert 0.05 < row["accuracy"] < 0.9
    assert table2.rows("quick", audits=Audits(store=tmp_path, models=12, engine=Idle())) == rows
    privacy, accuracy = table2.chart(rows).to_dict()["hconcat"]
    shown = {row["batch_size"]: row["epsilon"] for row in values(privacy["layer"][0]) if "comp" in row["analysis"]}
    assert shown == {row["batch_size"]: row["composition"] for row in rows}
    assert accuracy["title"] == "Accuracy"
    assert [row["accuracy"] for row in values(accuracy["layer"][0])] == [row["accuracy"] for row in rows]


def test_full_scale_has_the_papers_batches(cifar10):
    runs = {case.labels["batch_size"]: case.run for case in table2.cases("full", cifar10)}
    assert list(runs) == [4096, 512, 256]
    assert runs[4096].steps == 2468
    assert runs[256].steps == 2468 * 16
    for run in runs.values():
        assert li.last_iterate(run).epsilon(1e-5) == pytest.approx(6.34, rel=1e-6)
        assert run.optimizer.averaging is not None
