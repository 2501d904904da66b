"""Charts of epsilons: predictions, lower bounds and limits of one audit, and a comparison of several audits."""

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


# Bar rows: name and number stand beside the bar in a wide picture, and above the bar in a narrow one.

BAR = 30  # height of a row in pixels, with the name beside the bar
_STACKED = 46  # height of a row in pixels, with the name above the bar
_ROOM = 600  # least width in pixels for names beside bars
_DOWN = 11  # pixels of a bar below the middle of its row, with the name above


@dataclass(frozen=True)
class BarRow:
    """Layout of a row in a picture of this width, with pixels for names and for numbers."""

    width: int
    names: int
    numbers: int
    is_wide: bool

    @classmethod
    def of(cls, width: int, names: int, numbers: int) -> BarRow:
        """Return the layout for this width."""
        return cls(width, names, numbers, width >= _ROOM)

    @property
    def across(self) -> list[float]:
        """Horizontal pixel range of the bars."""
        return [self.names, self.width - self.numbers] if self.is_wide else [0, self.width - 4]

    @property
    def height(self) -> int:
        """Height of a row in pixels."""
        return BAR if self.is_wide else _STACKED

    @property
    def below(self) -> int:
        """Offset of marks below the middle of the row, in pixels."""
        return 0 if self.is_wide else _DOWN

    @property
    def bar(self) -> dict[str, Any]:
        """Mark properties of a bar."""
        return {"height": 0.6 * BAR, "yOffset": self.below} if self.is_wide else {"height": 14, "yOffset": self.below}

    def texts(self, rows: list[Row], y: Y, name: str, number: str) -> list[Chart]:
        """Return text layers of the columns ``name`` and ``number``."""
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
    """Return bars of epsilon with names and numbers. A bar beyond the axis ends in an arrow.

    Names and numbers are inside the panel, not at its axes, so that their length does not indent a panel above.
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
        words.append("Light mark: the largest epsilon this many models can show. Arrow: beyond the picture.")
    if any(METHODS[method].is_one_run for method in result.estimates):
        words.append(f"One run: {OWN_COIN}.")
    without = {ANALYSES[name].label: answer for name, answer in result.predictions.items() if answer.value is None}
    words += [f"Without {label}: {answer.reason.partition(':')[0]}." for label, answer in without.items()]
    title = panel_title("Epsilon, predicted and found", words, width // 7)
    height = row.height * max(len(rows), 1)
    return layered(*layers).properties(width=width, height=height, title=title, view=alt.ViewBackground(stroke=None))


def epsilon_rows(result: AuditResult) -> list[Row]:
    """Return the rows of the panel: predictions, then estimates. Non-finite numbers become texts for JSON."""
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
    """Spell an epsilon with three digits, or as infinite. A lower bound (``found``) is rounded down, others up."""
    return (spell_down if found else spell_up)(epsilon, 3) if math.isfinite(epsilon) else "infinite"


def _plain(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else "infinite"


def _number(value: Value) -> float | None:
    return math.inf if isinstance(value, str) else value


def _edge(rows: list[Row]) -> float:
    """Return the end of the axis, which shows all finite values but those that dwarf the rest, as a loose guarantee."""
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
    """Return a light mark at the epsilon of an audit without a single error, or an arrow if beyond the axis."""
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


# Comparison of audits: one panel per quantity, one bar per audit.

_WIDTH, _BAR, _NUMBER = 240, 34, 62  # pixels: panel width, row height, and width of the number
_ACROSS = 3  # panels side by side
_TITLE = 28  # characters per line of a panel's title
_BEYOND = 1e300  # stands for infinity, which JSON lacks
_MARKS = {
    "heuristic": colour_of(LAST_ITERATE.label),
    "guarantee": colour_of(ANALYSES["composition"].label),
    "ideal": "#777777",
}


def comparison_chart(audits: Sequence[ComparedAudit]) -> VConcatChart:
    """Return panels of signal, epsilon by each method, and cost. Each bar is an audit, in its verdict's colour."""
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
    """Return bars, numbers on their right, and marks of heuristic, guarantee and ideal signal.

    Only the first panel of a row is ``named``: it shows the names of the audits.
    """
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
    """Return the row of a bar. An infinite bar goes to the end of the panel."""
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
    """Return the end of all epsilon axes, which show all finite values but guarantees that dwarf the rest."""
    rows = [_found(audit, method) for audit in audits for method in methods_of(audits)]
    shown = [value for row in rows for name in ("value", "heuristic") if isinstance(value := row.get(name), float)]
    most = max([value for value in shown if value < _BEYOND], default=0.0)
    guarantees = [value for row in rows if isinstance(value := row.get("guarantee"), float)]
    return 1.06 * max([most, *(value for value in guarantees if value <= 4.0 * most)]) or 1.0
