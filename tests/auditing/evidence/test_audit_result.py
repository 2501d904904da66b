"""A result shows itself: as the table of the command line, as a picture and as a page."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate import attacks
from lastiterate.auditing.load_evidence import read
from tests.cli.conftest import Cli

RUN = li.DPSGD(100, 0.1, 1.0)


@pytest.fixture(scope="module")
def result():
    return li.audit(RUN, None, "adversarial", models=200)


def test_a_result_prints_as_the_command_line_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "90")
    li.audit(RUN, None, "adversarial", models=200, store="x.sqlite")
    printed = Cli()("report x.sqlite --details").stdout
    table, _, files = printed.partition("Picture: ")
    assert str(read("x.sqlite")) + "\n" == table
    assert files


def test_a_result_draws_itself_and_writes_its_page(result, tmp_path):
    assert "What an attack found in the released model" in str(result.plot().to_dict()["title"])
    result.page(tmp_path / "found.html")
    assert result.headline in (tmp_path / "found.html").read_text(encoding="utf-8")
    for path in (3, tmp_path / "found.png"):
        with pytest.raises(ValueError, match=r"file|must end in"):
            result.page(path)


REPORT_RUN = li.DPSGD(100, 0.1, 1.2, optimizer=li.SGD(0.1))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "x.sqlite"
    li.audit(REPORT_RUN, None, attacks.Adversarial(), models=2000, seed=3, store=path)
    return path


def test_a_priori_thresholds_are_numbers_that_do_not_depend_on_the_scores(store, tmp_path):
    other = li.audit(REPORT_RUN, None, attacks.Adversarial(), models=2000, seed=4, store=tmp_path / "y.sqlite")
    here = read(store)
    for method, found in here.estimates.items():
        assert found.threshold_choice == "a-priori"
        assert found.threshold == other.estimates[method].threshold


@pytest.mark.slow
def test_last_iterate_family_is_below_the_heuristic_as_often_as_stated():
    """Many audits with their own a-priori thresholds: joint confidence 80%, so that failures would show."""
    run = li.calibrate(REPORT_RUN, epsilon=4.0, delta=1e-5, analysis=li.last_iterate)
    audits = [
        li.audit(run, None, attacks.Adversarial(), models=300, seed=seed, confidence=0.8, methods=["last-iterate"])
        for seed in range(120)
    ]
    above = np.mean([each.empirical["last-iterate"] > each.last_iterate for each in audits])
    assert above <= 0.2 + 3 * np.sqrt(0.2 * 0.8 / 120)
    assert np.mean([each.verdict == "violation" for each in audits]) <= 0.2
