"""The picture of an audit's power: how probable it is that a claim is refuted, over the number of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastiterate.auditing.evidence.outlook import CHANCE
from lastiterate.plot.axes import log_x
from lastiterate.plot.style import chart_of, layered, styled
from lastiterate.rows import Row
from lastiterate.vocabulary import METHODS, OWN_COIN
from lastiterate.wording import describe, spell

if TYPE_CHECKING:
    from altair import LayerChart

    from lastiterate.auditing.evidence.reach import Power

_WIDTH, _HEIGHT = 620, 340
_LINE, _GOAL, _ASKED = "#0072B2", "#777777", "#D55E00"


def power_chart(found: Power) -> LayerChart:
    """The probability to refute over the number of models: the 80% that are wanted, and the number asked about."""
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
    tooltip = ["models:Q", alt.Tooltip("chance:Q", format=".1%")]
    point = alt.OverlayMarkDef(size=25, filled=True, color=_LINE)
    line = chart_of(rows).mark_line(strokeWidth=2.5, color=_LINE, point=point).encode(x=x, y=y, tooltip=tooltip)
    goal = chart_of([{"chance": CHANCE}]).mark_rule(color=_GOAL, strokeDash=[6, 4]).encode(y=y)
    asked = chart_of([{"models": found.models, "chance": found.chance}])
    layers = [goal, line, asked.mark_point(size=140, filled=True, color=_ASKED, opacity=1).encode(x=x, y=y)]
    if found.needed is not None:
        right = found.needed > 0.5 * found.chances[-1][0]  # where a number to the right of it would not fit
        needed = chart_of([{"models": found.needed, "chance": 0.04, "words": f"{found.needed:,} for 80%"}])
        text = needed.mark_text(align="right" if right else "left", fontSize=14, dx=-6 if right else 6)
        layers.append(needed.mark_rule(color=_GOAL, strokeDash=[2, 3]).encode(x=x))
        layers.append(text.encode(x=x, y=y, text="words:N"))
    best = max(found.rows, key=lambda each: each.detectable)
    words = [
        describe(found.run),
        *found.sentences(),
        f"If training is as described, they find epsilon {spell(best.detectable)} with probability 80% "
        f"({METHODS[best.method].label}{f', if {OWN_COIN}' if found.one_run else ''}).",
        *found.notes[:1],
    ]
    return styled(
        layered(*layers).properties(width=_WIDTH, height=_HEIGHT), f"How many {what} does it take?", words, 100
    )
