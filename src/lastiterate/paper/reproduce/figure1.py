"""Figure 1: the heuristic and two baselines over the number of steps, in three settings.

The paper states delta = 1e-6 and which quantities each panel keeps constant, but not their values. The values are ours.
"""

from __future__ import annotations

import math

import numpy as np

import lastiterate as li
from lastiterate.common.types import Row, Track, among, number_in
from lastiterate.formatting import CAVEAT, spell
from lastiterate.labels import ANALYSES, SIDE_BY_SIDE
from lastiterate.paper.reproduce import Scale
from lastiterate.paper.reproduce.audited_figures import HEURISTIC_NOTE, Audits
from lastiterate.plot.style import alt, chart_of, epsilon_y, log_x, long, looks, styled

DELTA = 1e-6  # from the figure's caption
EPOCHS, TOTAL_VARIANCE = 10.0, 100.0  # panel a: T q and T sigma^2
STANDARD, RATE = 8.0, 0.01  # panel b: the standard epsilon, at this sample rate
FIXED_RATE, FIXED_NOISE = 0.01, 0.5  # panel c: small noise, so that one step leaks more than ten steps

TITLE = f"Figure 1: epsilon at delta {spell(DELTA)} against the number of steps T"
TAKES = ()
_PANELS = {
    "a": ("(a) T q and T sigma^2 constant", f"T q = {spell(EPOCHS)}, T sigma^2 = {spell(TOTAL_VARIANCE)}"),
    "b": ("(b) standard epsilon constant", f"composition's epsilon = {spell(STANDARD)}, q = {spell(RATE)}"),
    "c": ("(c) q and sigma constant", f"q = {spell(FIXED_RATE)}, sigma = {spell(FIXED_NOISE)}"),
}
_STEPS = {"a": (10, 1000), "b": (300, 100_000), "c": (1, 10_000)}
_POINTS = {"quick": 13, "full": 49}


def rows(scale: Scale, track: Track = iter, audits: Audits | None = None) -> list[Row]:
    """Return a row for each point of the three panels. No models are trained."""
    points: list[tuple[str, int]] = []
    for panel, (low, high) in _STEPS.items():
        counts = np.unique(np.rint(np.geomspace(low, high, _POINTS[scale])).astype(np.int64))
        points += [(panel, count) for count in counts.tolist()]
    result: list[Row] = []
    for panel, steps in track(points):
        run = _run(panel, steps)
        row: Row = {"panel": panel, "steps": steps, "sample_rate": float(run.sample_rate)}
        row["noise_multiplier"] = float(run.noise_multiplier)
        row |= {name: ANALYSES[name].curve(run).epsilon(DELTA) for name in SIDE_BY_SIDE}
        if panel == "c":
            row["max_over_steps"] = li.max_over_steps(run).epsilon(DELTA)
        result.append(row)
    return result


def _run(panel: str, steps: int) -> li.DPSGD:
    if panel == "a":
        return li.DPSGD(steps, EPOCHS / steps, math.sqrt(TOTAL_VARIANCE / steps))
    if panel == "b":
        run = li.DPSGD(steps, RATE, 1.0)
        return li.calibrate(run, epsilon=STANDARD, delta=DELTA, analysis=li.composition)
    return li.DPSGD(steps, FIXED_RATE, FIXED_NOISE)


def notes(rows: list[Row]) -> list[str]:
    """Return the notes of the table."""
    return [HEURISTIC_NOTE]


def chart(rows: list[Row]) -> alt.HConcatChart:
    """Return the three panels side by side, with logarithmic axes."""
    panels = alt.hconcat(*(_panel(among(rows, "panel", name), name) for name in _PANELS), spacing=30)
    return styled(panels, "The last-iterate heuristic and its baselines (Figure 1)", [CAVEAT])


def _panel(rows: list[Row], name: str) -> alt.Chart:
    names = [*SIDE_BY_SIDE, "max_over_steps"]
    title, parameters = _PANELS[name]
    steps = [number_in(row, "steps") for row in rows]
    values = [number_in(row, key) for row in rows for key in names if row.get(key) is not None]
    bounds = min(values) / 1.15, max(values) * 1.15
    chart: alt.Chart = (
        chart_of(long(rows, "epsilon", names))
        .mark_line(strokeWidth=2.5, interpolate="monotone")
        .encode(
            x=log_x("steps", "steps T (log scale)", min(steps), max(steps)),
            y=epsilon_y(DELTA, log=bounds),
            **looks(ANALYSES[key].label for key in names),
        )
        .properties(title=alt.TitleParams(title, subtitle=parameters), width=330, height=300)
    )
    return chart
