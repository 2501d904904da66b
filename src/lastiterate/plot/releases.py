"""The picture of checkpoints: epsilon over the number of iterates that are released, from the last one to all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lastiterate.plot.axes import epsilon_y, log_x
from lastiterate.plot.style import chart_of, styled
from lastiterate.rows import Row, Track
from lastiterate.vocabulary import LAST_ITERATE
from lastiterate.wording import caveat_of, describe

if TYPE_CHECKING:
    from altair import Chart

    from lastiterate.run import DPSGD

_COUNTS = 33  # of released iterates, for each run
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#222222")
_DASHES = ([1, 0], [7, 5], [2, 3], [10, 3, 2, 3], [4, 4], [1, 0])


def releases_chart(runs: list[DPSGD], delta: float, track: Track = iter) -> Chart:
    """A line for each of up to six runs."""
    import altair as alt

    if not 0 < len(runs) <= len(_COLOURS):
        raise ValueError(f"runs must be 1 to {len(_COLOURS)}, got {len(runs)}")
    labels = [describe(run.replace(releases=None)) for run in runs]
    rows = [row for label, run in zip(labels, runs, strict=True) for row in _rows(label, run, delta, track)]
    legend = alt.Legend(
        title=None, orient="bottom", labelLimit=0, symbolType="stroke", symbolSize=500, symbolStrokeWidth=2.5, columns=1
    )
    colours = alt.Scale(domain=labels, range=list(_COLOURS[: len(runs)]))
    dashes = alt.Scale(domain=labels, range=list(_DASHES[: len(runs)]))
    chart: Chart = (
        chart_of(rows)
        .properties(width=620, height=340)
        .mark_line(strokeWidth=2.5)
        .encode(
            x=log_x("releases", "released iterates, equally spaced (log scale)", 1, max(run.steps for run in runs)),
            y=epsilon_y(delta),
            color=alt.Color("run:N", scale=colours, legend=legend),
            strokeDash=alt.StrokeDash("run:N", scale=dashes, legend=legend),
        )
    )
    left = "On the left the last iterate only, at the right end of each line every one: what composition guarantees."
    return styled(chart, "What do checkpoints cost?", [left, caveat_of(*runs)])


def _rows(label: str, run: DPSGD, delta: float, track: Track) -> list[Row]:
    counts = np.unique(np.rint(np.geomspace(1, run.steps, _COUNTS)).astype(np.int64)).tolist()
    return [
        {"run": label, "releases": count, "epsilon": LAST_ITERATE.curve(run.replace(releases=count)).epsilon(delta)}
        for count in track(counts)
    ]
