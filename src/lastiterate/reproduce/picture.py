"""Pictures of audits: analyses as lines, what attacks found as points, side by side in panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lastiterate.plot.axes import epsilon_y, log_x
from lastiterate.plot.style import FOUND, chart_of, colour_of, found_shape, layered, long, looks, styled
from lastiterate.reproduce.audits import METHOD
from lastiterate.rows import Row, number, text
from lastiterate.vocabulary import ANALYSES, METHODS
from lastiterate.wording import CAVEAT, per_cent, spell, spell_up

if TYPE_CHECKING:
    from altair import Chart, HConcatChart, LayerChart, X, Y

_LINES = ("last_iterate", "composition")
_SHAPES = ("circle", "triangle-up", "square", "diamond")
_ASIDE = 1.03
_ABOVE = 1.08  # the highest point: where a picture ends
_TALLEST = 2.5  # a picture is at most so many times as high as the heuristic and what was found


@dataclass(frozen=True)
class Panel:
    """One of the panels: its title, what is constant in it, and its rows."""

    title: str
    parameters: str
    rows: list[Row]


def by_steps(title: str, panels: Sequence[Panel], delta: float, attacks: dict[str, str] | None = None) -> HConcatChart:
    """Epsilon over the number of steps; ``attacks`` names those that rows tell apart by ``attack``."""
    import altair as alt

    drawn = [_panel(panel, delta, attacks) for panel in panels]
    both: HConcatChart = alt.hconcat(*drawn, spacing=40).resolve_scale(
        color="shared", strokeDash="shared", shape="shared"
    )
    return styled(both, title, _words([row for panel in panels for row in panel.rows]), width=125)


def by_batch_size(title: str, rows: list[Row], delta: float, quality: str = "accuracy") -> HConcatChart:
    """Epsilon over batch sizes, and beside it the accuracy or perplexity of the models."""
    import altair as alt

    batches = sorted(number(row, "batch_size") for row in rows)
    scale = alt.Scale(type="log", domain=[batches[0] / 1.2, batches[-1] * 1.2], nice=False)
    x = alt.X("batch_size:Q", title="batch size (log scale)", scale=scale, axis=alt.Axis(values=batches, format=",~r"))
    top = _top(rows, ("last_iterate", "composition", "empirical"))
    y = epsilon_y(delta, between=(0.0, _ABOVE * top))
    epsilons = layered(_lines(rows, x, y, points=True), _points(rows, x, y, None))
    if quality == "accuracy":
        words, top, axis = "test accuracy", 1.0, alt.Axis(format="%", tickCount=6)
    else:
        words, top, axis = "perplexity on held-out text", _ABOVE * _top(rows, (quality,)), alt.Axis(tickCount=6)
    good = alt.Y(f"{quality}:Q", title=words, scale=alt.Scale(domain=[0, top]), axis=axis)
    points = chart_of(rows).mark_point(filled=True, size=90, color="#222", opacity=1.0).encode(x=x, y=good)
    measured = [number(row, quality) for row in rows]
    spelled = [f"{100 * value:.1f}%" if quality == "accuracy" else spell(value) for value in measured]
    numbers = chart_of([{**row, "text": text} for row, text in zip(rows, spelled, strict=True)])
    texts = numbers.mark_text(dy=18, fontSize=13).encode(x=x, y=good, text="text:N")
    size = {"width": 380, "height": 300}
    both = alt.hconcat(
        epsilons.properties(title="Privacy", **size),
        layered(points, texts).properties(title=quality.capitalize(), **size),
        spacing=40,
    )
    return styled(both, title, _words(rows), width=115)


def _panel(panel: Panel, delta: float, attacks: dict[str, str] | None) -> LayerChart:
    import altair as alt

    steps = [number(row, "steps") for row in panel.rows]
    near, far = _top(panel.rows, ("last_iterate", "empirical")), _top(panel.rows, ("composition",))
    words = panel.parameters
    if far > _TALLEST * near:
        beyond = [number(row, "composition") for row in panel.rows]
        words += f"; composition, {spell_up(min(beyond), 3)} to {spell_up(max(beyond), 3)}, is above the picture"
    x = log_x("steps", "steps T (log scale)", min(steps) / 1.15, max(steps) * 1.15)
    top = near if far > _TALLEST * near else max(near, far)
    y = epsilon_y(delta, between=(0.0, _ABOVE * top))
    layers = layered(_lines(panel.rows, x, y), _points(panel.rows, x, y, attacks))
    return layers.properties(width=400, height=300, title=alt.TitleParams(panel.title, subtitle=words))


def _lines(rows: list[Row], x: X, y: Y, points: bool = False) -> Chart:
    """The analyses; what exceeds the picture is cut off."""
    field = x.shorthand.partition(":")[0]
    distinct = list({row[field]: row for row in rows}.values())
    marks = chart_of(long(distinct, "epsilon", _LINES)).mark_line(
        strokeWidth=2.5, interpolate="monotone", clip=True, point={"size": 60} if points else False
    )
    chart: Chart = marks.encode(x=x, y=y, **looks([ANALYSES[name].label for name in _LINES]))
    return chart


def _points(rows: list[Row], x: X, y: Y, attacks: dict[str, str] | None) -> Chart:
    """What was found: lower bounds. Those of different attacks stand a little aside of each other."""
    import altair as alt

    field = x.shorthand.partition(":")[0]
    names = list(attacks.values()) if attacks else [FOUND]
    found = []
    for row in rows:
        if row["empirical"] is not None:
            name = attacks[text(row, "attack")] if attacks else FOUND
            aside = _ASIDE ** (2 * names.index(name) - len(names) + 1)
            found.append({**row, "epsilon": row["empirical"], "found": name, field: number(row, field) * aside})
    shape = found_shape(dict(zip(names, _SHAPES, strict=False)))
    marks = chart_of(found).mark_point(filled=True, size=90, opacity=0.85, color=colour_of(FOUND))
    tips = [alt.Tooltip(f"{name}:Q") for name in ("epsilon", "last_iterate", "composition", "signal_fraction")]
    shown = [tip for tip in tips if str(tip.shorthand)[:-2] in found[0]]
    chart: Chart = marks.encode(x=x, y=y, shape=shape, tooltip=shown)
    return chart


def _top(rows: list[Row], names: Sequence[str]) -> float:
    return max(number(row, name) for row in rows for name in names if row[name] is not None)


def _words(rows: list[Row]) -> list[str]:
    models, confidence = rows[0]["models"], number(rows[0], "confidence")
    return [
        f"Points: at least this was found, at {per_cent(confidence)} confidence, with {models:,} + {models:,} models "
        f"({METHODS[METHOD].label}, threshold chosen before training). {CAVEAT}"
    ]
