import pytest

import lastiterate as li
from lastiterate.attacks import GradientSpace, InputSpace
from lastiterate.paper.reproduce import figure2, figure4, table2
from lastiterate.paper.reproduce.audited_figures import Audits
from tests.paper.reproduce.conftest import COMMON, FOUND, SIGNAL, Idle, stopped_after, values


@pytest.fixture
def _few_steps(monkeypatch):
    monkeypatch.setattr(figure2, "STEPS", {"quick": {0.1: (6,)}})
    monkeypatch.setattr(figure2, "HEURISTIC", 2.0)


@pytest.mark.usefixtures("_few_steps", "few_references")
def test_rows_are_audits_and_resume_where_they_were_stopped(tmp_path):
    audits = Audits(store=tmp_path, models=12)
    with pytest.raises(KeyboardInterrupt):
        figure2.rows("quick", stopped_after(1), audits)
    assert len(list(tmp_path.glob("figure2-*.sqlite"))) == 1
    finished = figure2.rows("quick", audits=audits)
    assert len(list(tmp_path.glob("figure2-*.sqlite"))) == 2
    assert figure2.rows("quick", audits=Audits(store=tmp_path, models=12, engine=Idle())) == finished
    assert [row["attack"] for row in finished] == ["dirac", "quiet"]
    for row in finished:
        assert list(row) == ["attack", *COMMON, *FOUND, *SIGNAL]
        assert row["models"] == 12
        assert row["confidence"] == 0.95
        run = li.DPSGD(row["steps"], row["sample_rate"], row["noise_multiplier"])
        assert row["last_iterate"] == pytest.approx(li.last_iterate(run).epsilon(1e-5), rel=1e-9)
        assert row["composition"] == pytest.approx(li.composition(run).epsilon(1e-5), rel=1e-6)
    assert finished[-1]["last_iterate"] == pytest.approx(figure2.HEURISTIC, rel=1e-6)


@pytest.mark.parametrize("scale", ["quick", "full"])
def test_noise_is_fixed_and_the_heuristic_ends_at_seven(scale, cifar10):
    cases = figure2.cases(scale, cifar10)
    assert {case.run.sample_rate for case in cases} == {0.01, 0.08}
    assert {case.labels["attack"] for case in cases} == {"dirac", "quiet"}
    assert all(isinstance(case.attack, GradientSpace) for case in cases)
    for rate, steps in figure2.STEPS[scale].items():
        runs = [case.run for case in cases if case.run.sample_rate == rate]
        assert len({run.noise_multiplier for run in runs}) == 1
        assert sorted({run.steps for run in runs}) == list(steps)
        longest = max(runs, key=lambda run: run.steps)
        assert li.last_iterate(longest).epsilon(1e-5) == pytest.approx(7.0, rel=1e-6)


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
