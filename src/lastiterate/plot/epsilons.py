"""The picture of an audit's epsilons: what was predicted, what was found, and the most that could have been found."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lastiterate.plot.bar_rows import BAR, BarRow
from lastiterate.plot.style import FOUND, chart_of, colour_of, layered, panel_title
from lastiterate.rows import Row, Value
from lastiterate.vocabulary import ANALYSES, LAST_ITERATE, METHODS, OWN_COIN, THRESHOLDS
from lastiterate.wording import per_cent, spell_down, spell_exact, spell_up

if TYPE_CHECKING:
    from altair import Chart, LayerChart, X, Y

    from lastiterate.auditing.evidence.result import AuditResult

_NAMES, _NUMBERS = 232, 170  # pixels beside a bar
_CLAIMS = {"heuristic": "predicted (heuristic)", "guarantee": "guaranteed", "baseline": "for comparison"}


def epsilon_panel(result: AuditResult, width: int) -> LayerChart:
    """Bars of epsilon between their names and their numbers; a value beyond the picture ends in an arrow.

    Names and numbers are inside the panel, not at its axes: a panel above it is then not indented by their length.
    """
    import altair as alt

    rows = epsilon_rows(result)
    edge = _edge(rows)
    row = BarRow.of(width, _NAMES, _NUMBERS)
    scale = alt.Scale(domain=[0.0, edge], range=row.across, nice=False)
    ticks = alt.Axis(tickCount=8 if row.is_wide else 5)
    x = alt.X("end:Q", title=f"epsilon at delta {spell_exact(result.delta)}", scale=scale, axis=ticks)
    y = alt.Y("name:N", axis=None, sort=None, scale=alt.Scale(domain=[each["name"] for each in rows]))
    layers = [
        *_bars(rows, edge, x, y, row),
        *_largest(rows, edge, x, y, row),
        *_rule_of_heuristic(result, edge, x),
        *row.texts(rows, y, "name", "text"),
    ]
    words = []
    if result.estimates:
        words.append("Light mark: the most that so many models could have shown. Arrow: beyond the picture.")
    if any(METHODS[method].is_one_run for method in result.estimates):
        words.append(f"One run: {OWN_COIN}.")
    without = {ANALYSES[name].label: answer for name, answer in result.predictions.items() if answer.value is None}
    words += [f"Without {label}: {answer.reason.partition(':')[0]}." for label, answer in without.items()]
    title = panel_title("Epsilon, predicted and found", words, width // 7)
    height = row.height * max(len(rows), 1)
    return layered(*layers).properties(width=width, height=height, title=title, view=alt.ViewBackground(stroke=None))


def epsilon_rows(result: AuditResult) -> list[Row]:
    """What is shown: predictions first, then estimates. Numbers that JSON does not know are texts."""
    rows = [
        _row(analysis.label_of(result.run), answer.value, None, _CLAIMS[analysis.kind], colour_of(analysis.label))
        for analysis, answer in ((ANALYSES[name], answer) for name, answer in result.predictions.items())
    ]
    for method, each in result.estimates.items():
        valid = THRESHOLDS[each.threshold_choice].is_valid
        claim = f"found, {per_cent(each.confidence)}" if valid else "uncorrected: no bound"
        rows.append(_row(METHODS[method].label, each.epsilon, each.largest, claim, colour_of(FOUND), valid))
    return rows


def _row(name: str, epsilon: float | None, largest: float | None, claim: str, colour: str, valid: bool = True) -> Row:
    found = colour == colour_of(FOUND)
    text = f"{spell_epsilon(epsilon, found=found)} {claim}" if epsilon is not None else "no value"
    return {
        "name": name,
        "epsilon": _plain(epsilon),
        "largest": _plain(largest),
        "text": text,
        "colour": colour,
        "valid": valid,
    }


def spell_epsilon(epsilon: float, *, found: bool = False) -> str:
    """An epsilon as people read it: three digits, or that it is infinite. What was found is rounded down."""
    return (spell_down if found else spell_up)(epsilon, 3) if math.isfinite(epsilon) else "infinite"


def _plain(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else "infinite"


def _number(value: Value) -> float | None:
    return math.inf if isinstance(value, str) else value


def _edge(rows: list[Row]) -> float:
    """Where the axis ends: all that is finite, except what would dwarf the rest, as a loose guarantee does."""
    values = sorted(value for row in rows if isinstance(value := row["epsilon"], float) and value > 0.0)
    if not values:
        return 1.0
    edge = values[-1] if len(values) == 1 else min(values[-1], 4.0 * values[-2])
    largest = [value for row in rows if isinstance(value := row["largest"], float)]
    return 1.06 * max([edge, *(value for value in largest if value <= 1.5 * edge)])


def _bars(rows: list[Row], edge: float, x: X, y: Y, row: BarRow) -> list[Chart]:
    import altair as alt

    ends = [(each, _number(each["epsilon"])) for each in rows]
    drawn = [{**each, "end": min(value, edge)} for each, value in ends if value is not None]
    beyond = [{**each, "end": edge} for each, value in ends if value is not None and value > edge]
    # An uncorrected maximum over thresholds is no bound: its bar is hollow.
    opacity = alt.FillOpacity("valid:N", scale=alt.Scale(domain=[True, False], range=[0.85, 0.0]), legend=None)
    bars = (
        chart_of(drawn)
        .mark_bar(**row.bar, strokeWidth=1.5)
        .encode(
            x=x,
            y=y,
            fill=alt.Fill("colour:N", scale=None),
            stroke=alt.Stroke("colour:N", scale=None),
            fillOpacity=opacity,
            tooltip=["name:N", "epsilon:N", "largest:N"],
        )
    )
    return [bars, *_arrows(beyond, "#fff", x, y, row)]


def _arrows(rows: list[Row], colour: str, x: X, y: Y, row: BarRow) -> list[Chart]:
    if not rows:
        return []
    arrow = chart_of(rows).mark_point(
        shape="triangle-right", size=110, filled=True, opacity=1.0, color=colour, xOffset=-9, yOffset=row.below
    )
    return [arrow.encode(x=x, y=y)]


def _largest(rows: list[Row], edge: float, x: X, y: Y, row: BarRow) -> list[Chart]:
    """A light mark where an audit without a single error would have ended, an arrow where that is out of sight."""
    ends = [(each, _number(each["largest"])) for each in rows]
    near = [{**each, "end": value} for each, value in ends if value is not None and value <= edge]
    far = [{**each, "end": edge} for each, value in ends if value is not None and value > edge]
    tick = chart_of(near).mark_tick(color="#999", thickness=3, height=0.8 * BAR, yOffset=row.below)
    ticks = [tick.encode(x=x, y=y, tooltip=["name:N", "largest:N"])] if near else []
    return [*ticks, *_arrows(far, "#999", x, y, row)]


def _rule_of_heuristic(result: AuditResult, edge: float, x: X) -> list[Chart]:
    answer = result.predictions.get("last_iterate")
    if answer is None or answer.value is None or answer.value > edge:
        return []
    rule = chart_of([{"end": answer.value}])
    return [rule.mark_rule(color=colour_of(LAST_ITERATE.label), strokeWidth=1.5, strokeDash=[4, 3]).encode(x=x)]
