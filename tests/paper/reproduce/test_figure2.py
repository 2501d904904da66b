import pytest

import lastiterate as li
from lastiterate.attacks import GradientSpace
from lastiterate.paper.reproduce import figure2
from lastiterate.paper.reproduce.audited_figures import Audits
from tests.paper.reproduce.conftest import COMMON, FOUND, SIGNAL, Idle, stopped_after


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
