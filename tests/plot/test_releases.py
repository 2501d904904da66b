"""The picture of checkpoints: a line for each run, from the last iterate to all of them."""

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
