"""The picture of a plan: what each batch size leaks under all analyses, and the noise it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastiterate.plot.axes import epsilon_y, from_zero
from lastiterate.plot.style import chart_of, long, looks, styled
from lastiterate.rows import Row, among, number, text
from lastiterate.vocabulary import ANALYSES, SIDE_BY_SIDE
from lastiterate.wording import CAVEAT

if TYPE_CHECKING:
    from altair import HConcatChart

_WIDTH, _HEIGHT = 420, 320
_NARROW = 320
_DRAWN = (*SIDE_BY_SIDE, "no_amplification", "convex")


def plan_chart(rows: list[Row], delta: float, words: str, caveat: str = CAVEAT) -> HConcatChart:
    """Panels over batch sizes: epsilon with the noise by which each analysis reaches the target, and that noise.

    ``words`` say what is planned, and ``caveat`` what a prediction is.
    """
    import altair as alt

    sizes = sorted({number(row, "batch_size") for row in rows})
    names = list(dict.fromkeys(text(row, "analysis") for row in rows))
    shown = [name for name in _DRAWN if name in names or any(row.get(name) is not None for row in rows)]
    width = _WIDTH if len(names) == 1 else _NARROW
    look = looks(ANALYSES[name].label for name in shown)
    x = alt.X(
        "batch_size:Q",
        title="batch size (log scale)",
        scale=alt.Scale(type="log", domain=[sizes[0] / 1.2, sizes[-1] * 1.2], nice=False),
        axis=alt.Axis(values=sizes, format=",d", labelOverlap="greedy", grid=False),
    )
    point = alt.OverlayMarkDef(size=60, filled=True)
    leaks = [
        chart_of(long(among(rows, "analysis", name), "epsilon", _DRAWN))
        .properties(title=f"Epsilon with the noise by {ANALYSES[name].label}", width=width, height=_HEIGHT)
        .mark_line(strokeWidth=2.5, point=point)
        .encode(x=x, y=epsilon_y(delta), **look)
        for name in names
    ]
    drawable = [row for row in rows if row["noise_multiplier"] is not None]
    needed = [{**row, "analysis": ANALYSES[text(row, "analysis")].label} for row in drawable]
    noise = (
        chart_of(needed)
        .properties(title="Noise needed", width=width, height=_HEIGHT)
        .mark_line(strokeWidth=2.5, point=point)
        .encode(x=x, y=alt.Y("noise_multiplier:Q", title="noise multiplier", **from_zero()), **look)
    )
    reasons = {name: row[f"{name}_reason"] for row in rows for name in _DRAWN if f"{name}_reason" in row}
    notes = [f"Without {ANALYSES[name].label}: {why}" for name, why in reasons.items() if name not in shown]
    return styled(alt.hconcat(*leaks, noise, spacing=36), "Which batch size?", [words, caveat, *notes])
