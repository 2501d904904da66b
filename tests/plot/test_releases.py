"""The picture of checkpoints: a line for each run, from the last iterate to all of them."""

from __future__ import annotations

import pytest

import lastiterate as li
from lastiterate.plot.run_charts import releases_chart


def test_lines_begin_at_the_heuristic_and_end_at_composition():
    runs = [li.DPSGD(60, 0.05, 1.0), li.DPSGD(20, 0.2, 3.0, group_size=2)]
    rows = releases_chart(runs, 1e-5).to_dict()["data"]["values"]
    for run, label in zip(runs, dict.fromkeys(row["run"] for row in rows), strict=True):
        line = [row for row in rows if row["run"] == label]
        assert (line[0]["releases"], line[-1]["releases"]) == (1, run.steps)
        assert line[0]["epsilon"] == li.last_iterate(run).epsilon(1e-5)
        assert line[-1]["epsilon"] == li.composition(run).epsilon(1e-5)


def test_a_heuristic_is_called_one():
    picture = releases_chart([li.DPSGD(4, 0.5, 2.0)], 1e-5).to_dict()
    assert "The heuristic predicts, it does not guarantee." in picture["title"]["subtitle"]


def test_no_runs_are_refused():
    with pytest.raises(ValueError, match="runs must be 1 to 6, got 0"):
        releases_chart([], 1e-5)
