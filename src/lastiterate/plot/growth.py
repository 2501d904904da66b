"""The picture of a bound that one may watch: what it says after each number of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastiterate.plot.axes import log_x
from lastiterate.plot.style import FOUND, chart_of, colour_of, layered, panel_title
from lastiterate.rows import Row
from lastiterate.vocabulary import ANALYSES
from lastiterate.wording import spell_exact, spell_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from altair import LayerChart

    from lastiterate.auditing.evidence.result import AuditResult

_DWARFING = 4.0  # times all else, from which on a prediction is only told, not drawn


def growth_panel(result: AuditResult, points: Sequence[tuple[int, float]], width: int, height: int) -> LayerChart:
    """Epsilon by number of models, as steps, with what is predicted and guaranteed as lines across."""
    import altair as alt

    rows: list[Row] = [{"models": models, "epsilon": epsilon} for models, epsilon in points]
    title = f"epsilon is at least, at delta {spell_exact(result.delta)}"
    x = log_x("models", "models a world (log scale)", max(1, points[0][0]), max(result.models, points[-1][0]))
    y = alt.Y("epsilon:Q", title=title, scale=alt.Scale(zero=True, nice=True), axis=alt.Axis(tickCount=5))
    dots = alt.OverlayMarkDef(color=colour_of(FOUND), size=24, filled=True)
    found = chart_of(rows).mark_line(strokeWidth=2.6, color=colour_of(FOUND), interpolate="step-after", point=dots)
    layers = [found.encode(x=x, y=y, tooltip=["models:Q", "epsilon:Q"])]
    words = ["This bound holds after every number of models at once: one may look at any time."]
    most = max([0.1, *(epsilon for _, epsilon in points)])
    for name, answer in result.predictions.items():
        label = ANALYSES[name].label
        if answer.value is None or ANALYSES[name].kind == "baseline":
            continue
        if answer.value > _DWARFING * most and ANALYSES[name].is_guarantee:
            words.append(f"Beyond the picture: {label}, {spell_up(answer.value, 3)}.")
            continue
        at = chart_of([{"epsilon": answer.value, "label": label}])
        rule = at.mark_rule(color=colour_of(label), strokeWidth=1.6, strokeDash=[5, 3])
        text = at.mark_text(align="left", baseline="bottom", dx=4, dy=-2, fontSize=12, color=colour_of(label))
        layers += [rule.encode(y=y), text.encode(x=alt.value(0), y=y, text="label:N")]
    heading = panel_title("The bound as models come in", words, width // 6)
    return layered(*layers).properties(width=width, height=height, title=heading)
