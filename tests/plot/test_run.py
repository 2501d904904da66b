"""Pictures through the commands that draw them: they exist, are what their names say, and need no network."""

import re

import pytest

import lastiterate as li
from lastiterate.labels import ANALYSES
from lastiterate.plot import run_charts as plot_run
from lastiterate.plot.chart_file import save
from lastiterate.plot.run_charts import releases_chart, run_chart

SIGNATURES = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<svg", "pdf": b"%PDF", "html": b"<!DOCTYPE html>"}
RUN = li.DPSGD(100, 0.05, 1.0)
QUICK = li.DPSGD(100, 1.0, 20.0, sampling="full")  # its analyses have closed forms


@pytest.fixture(scope="module")
def chart():
    return run_chart(QUICK, 1e-5)


@pytest.fixture(scope="module")
def drawn():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(plot_run._STEPS, "composition", 2)
        return run_chart(RUN, 1e-5).to_dict()


@pytest.mark.parametrize("name", ["picture.PNG", "picture.svg", "picture.pdf", "picture.html"])
def test_a_file_is_of_the_kind_that_its_name_says(tmp_path, chart, name):
    path = tmp_path / name
    save(chart, path)
    content = path.read_bytes()
    assert content.lstrip().startswith(SIGNATURES[path.suffix[1:].lower()])
    assert len(content) > 8_000
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_web_page_needs_no_network(tmp_path, chart):
    path = tmp_path / "picture.html"
    save(chart, path)
    page = path.read_text()
    assert not re.search(r"<(script|link)[^>]*(src|href)\s*=", page)
    assert not re.search(r"import[^;]{0,80}from\s*[\"']https?://", page)
    assert len(page) > 200_000


def test_the_run_is_drawn_at_prefixes_that_end_with_it(drawn):
    rows = drawn["hconcat"][0]["data"]["values"]
    last = {row["analysis"]: row["epsilon"] for row in rows if row["steps"] == 100}
    assert last["last iterate (heuristic)"] == li.last_iterate(RUN).epsilon(1e-5)
    assert last["composition (standard)"] == li.composition(RUN).epsilon(1e-5)
    assert last["full batch (baseline)"] == li.full_batch(RUN).epsilon(1e-5)
    assert min(row["steps"] for row in rows) == 1


@pytest.mark.parametrize(
    "run",
    [
        li.DPSGD(20, 0.1, 1.0, sampling="shuffled"),
        li.DPSGD(20, 0.1, 1.0, sampling="fixed"),
        li.DPSGD(20, 0.1, 1.0, sampling="shuffled", noise_filter=(1.0, -0.5)),
        li.DPSGD(20, 0.1, 1.0, sampling="shuffled", optimizer=li.Adam(0.1)),
        li.DPSGD(20, 0.1, 5.0, noise_filter=(1.0, -0.5)),
    ],
)
def test_the_guarantee_is_drawn_beside_the_prediction(run):
    guarantee = ANALYSES[run.guarantee]
    leaks, errors = run_chart(run, 1e-5).to_dict()["hconcat"]
    shown = {row["steps"]: row["epsilon"] for row in leaks["data"]["values"] if row["analysis"] == guarantee.label}
    assert shown[run.steps] == guarantee.curve(run).epsilon(1e-5)
    assert guarantee.label in {row["analysis"] for row in errors["layer"][-1]["data"]["values"]}


def test_lines_begin_at_the_heuristic_and_end_at_composition():
    runs = [li.DPSGD(60, 0.05, 1.0), li.DPSGD(20, 0.2, 3.0, group_size=2)]
    rows = releases_chart(runs, 1e-5).to_dict()["data"]["values"]
    for run, label in zip(runs, dict.fromkeys(row["run"] for row in rows), strict=True):
        line = [row for row in rows if row["run"] == label]
        assert (line[0]["releases"], line[-1]["releases"]) == (1, run.steps)
        assert line[0]["epsilon"] == li.last_iterate(run).epsilon(1e-5)
        assert line[-1]["epsilon"] == li.composition(run).epsilon(1e-5)
