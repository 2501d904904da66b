"""A result shows itself: as the table of the command line, as a picture and as a page."""

import pytest

import lastiterate as li
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
    printed = Cli()("report x.sqlite").stdout
    table, _, files = printed.partition("Picture: ")
    assert str(read("x.sqlite")) + "\n" == table
    assert files


def test_a_result_draws_itself_and_writes_its_page(result, tmp_path):
    assert "What an attack found in the released model" in str(result.plot().to_dict()["title"])
    result.page(tmp_path / "found.html")
    assert f"Verdict: {result.verdict}" in (tmp_path / "found.html").read_text(encoding="utf-8")
    for path in (3, tmp_path / "found.png"):
        with pytest.raises(ValueError, match=r"file|must end in"):
            result.page(path)
