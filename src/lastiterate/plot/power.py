"""The picture of an audit's power: how probable it is that a claim is refuted, over the number of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastiterate.plot.axes import log_x
from lastiterate.plot.style import chart_of, layered, styled
from lastiterate.rows import Row
from lastiterate.wording import describe, spell

if TYPE_CHECKING:
    from altair import LayerChart

    from lastiterate.auditing.evidence.planning import Power

_WIDTH, _HEIGHT = 620, 340
_LINE, _GOAL = "#0072B2", "#777777"
_WANTED = 0.8


def power_chart(found: Power) -> LayerChart:
    """The probability to refute over the number of models, with the 80% that are wanted and what that takes."""
    import altair as alt

    what = "canaries" if found.one_run else "models a world"
    rows: list[Row] = [{"models": models, "chance": chance} for models, chance in found.chances]
    x = log_x("models", f"{what} (log scale)", found.chances[0][0], found.chances[-1][0])
    y = alt.Y(
        "chance:Q",
        title="probability that the claim is refuted",
        scale=alt.Scale(domain=[0.0, 1.0]),
        axis=alt.Axis(format="%", tickCount=6),
    )
    point = alt.OverlayMarkDef(size=45, filled=True)
    tooltip = ["models:Q", alt.Tooltip("chance:Q", format=".1%")]
    line = chart_of(rows).mark_line(strokeWidth=2.5, color=_LINE, point=point).encode(x=x, y=y, tooltip=tooltip)
    goal = chart_of([{"chance": _WANTED}]).mark_rule(color=_GOAL, strokeDash=[6, 4]).encode(y=y)
    layers = [goal, line]
    if found.needed is not None:
        needed = chart_of([{"models": found.needed, "chance": 0.04, "words": f" {found.needed:,}"}])
        layers.append(needed.mark_rule(color=_GOAL, strokeDash=[2, 3]).encode(x=x))
        layers.append(needed.mark_text(align="left", fontSize=14, dx=3).encode(x=x, y=y, text="words:N"))
    best = max(found.rows, key=lambda each: each.detectable)
    words = [
        describe(found.run),
        f"Claim: {found.claim}. The training: {found.leak}.",
        f"A training as described: {found.models:,} {what} find epsilon {spell(best.detectable)} with probability 80% "
        f"({best.method}).",
        *found.notes,
    ]
    return styled(layered(*layers).properties(width=_WIDTH, height=_HEIGHT), "How many models does it take?", words)
