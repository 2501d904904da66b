"""Pictures through the commands that draw them: they exist, are what their names say, and need no network."""

from __future__ import annotations

import re

import numpy as np
import pytest

import lastiterate as li
from lastiterate.plot import run_charts as plot_run
from lastiterate.plot.chart_file import save
from lastiterate.plot.run_charts import plan_chart, run_chart
from lastiterate.privacy.curve import Target
from lastiterate.registry import ANALYSES

SIGNATURES = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<svg", "pdf": b"%PDF", "html": b"<!DOCTYPE html>"}
RUN = li.DPSGD(100, 0.05, 1.0)
NAMES = {
    "last_iterate": "last iterate (heuristic)",
    "composition": "composition (standard)",
    "full_batch": "full batch (baseline)",
}
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


def test_an_existing_picture_is_replaced_and_survives_a_failure(tmp_path, chart):
    path = tmp_path / "picture.svg"
    path.write_text("old")

    class Broken:
        def to_dict(self):
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        save(Broken(), path)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    save(chart, path)
    assert path.read_text().startswith("<svg")


def test_the_run_is_drawn_at_prefixes_that_end_with_it(drawn):
    rows = drawn["hconcat"][0]["data"]["values"]
    last = {row["analysis"]: row["epsilon"] for row in rows if row["steps"] == 100}
    assert last["last iterate (heuristic)"] == li.last_iterate(RUN).epsilon(1e-5)
    assert last["composition (standard)"] == li.composition(RUN).epsilon(1e-5)
    assert last["full batch (baseline)"] == li.full_batch(RUN).epsilon(1e-5)
    assert min(row["steps"] for row in rows) == 1


def test_the_trade_off_is_that_of_the_analyses(drawn):
    rows = drawn["hconcat"][1]["layer"][-1]["data"]["values"]
    shown = {row["fpr"]: row["fnr"] for row in rows if row["analysis"] == "last iterate (heuristic)"}
    fpr = np.array(list(shown))
    np.testing.assert_array_equal(list(shown.values()), li.last_iterate(RUN).fnr(fpr))


def test_a_picture_without_composition_says_why():
    chart = run_chart(li.DPSGD(20, 0.1, 1.0, sampling="shuffled"), 1e-5).to_dict()
    assert "Without composition" in " ".join(chart["title"]["subtitle"])
    assert all("composition" not in row["analysis"] for row in chart["hconcat"][0]["data"]["values"])


@pytest.mark.parametrize(
    "run",
    [
        li.DPSGD(20, 0.1, 1.0, sampling="shuffled"),
        li.DPSGD(20, 0.1, 1.0, sampling="fixed"),
        li.DPSGD(20, 0.1, 1.0, sampling="shuffled", releases=2),
        li.DPSGD(20, 0.1, 1.0, sampling="fixed", group_size=2),
        li.DPSGD(20, 0.1, 1.0, sampling="shuffled", neighbours="replace"),
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


def test_steps_before_anything_is_learnt_are_left_out():
    chart = run_chart(li.DPSGD(3, 1.0, 1.0, sampling="full", weights=[0.0, 0.0, 1.0]), 1e-5).to_dict()
    assert {row["steps"] for row in chart["hconcat"][0]["data"]["values"]} == {3}


def test_the_picture_of_a_plan_has_every_batch_size_and_says_what_is_missing():
    rows = [
        {"batch_size": 64, "noise_multiplier": 1.5, "last_iterate": 2.0, "composition": None, "full_batch": 1.0},
        {"batch_size": 16, "noise_multiplier": 1.2, "last_iterate": 2.1, "composition": None, "full_batch": 1.1},
    ]
    rows = [{"analysis": "last_iterate", **row} for row in rows]
    rows[1]["composition_reason"] = "it takes long"
    chart = plan_chart(rows, Target(6.0, 1e-5), "100 epochs").to_dict()
    leak, noise = chart["hconcat"]
    shown = {(row["analysis"], row["batch_size"]): row["epsilon"] for row in leak["data"]["values"]}
    assert shown == {(NAMES[name], row["batch_size"]): row[name] for row in rows for name in NAMES if row[name]}
    assert [row["noise_multiplier"] for row in noise["data"]["values"]] == [1.5, 1.2]
    assert [panel["encoding"]["y"]["field"] for panel in (leak, noise)] == ["epsilon", "noise_multiplier"]
    for panel in (leak, noise):
        assert panel["mark"]["type"] == "line"
        assert panel["encoding"]["x"]["field"] == "batch_size"
        assert panel["encoding"]["x"]["axis"]["values"] == [16, 64]
    words = " ".join(chart["title"]["subtitle"])
    for said in ("100 epochs", "it does not guarantee", "Without composition (standard): it takes long"):
        assert said in words
