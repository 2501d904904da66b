"""The picture of several audits: one panel a quantity, in each one bar an audit."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING

from lastiterate.answers import guarantee_of
from lastiterate.auditing.evidence.comparison import difference, methods_of, trust
from lastiterate.plot.epsilons import spell_epsilon
from lastiterate.plot.style import chart_of, colour_of, layered, styled, verdict_colour
from lastiterate.rows import Row
from lastiterate.vocabulary import ANALYSES, LAST_ITERATE, METHODS
from lastiterate.wording import caveat_of, spell, spell_exact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from altair import LayerChart, VConcatChart

    from lastiterate.auditing.evidence.comparison import ComparedAudit

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

    edge = _edge(audits)
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


def _row(audit: ComparedAudit, value: float | None, text: str, **marks: float | None) -> Row:
    """A bar; one that is infinite goes to the end of the panel."""
    name = f"{audit.label}: {audit.result.verdict}"
    known = {mark: at for mark, at in marks.items() if at is not None and math.isfinite(at)}
    drawn = value if value is None or math.isfinite(value) else _BEYOND
    return {"audit": name, "value": drawn, "text": text, "colour": verdict_colour(audit.result.verdict), **known}


def _signal(audit: ComparedAudit) -> Row:
    signal = audit.result.signal
    if not math.isfinite(signal):
        return _row(audit, None, "no value")
    return _row(audit, signal, spell(signal, 3), ideal=audit.result.ideal_signal)


def _found(audit: ComparedAudit, method: str) -> Row:
    predictions = audit.result.predictions
    marks = {"heuristic": predictions.get("last_iterate"), "guarantee": predictions.get(guarantee_of(audit.result.run))}
    values = {name: None if answer is None else answer.value for name, answer in marks.items()}
    if method not in audit.result.estimates:
        return _row(audit, None, "-")
    epsilon = audit.result.estimates[method].epsilon
    return _row(audit, epsilon, spell_epsilon(epsilon, found=True), **values)


def _cost(audit: ComparedAudit) -> Row:
    return _row(audit, float(audit.result.seconds), f"{audit.result.seconds:,.0f}")


def _edge(audits: Sequence[ComparedAudit]) -> float:
    """Where all axes of epsilon end: at all that is finite, except guarantees that would dwarf the rest."""
    rows = [_found(audit, method) for audit in audits for method in methods_of(audits)]
    shown = [value for row in rows for name in ("value", "heuristic") if isinstance(value := row.get(name), float)]
    most = max([value for value in shown if value < _BEYOND], default=0.0)
    guarantees = [value for row in rows if isinstance(value := row.get("guarantee"), float)]
    return 1.06 * max([most, *(value for value in guarantees if value <= 4.0 * most)]) or 1.0
