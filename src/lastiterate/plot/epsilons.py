"""Charts of epsilons: predictions, lower bounds and limits of one audit, and a comparison of several audits."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from lastiterate.auditing.evidence.audit_comparison import ComparedAudit, difference, methods_of, trust
from lastiterate.auditing.evidence.audit_result import AuditResult
from lastiterate.common.types import Fields, Row, Value
from lastiterate.formatting import caveat_of, per_cent, spell, spell_down, spell_exact, spell_up
from lastiterate.labels import ANALYSES, LAST_ITERATE, METHODS, OWN_COIN, THRESHOLDS
from lastiterate.plot.style import (
    FOUND,
    PREDICTION,
    alt,
    chart_of,
    colour_of,
    layered,
    panel_title,
    styled,
    verdict_colour,
)

# Bar rows: name and number are beside the bar in a wide picture, and above the bar in a narrow picture.

BAR = 30  # height of a row in pixels, with the name beside the bar
_STACKED = 46  # height of a row in pixels, with the name above the bar
_ROOM = 600  # least width in pixels for names beside bars
_DOWN = 11  # distance in pixels from the middle of a row to its bar, with the name above the bar


@dataclass(frozen=True)
class BarRow:
    """Layout of a row: the width of the picture, of the names and of the numbers, in pixels."""

    width: int
    names: int
    numbers: int

    @property
    def is_wide(self) -> bool:
        """True if names and numbers are beside the bars."""
        return self.width >= _ROOM

    @property
    def across(self) -> list[float]:
        """Horizontal pixel range of the bars."""
        return [self.names, self.width - self.numbers] if self.is_wide else [0, self.width - 4]

    @property
    def height(self) -> int:
        return BAR if self.is_wide else _STACKED

    @property
    def below(self) -> int:
        """Distance in pixels from the middle of the row down to its marks."""
        return 0 if self.is_wide else _DOWN

    @property
    def bar(self) -> Fields:
        return {"height": 0.6 * BAR if self.is_wide else 14, "yOffset": self.below}

    def epsilon_x(self, field: str, delta: float, end: float) -> alt.X:
        scale = alt.Scale(domain=[0.0, end], range=self.across, nice=False)
        ticks = alt.Axis(tickCount=8 if self.is_wide else 5)
        return alt.X(f"{field}:Q", title=f"epsilon at delta {spell_exact(delta)}", scale=scale, axis=ticks)

    def name_y(self, rows: list[Row]) -> alt.Y:
        return alt.Y("name:N", axis=None, sort=None, scale=alt.Scale(domain=[each["name"] for each in rows]))

    def panel(self, layers: Sequence[alt.Chart], count: int, title: str, words: Sequence[str]) -> alt.LayerChart:
        """Return the panel of these layers, with room for ``count`` rows and without a frame."""
        heading = panel_title(title, words, self.width // 7)
        bare = alt.ViewBackground(stroke=None)
        height = self.height * max(count, 1)
        return layered(*layers).properties(title=heading, width=self.width, height=height, view=bare)

    def texts(self, rows: list[Row], y: alt.Y, name: str, number: str) -> list[alt.Chart]:
        left: Fields = {"align": "right", "dx": -8} if self.is_wide else {"align": "left", "dy": -9}
        right: Fields = {"align": "left", "dx": 8} if self.is_wide else {"align": "right", "dy": -9}
        layers = []
        for column, at, style in ((name, self.across[0], left), (number, self.across[1], right)):
            text = chart_of(rows).mark_text(baseline="middle", fontSize=13, color="#222", **style)
            layers.append(text.encode(x=alt.value(at), y=y, text=f"{column}:N"))
        return layers


_NAMES, _NUMBERS = 232, 170  # pixels beside a bar
_CLAIMS = {"heuristic": "predicted", "guarantee": "guaranteed", "baseline": "for comparison"}


def epsilon_panel(result: AuditResult, width: int) -> alt.LayerChart:
    """Return bars of epsilon with names and numbers. A bar beyond the axis ends in an arrow.

    Names and numbers are inside the panel, so that their length does not move the panels above.
    """
    rows = epsilon_rows(result)
    edge = _edge(rows)
    row = BarRow(width, _NAMES, _NUMBERS)
    x, y = row.epsilon_x("end", result.delta, edge), row.name_y(rows)
    layers = [
        *_bars(rows, edge, x, y, row),
        *_largest(rows, edge, x, y, row),
        *_marks_of_heuristic(result, rows, edge, x, y, row),
        *row.texts(rows, y, "name", "text"),
    ]
    words = []
    if result.estimates:
        words.append(
            "Purple mark: the prediction. Grey mark: the largest epsilon this many models can show. Arrow: the value "
            "is outside the picture."
        )
    if any(METHODS[method].is_one_run for method in result.estimates):
        words.append(f"One run: {OWN_COIN}.")
    without = {ANALYSES[name].label: answer for name, answer in result.predictions.items() if answer.value is None}
    words += [f"Without {label}: {answer.reason.partition(':')[0]}." for label, answer in without.items()]
    return row.panel(layers, len(rows), "Epsilon, guaranteed, predicted and found", words)


def epsilon_rows(result: AuditResult) -> list[Row]:
    """Return the rows of the panel: predictions, then estimates. Infinite numbers become texts, as JSON lacks them."""
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
    """Spell an epsilon with three digits. Lower bounds (``found``) are rounded down, other numbers up."""
    return (spell_down if found else spell_up)(epsilon, 3) if math.isfinite(epsilon) else "infinite"


def _plain(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else "infinite"


def _number(value: Value) -> float | None:
    return math.inf if isinstance(value, str) else value


def _edge(rows: list[Row]) -> float:
    """Return the end of the axis, which excludes a guarantee that is much larger than all other values."""
    values = sorted(value for row in rows if isinstance(value := row["epsilon"], float) and value > 0.0)
    if not values:
        return 1.0
    edge = values[-1] if len(values) == 1 else min(values[-1], 4.0 * values[-2])
    largest = [value for row in rows if isinstance(value := row["largest"], float)]
    return 1.06 * max([edge, *(value for value in largest if value <= 1.5 * edge)])


def _bars(rows: list[Row], edge: float, x: alt.X, y: alt.Y, row: BarRow) -> list[alt.Chart]:
    ends = [(each, _number(each["epsilon"])) for each in rows]
    drawn = [{**each, "end": min(value, edge)} for each, value in ends if value is not None]
    beyond = [{**each, "end": edge} for each, value in ends if value is not None and value > edge]
    # A bar without filling marks an uncorrected maximum over thresholds, which is not a valid bound.
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


def _arrows(rows: list[Row], colour: str, x: alt.X, y: alt.Y, row: BarRow) -> list[alt.Chart]:
    if not rows:
        return []
    arrow = chart_of(rows).mark_point(
        shape="triangle-right", size=110, filled=True, opacity=1.0, color=colour, xOffset=-9, yOffset=row.below
    )
    return [arrow.encode(x=x, y=y)]


def _largest(rows: list[Row], edge: float, x: alt.X, y: alt.Y, row: BarRow) -> list[alt.Chart]:
    """Return a light mark at the bound that would result if the attack made no errors, or an arrow at the edge."""
    ends = [(each, _number(each["largest"])) for each in rows]
    near = [{**each, "end": value} for each, value in ends if value is not None and value <= edge]
    far = [{**each, "end": edge} for each, value in ends if value is not None and value > edge]
    tick = chart_of(near).mark_tick(color="#999", thickness=3, height=0.8 * BAR, yOffset=row.below)
    ticks = [tick.encode(x=x, y=y, tooltip=["name:N", "largest:N"])] if near else []
    return [*ticks, *_arrows(far, "#999", x, y, row)]


def _marks_of_heuristic(
    result: AuditResult, rows: list[Row], edge: float, x: alt.X, y: alt.Y, row: BarRow
) -> list[alt.Chart]:
    """Return a mark at the prediction on every bar. A rule through the picture would cross names and numbers."""
    answer = result.predictions.get("last_iterate")
    if answer is None or answer.value is None or answer.value > edge:
        return []
    marks = chart_of([{"name": each["name"], "end": answer.value} for each in rows])
    tick = marks.mark_tick(color=PREDICTION, thickness=2, height=0.62 * row.height, yOffset=row.below)
    return [tick.encode(x=x, y=y)]


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


def comparison_chart(audits: Sequence[ComparedAudit]) -> alt.VConcatChart:
    """Return panels of signal, epsilon by each method, and cost. Each bar is an audit, in the verdict's colour."""
    edge = _edge_comparison(audits)
    panels = [
        ("signal d'", [_signal(audit) for audit in audits], None),
        *(
            (f"found: {METHODS[method].label}", [_found(audit, method) for audit in audits], edge)
            for method in methods_of(audits)
        ),
        (
            "cost in seconds",
            [_bar_row(each, float(each.result.seconds), f"{each.result.seconds:,.0f}") for each in audits],
            None,
        ),
    ]
    rows = [
        alt.hconcat(*(_panel(*panel, named=not i) for i, panel in enumerate(panels[at : at + _ACROSS])), spacing=24)
        for at in range(0, len(panels), _ACROSS)
    ]
    words = [
        *(f"{audit.label}: {audit.result.attack}" for audit in audits),
        *(f"* {difference(audit, audits[0])}" for audit in audits if audit.differs),
        f"Epsilons at delta {spell_exact(audits[0].result.delta)}. Marks, for each audit's own run: blue, the "
        "guarantee; purple, the prediction; grey, the ideal signal of linear losses.",
        *trust(audits),
        caveat_of(*(audit.result.run for audit in audits)),
    ]
    return styled(alt.vconcat(*rows, spacing=24), "What several attacks found in the released model", words, width=125)


def _panel(title: str, rows: list[Row], edge: float | None, *, named: bool) -> alt.LayerChart:
    """Return bars with numbers on their right, and marks for the heuristic, the guarantee and the ideal signal.

    If ``named`` is true, the panel shows the names of the audits.
    """
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


def _bar_row(audit: ComparedAudit, value: float | None, text: str, **marks: float | None) -> Row:
    name = f"{audit.label}: {audit.result.headline.partition(':')[0].rstrip('.').lower()}"
    known = {mark: at for mark, at in marks.items() if at is not None and math.isfinite(at)}
    drawn = value if value is None or math.isfinite(value) else _BEYOND
    return {"audit": name, "value": drawn, "text": text, "colour": verdict_colour(audit.result.verdict), **known}


def _signal(audit: ComparedAudit) -> Row:
    signal = audit.result.signal
    if not math.isfinite(signal):
        return _bar_row(audit, None, "no value")
    return _bar_row(audit, signal, spell(signal, 3), ideal=audit.result.ideal_signal)


def _found(audit: ComparedAudit, method: str) -> Row:
    predictions = audit.result.predictions
    marks = {"heuristic": predictions.get("last_iterate"), "guarantee": predictions.get(audit.result.run.guarantee)}
    values = {name: None if answer is None else answer.value for name, answer in marks.items()}
    if method not in audit.result.estimates:
        return _bar_row(audit, None, "-")
    epsilon = audit.result.estimates[method].epsilon
    return _bar_row(audit, epsilon, spell_epsilon(epsilon, found=True), **values)


def _edge_comparison(audits: Sequence[ComparedAudit]) -> float:
    rows = [_found(audit, method) for audit in audits for method in methods_of(audits)]
    shown = [value for row in rows for name in ("value", "heuristic") if isinstance(value := row.get(name), float)]
    most = max([value for value in shown if value < _BEYOND], default=0.0)
    guarantees = [value for row in rows if isinstance(value := row.get("guarantee"), float)]
    return 1.06 * max([most, *(value for value in guarantees if value <= 4.0 * most)]) or 1.0
