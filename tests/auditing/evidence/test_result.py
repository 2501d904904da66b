"""A result shows itself: as the table of the command line, as a picture and as a page."""

import sys

import pytest

import lastiterate as li
from lastiterate.auditing.load_evidence import read
from lastiterate.common.errors import MissingExtra
from tests.cli.conftest import Cli

RUN = li.DPSGD(100, 0.1, 1.0)


@pytest.fixture(scope="module")
def result():
    return li.audit(RUN, None, "adversarial", models=200)


def test_a_result_prints_as_the_command_line_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "90")
    li.audit(RUN, None, "adversarial", models=200, store="x.sqlite")
    printed = Cli()("report x.sqlite").stdout
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


def test_a_picture_without_its_library_is_one_sentence(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(MissingExtra, match="plots need altair"):
        result.plot()


def test_an_estimate_prints_in_one_line():
    ones, zeros = [1.0] * 40, [0.0] * 40
    assert str(li.estimate(ones, zeros, threshold=0.5)) == (
        "epsilon >= 2.337 with 95% confidence, at delta 1e-5: Clopper-Pearson (any mechanism), threshold a-priori, "
        "40 + 40 models, which show at most 2.338. The bound holds only if models are independent of each other, their "
        "number was fixed in advance and the threshold was fixed before the scores were seen."
    )
    assert " confidence, at every moment, " in str(li.estimate(ones, zeros, threshold=0.5, validity="anytime"))
    best = str(li.estimate(ones, zeros, threshold="uncorrected"))
    assert "not a valid bound" in best
    assert "confidence" not in best
    assert "80 canaries" in str(li.estimate(ones, zeros, method="one-run")).replace("40 + 40", "80")
