"""The picture of a plan: what each batch size leaks under the three analyses, and the noise it needs."""

from __future__ import annotations

from typing import Any

from lastiterate.plot.style import Row, chart_of, epsilon_y, from_zero, long, looks, styled
from lastiterate.plot.words import ANALYSES, CAVEAT, LABELS

_WIDTH, _HEIGHT = 420, 320


def plan_chart(rows: list[Row], delta: float, words: str) -> Any:
    """Two panels over batch sizes: epsilon by each analysis, and the noise. ``words`` say what is planned."""
    import altair as alt

    sizes = sorted(row["batch_size"] for row in rows)
    shown = [name for name in ANALYSES if any(row[name] is not None for row in rows)]
    x = alt.X(
        "batch_size:Q",
        title="batch size (log scale)",
        scale=alt.Scale(type="log", domain=[sizes[0] / 1.2, sizes[-1] * 1.2], nice=False),
        axis=alt.Axis(values=sizes, format=",d", labelOverlap="greedy", grid=False),
    )
    leak = (
        chart_of(long(rows, "epsilon", ANALYSES), width=_WIDTH, height=_HEIGHT, title="Epsilon")
        .mark_line(strokeWidth=2.5, point=alt.OverlayMarkDef(size=60, filled=True))
        .encode(x=x, y=epsilon_y(delta), **looks(LABELS[name] for name in shown))
    )
    noise = (
        chart_of(rows, width=_WIDTH, height=_HEIGHT, title="Noise needed")
        .mark_line(strokeWidth=2.5, color="#444", point=alt.OverlayMarkDef(size=60, filled=True, color="#444"))
        .encode(x=x, y=alt.Y("noise_multiplier:Q", title="noise multiplier", **from_zero()))
    )
    reasons = {name: row[f"{name}_reason"] for row in rows for name in ANALYSES if f"{name}_reason" in row}
    notes = [f"Without {LABELS[name]}: {why}" for name, why in reasons.items()]
    panels = alt.hconcat(leak, noise, spacing=36)
    return styled(panels, "Which batch size?", [words, CAVEAT, *notes])
