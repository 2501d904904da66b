"""The picture of why the number found is below the guarantee: levels, and what lies between them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lastiterate.plot.style import FOUND, chart_of, colour_of, layered, panel_title
from lastiterate.rows import Row, number
from lastiterate.vocabulary import COMPOSITION, LAST_ITERATE
from lastiterate.wording import spell

if TYPE_CHECKING:
    from altair import LayerChart

    from lastiterate.auditing.evidence.result import AuditResult

_BAR, _NAMES, _NUMBERS = 30, 150, 90  # pixels: of a bar's height, and beside it
_COLOURS = {
    "guarantee": colour_of(COMPOSITION.label),
    "heuristic": colour_of(LAST_ITERATE.label),
    "perfect attack": "#E69F00",
    "found": colour_of(FOUND),
}


def waterfall_panel(result: AuditResult, width: int) -> LayerChart:
    """A bar to each level, and a pale one for what is lost since the level before."""
    import altair as alt

    rows = _rows(result)
    most = max([1e-9, *(number(row, name) for row in rows for name in ("before", "epsilon"))])
    scale = alt.Scale(domain=[0.0, 1.03 * most], range=[_NAMES, width - _NUMBERS], nice=False)
    title = f"epsilon at delta {spell(result.delta)}"
    y = alt.Y("name:N", axis=None, sort=None, scale=alt.Scale(domain=[row["name"] for row in rows]))
    x = alt.X("epsilon:Q", title=title, scale=scale, axis=alt.Axis(tickCount=8))
    bars = chart_of(rows).mark_bar(height=0.6 * _BAR, opacity=0.85)
    lost = chart_of(rows).mark_bar(height=0.6 * _BAR, opacity=0.25)
    text = chart_of(rows).mark_text(baseline="middle", fontSize=13, color="#222", align="right", dx=-8)
    value = chart_of(rows).mark_text(baseline="middle", fontSize=13, color="#222", align="left", dx=8)
    words = ["words:N", "epsilon:Q"]
    layers = (
        lost.encode(x=x, x2="before:Q", y=y, color=alt.Color("colour:N", scale=None), tooltip=words),
        bars.encode(x=x, y=y, color=alt.Color("colour:N", scale=None), tooltip=words),
        text.encode(x=alt.value(_NAMES), y=y, text="name:N"),
        value.encode(x=alt.value(width - _NUMBERS), y=y, text="value:N"),
    )
    sentences = [step.words for step in result.waterfall]
    heading = panel_title("Why is the number so low?", sentences, width // 7)
    bare = alt.ViewBackground(stroke=None)
    return layered(*layers).properties(title=heading, width=width, height=_BAR * len(rows), view=bare)


def _rows(result: AuditResult) -> list[Row]:
    """One a level that is finite."""
    steps = [step for step in result.waterfall if math.isfinite(step.epsilon)]
    befores = [steps[0].epsilon, *(step.epsilon for step in steps[:-1])] if steps else []
    return [
        {
            "name": step.name,
            "epsilon": step.epsilon,
            "before": before,
            "value": spell(step.epsilon, 3),
            "colour": _COLOURS[step.name],
            "words": step.words,
        }
        for step, before in zip(steps, befores, strict=True)
    ]
