"""The picture of why the number found is below the guarantee: levels, and what lies between them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lastiterate.plot.bar_rows import BarRow
from lastiterate.plot.style import FOUND, chart_of, colour_of, layered, panel_title
from lastiterate.rows import Row, number
from lastiterate.vocabulary import COMPOSITION, LAST_ITERATE
from lastiterate.wording import spell_exact

if TYPE_CHECKING:
    from altair import LayerChart

    from lastiterate.auditing.evidence.result import AuditResult

_NAMES, _NUMBERS = 150, 90  # pixels beside a bar
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
    most = max([1e-9, *(number(each, name) for each in rows for name in ("before", "epsilon"))])
    row = BarRow.of(width, _NAMES, _NUMBERS)
    scale = alt.Scale(domain=[0.0, 1.03 * most], range=row.across, nice=False)
    title = f"epsilon at delta {spell_exact(result.delta)}"
    y = alt.Y("name:N", axis=None, sort=None, scale=alt.Scale(domain=[each["name"] for each in rows]))
    x = alt.X("epsilon:Q", title=title, scale=scale, axis=alt.Axis(tickCount=8 if row.is_wide else 5))
    bars = chart_of(rows).mark_bar(**row.bar, opacity=0.85)
    lost = chart_of(rows).mark_bar(**row.bar, opacity=0.25)
    words = ["words:N", "epsilon:Q"]
    layers = (
        lost.encode(x=x, x2="before:Q", y=y, color=alt.Color("colour:N", scale=None), tooltip=words),
        bars.encode(x=x, y=y, color=alt.Color("colour:N", scale=None), tooltip=words),
        *row.texts(rows, y, "name", "value"),
    )
    sentences = [step.words for step in result.waterfall]
    heading = panel_title("Why is the number so low?", sentences, width // 7)
    bare = alt.ViewBackground(stroke=None)
    return layered(*layers).properties(title=heading, width=width, height=row.height * len(rows), view=bare)


def _rows(result: AuditResult) -> list[Row]:
    """One a level that is finite."""
    steps = [step for step in result.waterfall if math.isfinite(step.epsilon)]
    befores = [steps[0].epsilon, *(step.epsilon for step in steps[:-1])] if steps else []
    return [
        {
            "name": step.name,
            "epsilon": step.epsilon,
            "before": before,
            "value": step.rounded,
            "colour": _COLOURS[step.name],
            "words": step.words,
        }
        for step, before in zip(steps, befores, strict=True)
    ]
