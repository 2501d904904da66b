"""The picture of one run: epsilon as its steps go by, and the error rates of the best attack on its final model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lastiterate.answers import guarantee_of
from lastiterate.plot.axes import epsilon_y, log_x
from lastiterate.plot.style import chart_of, layered, long, looks, styled
from lastiterate.rows import Row, Track
from lastiterate.vocabulary import ANALYSES, SIDE_BY_SIDE
from lastiterate.wording import caveat_of, describe, spell_exact

if TYPE_CHECKING:
    from altair import Chart, HConcatChart, LayerChart

    from lastiterate.answers import Curves
    from lastiterate.privacy.curve import PrivacyCurve
    from lastiterate.run import DPSGD

# Points of each curve; composition takes long where steps are few, and the convex guarantee always.
_STEPS = {"last_iterate": 46, "full_batch": 46, "composition": 16, "no_amplification": 46, "convex": 7}
_RATES = {"last_iterate": 49, "full_batch": 49, "composition": 13, "no_amplification": 49, "convex": 9}
_WIDTH, _HEIGHT = 420, 320


def run_chart(run: DPSGD, delta: float, track: Track = iter, more: Curves | None = None) -> HConcatChart:
    """Two panels: epsilon against steps, and the trade-off between false positives and false negatives.

    ``more`` are analyses that need more than the run, such as the convex guarantee.
    """
    import altair as alt

    analyses = {name: ANALYSES[name].curve for name in (*SIDE_BY_SIDE, guarantee_of(run))} | dict(more or {})
    curves, reasons = _curves(run, analyses)
    valid = {name: analyses[name] for name in curves}
    panels = alt.hconcat(_epsilon_panel(run, delta, valid, track), _trade_off_panel(curves, track), spacing=36)
    words = [f"{describe(run)}; delta {spell_exact(delta)}", caveat_of(run)]
    words += [f"Without {ANALYSES[name].label}: {why}" for name, why in reasons.items()]
    return styled(panels, "What the released model leaks", words)


def _curves(run: DPSGD, analyses: Curves) -> tuple[dict[str, PrivacyCurve], dict[str, str]]:
    """The analyses that are valid for the run, and why the others are not."""

    curves, reasons = {}, {}
    for name, analysis in analyses.items():
        try:
            curves[name] = analysis(run)
        except ValueError as refusal:
            reasons[name] = str(refusal)
    return curves, reasons


def _epsilon_panel(run: DPSGD, delta: float, analyses: Curves, track: Track) -> Chart:
    names = list(analyses)
    rows = long(_epsilon_by_steps(run, delta, analyses, track), "epsilon", names)
    chart: Chart = (
        chart_of(rows)
        .properties(width=_WIDTH, height=_HEIGHT, title="Epsilon as training goes on")
        .mark_line(strokeWidth=2.5, interpolate="monotone", point=run.steps == 1)
        .encode(
            x=log_x("steps", "steps taken (log scale)", 1, run.steps),
            y=epsilon_y(delta),
            **looks(ANALYSES[name].label for name in names),
        )
    )
    return chart


def _epsilon_by_steps(run: DPSGD, delta: float, analyses: Curves, track: Track) -> list[Row]:
    wanted = {name: np.rint(np.geomspace(1, run.steps, _STEPS[name])).astype(np.int64).tolist() for name in analyses}
    rows: list[Row] = []
    for steps in track(sorted({steps for each in wanted.values() for steps in each})):
        row: Row = {"steps": steps}
        for name in (name for name in analyses if steps in wanted[name]):
            try:
                value = analyses[name](run.prefix(steps)).epsilon(delta)
            except ValueError:  # nothing has been learnt yet, or a person's examples are within an epoch
                continue
            if np.isfinite(value):
                row[name] = value
        rows.append(row)
    return rows


def _trade_off_panel(curves: dict[str, PrivacyCurve], track: Track) -> LayerChart:
    import altair as alt

    rows: list[Row] = []
    for name in track(list(curves)):
        fpr = np.linspace(0.0, 1.0, _RATES[name]) ** 3  # dense near 0, where the curves are steep
        pairs = zip(fpr.tolist(), curves[name].fnr(fpr).tolist(), strict=True)
        rows += [{"analysis": ANALYSES[name].label, "fpr": x, "fnr": y} for x, y in pairs]
    axis = alt.Axis(tickCount=6, format=".1f")
    x = alt.X("fpr:Q", title="false positive rate", scale=alt.Scale(domain=[0, 1]), axis=axis)
    y = alt.Y("fnr:Q", title="false negative rate", scale=alt.Scale(domain=[0, 1]), axis=axis)
    ends = [{"fpr": 0.0, "fnr": 1.0}, {"fpr": 1.0, "fnr": 0.0}]
    chance = chart_of(ends).mark_line(color="#999", strokeWidth=1).encode(x=x, y=y)
    slope = np.degrees(np.arctan2(_HEIGHT, _WIDTH))
    label = (
        chart_of([{"fpr": 0.72, "fnr": 0.28}])
        .mark_text(text="guessing", angle=float(slope), dy=-8, color="#777", fontSize=13)
        .encode(x=x, y=y)
    )
    best = (
        chart_of(rows)
        .mark_line(strokeWidth=2.5, interpolate="monotone")
        .encode(x=x, y=y, order="fpr:Q", **looks(ANALYSES[name].label for name in curves))
    )
    title = "Errors of the best attack on what is released"
    return layered(chance, label, best).properties(width=_WIDTH, height=_HEIGHT, title=title)
