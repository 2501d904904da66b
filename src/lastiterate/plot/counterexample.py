"""Charts of counterexamples: exact epsilons, predictions of the analyses, and lower bounds of attacks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from lastiterate.common.types import Row, largest, number_in, text_in
from lastiterate.compare_analyses import ask
from lastiterate.formatting import CAVEAT, describe, per_cent, spell, spell_exact, spell_up
from lastiterate.labels import ANALYSES, MAX_OVER_STEPS
from lastiterate.paper.counterexamples.setting import Probe, known
from lastiterate.plot.epsilons import spell_epsilon
from lastiterate.plot.style import (
    EXACT,
    FOUND,
    alt,
    chart_of,
    colour_of,
    epsilon_y,
    found_shape,
    layered,
    lines,
    log_x,
    long,
    looks,
    styled,
)

if TYPE_CHECKING:
    _Place = tuple[Literal["left", "right", "center"], int]  # alignment and offset of a text beside its point

_ASIDE = 1.05  # factor between the outermost points and the picture's frame


def counterexample_chart(found: Probe, title: str) -> alt.LayerChart:
    """Return the chart of one of the four counterexamples."""
    draw = {"zeroing": _zeroing, "quadratic": _quadratic, "shift": _shift, "malicious": _malicious}[found.name]
    return draw(found, title)


def _zeroing(found: Probe, title: str) -> alt.LayerChart:
    case = found.cases[-1]
    exact, last = known(case.exact), number_in(found.rows[-1], "steps")
    top = 1.6 * max(exact, case.empirical)
    x = log_x("steps", "steps T (log scale)", 1, last)
    y = epsilon_y(found.setting.delta, between=(0.0, top))
    layers = [
        *_shade(found.fields, last, top, x, y),
        _curves(long(found.rows, "epsilon", ["last_iterate"]) + _level("steps", (1, last), EXACT, exact), x, y),
        _points([{"steps": found.run.steps, "epsilon": case.empirical}], x, y),
    ]
    return _picture(found, title, layers)


def _shade(region: Row, end: float, top: float, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    if region["region_first"] is None:
        return []
    first = number_in(region, "region_first")
    last = end if region["region_last"] is None else number_in(region, "region_last")
    area = chart_of([{"steps": first, "end": last}]).mark_rect(color="#F0E442", opacity=0.25)
    middle = chart_of([{"steps": math.sqrt(first * last), "epsilon": top}])
    words = middle.mark_text(text="the heuristic is too low here", dy=16, fontSize=13, color="#444")
    return [area.encode(x=x, x2="end:Q"), words.encode(x=x, y=y)]


def _quadratic(found: Probe, title: str) -> alt.LayerChart:
    predicted, case = known(found.predictions["max_over_steps"]), found.cases[-1]
    worst = largest(found.rows, "epsilon")
    alpha = number_in(worst, "alpha")
    epsilons = [predicted, case.empirical, *(number_in(row, "epsilon") for row in found.rows)]
    margin = 0.12 * (max(epsilons) - min(epsilons))
    axis = alt.Axis(tickCount=10, format=".1f")
    x = alt.X("alpha:Q", title="alpha, the share that each step forgets", scale=alt.Scale(domain=[0, 1]), axis=axis)
    y = epsilon_y(found.setting.delta, between=(max(min(epsilons) - margin, 0.0), max(epsilons) + margin))
    curve = [{**row, "analysis": EXACT} for row in found.rows]
    flat = _level("alpha", (0.0, 1.0), MAX_OVER_STEPS.label, predicted)
    words = f"largest: {spell(number_in(worst, 'epsilon'), 5)} at alpha {spell(alpha)}"
    place: _Place = ("left", 8) if alpha < 0.2 else ("right", -8) if alpha > 0.8 else ("center", 0)
    peak = chart_of([worst]).mark_text(text=words, align=place[0], dx=place[1], dy=-12, fontSize=13, color="#444")
    layers = [
        _curves(curve + flat, x, y),
        peak.encode(x=x, y=y),
        _points([{"alpha": found.setting.alpha, "epsilon": case.empirical}], x, y),
    ]
    return _picture(found, title, layers)


def _shift(found: Probe, title: str) -> alt.LayerChart:
    ends = number_in(found.rows[0], "growth") / _ASIDE, number_in(found.rows[-1], "growth") * _ASIDE
    drawn: list[Row] = [{"growth": row["growth"], "analysis": EXACT, "epsilon": row["exact"]} for row in found.rows]
    for name in ("last_iterate", "composition"):
        drawn += _level("growth", ends, ANALYSES[name].label, found.predictions[name].value)
    audited = [{**row, "epsilon": row["empirical"]} for row in found.rows if row["models"]]
    x = log_x("growth", "growth v of a coordinate at each step (log scale)", *ends)
    top = 1.1 * max(number_in(row, "epsilon") for row in drawn + audited)
    y = epsilon_y(found.setting.delta, between=(0.0, top))
    others = {row["models"] for row in audited} - {found.setting.models}
    more = [f"Points at other growths than {spell(found.setting.growth)}: {count:,} models." for count in others]
    return _picture(found, title, [_curves(drawn, x, y), _points(audited, x, y)], *more)


def _malicious(found: Probe, title: str) -> alt.LayerChart:
    y = alt.Y("what:N", title=None, sort=None, axis=alt.Axis(labelLimit=0, labelFontSize=14))
    x = alt.X("epsilon:Q", title=f"epsilon at delta {spell_exact(found.setting.delta)}", scale=alt.Scale(zero=True))
    names = {
        ANALYSES[name].label: answer.value for name, answer in found.predictions.items() if name != "max_over_steps"
    }
    for case in found.cases:
        names[f"{case.label}, {EXACT}"] = case.exact.value
        names[f"{case.label}, {FOUND}"] = case.empirical
    bars: list[Row] = [
        {
            "what": name,
            "epsilon": value,
            "text": spell_epsilon(value, found=name.endswith(FOUND)),
            "colour": colour_of(name.split(", ")[-1]),
        }
        for name, value in names.items()
        if value is not None
    ]
    marks = chart_of(bars).mark_bar(height=18).encode(x=x, y=y, color=alt.Color("colour:N", scale=None))
    texts = chart_of(bars).mark_text(align="left", dx=5, fontSize=14).encode(x=x, y=y, text="text:N")
    words = [
        f"{describe(found.run)}. Found: at least this, at {per_cent(found.setting.confidence)} confidence, with "
        f"{found.setting.models:,} models in each world. {CAVEAT}"
    ]
    return styled(layered(marks, texts).properties(width=560, height=260), title, words, width=100)


def _level(field: str, ends: tuple[float, float], label: str, epsilon: float | None) -> list[Row]:
    return [] if epsilon is None else [{field: end, "analysis": label, "epsilon": epsilon} for end in ends]


def _curves(rows: list[Row], x: alt.X, y: alt.Y) -> alt.Chart:
    return lines(rows, x, y, looks(text_in(row, "analysis") for row in rows), interpolate="monotone", clip=True)


def _points(rows: list[Row], x: alt.X, y: alt.Y) -> alt.Chart:
    marks = chart_of([{**row, "found": FOUND} for row in rows])
    marks = marks.mark_point(filled=True, size=100, opacity=1.0, color=colour_of(FOUND))
    chart: alt.Chart = marks.encode(x=x, y=y, shape=found_shape({FOUND: "circle"}))
    return chart


def _picture(found: Probe, title: str, layers: Sequence[alt.Chart], *more: str) -> alt.LayerChart:
    setting = found.setting
    words = [
        describe(found.run),
        f"Point: at least this was found, at {per_cent(setting.confidence)} confidence, with {setting.models:,} models "
        "in each world.",
        f"Method: {found.cases[-1].method}.",
    ]
    guaranteed = ask(found.run, found.run.guarantee, lambda curve: curve.epsilon(setting.delta)).value
    promise = [] if guaranteed is None else [f"{CAVEAT} For this run epsilon {spell_up(guaranteed, 4)} is guaranteed."]
    return styled(layered(*layers).properties(width=620, height=340), title, [*words, *more, *promise], width=92)
