"""The picture of an audit's epsilons: what was predicted, what was found, and the most that could have been found."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lastiterate.auditing.evidence.audit_comparison import difference, methods_of, trust
from lastiterate.common.types import Row, Value
from lastiterate.compare_analyses import guarantee_of
from lastiterate.formatting import caveat_of, per_cent, spell, spell_down, spell_exact, spell_up
from lastiterate.plot.style import FOUND, chart_of, colour_of, layered, panel_title, styled, verdict_colour
from lastiterate.registry import ANALYSES, LAST_ITERATE, METHODS, OWN_COIN, THRESHOLDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from altair import Chart, LayerChart, VConcatChart, X, Y

    from lastiterate.auditing.evidence.audit_comparison import ComparedAudit
    from lastiterate.auditing.evidence.audit_result import AuditResult


# Rows of bars with a name and a number each: beside the bar where there is room, above it where there is not.

BAR = 30  # pixels of a row whose name is beside its bar
_STACKED = 46  # of one whose name is above it
_ROOM = 600  # pixels from which on there is room beside a bar
_DOWN = 11  # how far a bar is below the middle of its row, if its name is above


@dataclass(frozen=True)
class BarRow:
    """How a row is laid out in a picture of this width, with so many pixels for names and for numbers."""

    width: int
    names: int
    numbers: int
    is_wide: bool

    @classmethod
    def of(cls, width: int, names: int, numbers: int) -> BarRow:
        """The layout for this width."""
        return cls(width, names, numbers, width >= _ROOM)

    @property
    def across(self) -> list[float]:
        """Between which pixels bars are."""
        return [self.names, self.width - self.numbers] if self.is_wide else [0, self.width - 4]

    @property
    def height(self) -> int:
        """Of a row."""
        return BAR if self.is_wide else _STACKED

    @property
    def below(self) -> int:
        """How far marks are below the middle of the row."""
        return 0 if self.is_wide else _DOWN

    @property
    def bar(self) -> dict[str, Any]:
        """What makes a mark a bar of such a row."""
        return {"height": 0.6 * BAR, "yOffset": self.below} if self.is_wide else {"height": 14, "yOffset": self.below}

    def texts(self, rows: list[Row], y: Y, name: str, number: str) -> list[Chart]:
        """Names and numbers, from these columns."""
        import altair as alt

        left: dict[str, Any] = {"align": "right", "dx": -8} if self.is_wide else {"align": "left", "dy": -9}
        right: dict[str, Any] = {"align": "left", "dx": 8} if self.is_wide else {"align": "right", "dy": -9}
        places = (self.names, self.width - self.numbers) if self.is_wide else (0, self.width - 4)
        layers = []
        for column, at, style in ((name, places[0], left), (number, places[1], right)):
            text = chart_of(rows).mark_text(baseline="middle", fontSize=13, color="#222", **style)
            layers.append(text.encode(x=alt.value(at), y=y, text=f"{column}:N"))
        return layers


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


# The picture of several audits: one panel a quantity, in each one bar an audit.

_WIDTH, _BAR, _NUMBER = 240, 34, 62  # pixels: of a panel, of a row in it, and of the number beside a bar
_ACROSS = 3  # panels beside each other
_TITLE = 28  # characters of a panel's title in one line
_BEYOND = 1e300  # what stands for infinity, which JSON does not know
_MARKS = {
    "heuristic": colour_of(LAST_ITERATE.label),
    "guarantee": colour_of(ANALYSES["composition"].label),
    "ideal": "#777777",
}


def comparison_chart(audits: Sequence[ComparedAudit]) -> VConcatChart:
    """Signal, epsilon by each method, and cost, audits below each other; a bar has the colour of its verdict."""
    import altair as alt

    edge = _edge_comparison(audits)
    panels = [
        ("signal d'", [_signal(audit) for audit in audits], None),
        *((METHODS[method].label, [_found(audit, method) for audit in audits], edge) for method in methods_of(audits)),
        ("cost in seconds", [_cost(audit) for audit in audits], None),
    ]
    rows = [
        alt.hconcat(*(_panel(*panel, named=not i) for i, panel in enumerate(panels[at : at + _ACROSS])), spacing=24)
        for at in range(0, len(panels), _ACROSS)
    ]
    words = [
        *(f"{audit.label}: {audit.result.attack}" for audit in audits),
        *(f"* {difference(audit, audits[0])}" for audit in audits if audit.differs),
        f"Epsilons at delta {spell_exact(audits[0].result.delta)}. Marks, for each audit's own run: blue, what the "
        "heuristic predicts; orange, what is guaranteed; grey, the ideal signal of linear losses.",
        *trust(audits),
        caveat_of(*(audit.result.run for audit in audits)),
    ]
    return styled(alt.vconcat(*rows, spacing=24), "What several attacks found in the released model", words, width=125)


def _panel(title: str, rows: list[Row], edge: float | None, *, named: bool) -> LayerChart:
    """Bars, numbers at their right, and marks of what was expected; names only where no panel has them already."""
    import altair as alt

    highest = [value for row in rows for name in ("value", *_MARKS) if isinstance(value := row.get(name), float)]
    end = edge or 1.06 * max(highest, default=0.0) or 1.0
    lowest = min([0.0, *highest])
    scale = alt.Scale(domain=[lowest, end], range=[0, _WIDTH - _NUMBER], nice=False, clamp=True)
    names = alt.Axis(title=None, labelLimit=260, ticks=False, domain=False) if named else None
    y = alt.Y("audit:N", sort=None, axis=names, scale=alt.Scale(domain=[row["audit"] for row in rows]))
    axis = alt.Axis(tickCount=4, grid=True)
    bars = chart_of([row for row in rows if row["value"] is not None]).mark_bar(height=0.55 * _BAR, opacity=0.85)
    numbers = chart_of(rows).mark_text(align="left", baseline="middle", dx=6, fontSize=13, color="#222")
    layers = [
        bars.encode(
            x=alt.X("value:Q", scale=scale, title=None, axis=axis), y=y, color=alt.Color("colour:N", scale=None)
        ),
        numbers.encode(x=alt.value(_WIDTH - _NUMBER), y=y, text="text:N"),
    ]
    for name, colour in _MARKS.items():
        near = [row for row in rows if isinstance(value := row.get(name), float) and value <= end]
        tick = chart_of(near).mark_tick(color=colour, thickness=3, height=0.85 * _BAR, opacity=1.0)
        layers += [tick.encode(x=alt.X(f"{name}:Q", scale=scale), y=y)] if near else []
    heading = alt.TitleParams(textwrap.wrap(title, _TITLE, break_on_hyphens=False), anchor="start", offset=6)
    return layered(*layers).properties(width=_WIDTH, height=_BAR * len(rows), title=heading)


def _row_comparison(audit: ComparedAudit, value: float | None, text: str, **marks: float | None) -> Row:
    """A bar; one that is infinite goes to the end of the panel."""
    name = f"{audit.label}: {audit.result.verdict}"
    known = {mark: at for mark, at in marks.items() if at is not None and math.isfinite(at)}
    drawn = value if value is None or math.isfinite(value) else _BEYOND
    return {"audit": name, "value": drawn, "text": text, "colour": verdict_colour(audit.result.verdict), **known}


def _signal(audit: ComparedAudit) -> Row:
    signal = audit.result.signal
    if not math.isfinite(signal):
        return _row_comparison(audit, None, "no value")
    return _row_comparison(audit, signal, spell(signal, 3), ideal=audit.result.ideal_signal)


def _found(audit: ComparedAudit, method: str) -> Row:
    predictions = audit.result.predictions
    marks = {"heuristic": predictions.get("last_iterate"), "guarantee": predictions.get(guarantee_of(audit.result.run))}
    values = {name: None if answer is None else answer.value for name, answer in marks.items()}
    if method not in audit.result.estimates:
        return _row_comparison(audit, None, "-")
    epsilon = audit.result.estimates[method].epsilon
    return _row_comparison(audit, epsilon, spell_epsilon(epsilon, found=True), **values)


def _cost(audit: ComparedAudit) -> Row:
    return _row_comparison(audit, float(audit.result.seconds), f"{audit.result.seconds:,.0f}")


def _edge_comparison(audits: Sequence[ComparedAudit]) -> float:
    """Where all axes of epsilon end: at all that is finite, except guarantees that would dwarf the rest."""
    rows = [_found(audit, method) for audit in audits for method in methods_of(audits)]
    shown = [value for row in rows for name in ("value", "heuristic") if isinstance(value := row.get(name), float)]
    most = max([value for value in shown if value < _BEYOND], default=0.0)
    guarantees = [value for row in rows if isinstance(value := row.get("guarantee"), float)]
    return 1.06 * max([most, *(value for value in guarantees if value <= 4.0 * most)]) or 1.0
