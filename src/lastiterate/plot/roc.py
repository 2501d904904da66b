"""Charts of an audit's errors: trade-off curves with confidence band, bound by number of models, and waterfall."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from lastiterate.auditing.evidence.audit_result import AuditResult
from lastiterate.auditing.evidence.error_rates import upper_bound
from lastiterate.common.types import FloatArray, IntArray, Row, number_in, text_in
from lastiterate.formatting import per_cent, spell_exact, spell_up
from lastiterate.labels import ANALYSES, COMPOSITION, LAST_ITERATE, METHODS
from lastiterate.plot.epsilons import BarRow
from lastiterate.plot.style import (
    BASELINE,
    FOUND,
    alt,
    chart_of,
    colour_of,
    layered,
    lines,
    log_x,
    log_y,
    looks,
    panel_title,
)

_POINTS = {"last_iterate": 31, "composition": 16, "no_amplification": 31}  # composition is slow for few steps
_TWO_COLUMNS = 400  # least width in pixels for two legend columns
_FINEST = 24  # points of the curve per factor of e in a rate: about three pixels apart


def roc_panel(result: AuditResult, width: int, height: int) -> alt.LayerChart:
    """Return a chart of false negative over false positive rates, both logarithmic.

    It shows the attack's rates with a confidence band, and the predicted trade-off curves.
    """
    low = lowest_rate(result)
    x = log_x("fpr", "false positive rate (log scale)", low, 1.0)
    y = log_y("fnr", "false negative rate (log scale)", low, 1.0)
    predicted, without = predicted_rates(result)
    found, band = _rows(result, low)
    shown = [FOUND, *dict.fromkeys(text_in(row, "analysis") for row in predicted)]
    guess = np.geomspace(low, 0.5, 30)
    guesses = np.concatenate((guess, 1.0 - guess[::-1])).tolist()
    chance: list[Row] = [{"fpr": rate, "fnr": 1.0 - rate} for rate in guesses]
    if is_one_run := any(METHODS[method].is_one_run for method in result.estimates):
        words = ["No band: canaries of one training run are not independent. Grey: guessing."]
    else:
        error_text = f"Band: {per_cent(result.confidence)}, pointwise, with half of the error for each rate."
        words = [f"{error_text} Dots: bounds that the estimates use. Grey: guessing."]
    words += [f"Without {ANALYSES[name].label}: {why.partition(':')[0]}." for name, why in without.items()]
    look = looks(shown, columns=2 if width >= _TWO_COLUMNS else 1)
    shade = {"filled": True, "fill": colour_of(FOUND), "fillOpacity": 0.16, "strokeWidth": 0}
    layers = [
        lines([] if is_one_run else band, x, y, {"order": "order:Q"}, clip=True, **shade),
        lines(chance, x, y, {"order": "fpr:Q"}, color="#999", strokeWidth=1, clip=True),
        lines(found, x, y, {"order": "order:Q", **look}, strokeWidth=2.8, interpolate="step-before", clip=True),
        lines(predicted, x, y, {"order": "fpr:Q", **look}, strokeWidth=2, interpolate="monotone", clip=True),
        chart_of([] if is_one_run else _bounds(result, low))
        .mark_point(size=75, filled=True, opacity=1.0, color=colour_of(FOUND), stroke="white", strokeWidth=1.2)
        .encode(x=x, y=y, tooltip=["methods:N", "fpr_upper:Q", "fnr_upper:Q"]),
    ]
    title = panel_title("Errors of the attack and of the best predicted attack", words, width // 6)
    return layered(*layers).properties(width=width, height=height, title=title)


def lowest_rate(result: AuditResult) -> float:
    """Return the low end of the axes: the rate of half an error, at most 0.01. Rates of zero are drawn there."""
    models = max(np.size(result.scores_in), np.size(result.scores_out), 1)
    return min(0.5 / models, 0.01)


@lru_cache(maxsize=1)  # the same audit is drawn in a picture and in a page
def predicted_rates(result: AuditResult) -> tuple[list[Row], dict[str, str]]:
    """Return points of the predicted trade-off curves, and the reasons for missing curves."""
    low = lowest_rate(result)
    rows: list[Row] = []
    reasons = {}
    for name in dict.fromkeys((result.run.guarantee, "composition", "last_iterate")):
        points = _POINTS[name]
        try:
            curve = ANALYSES[name].curve(result.run)
            bend = np.linspace(0.2, 1.0, points // 2, endpoint=False)  # the curve bends here on log axes
            fpr = np.concatenate((np.geomspace(low, 0.2, points // 2, endpoint=False), bend, [0.98, 0.995]))
            fnr = np.maximum(curve.fnr(fpr), 1e-3 * low)
        except ValueError as refusal:
            reasons[name] = str(refusal)
            continue
        pairs = zip(fpr.tolist(), fnr.tolist(), strict=True)
        rows += [{"analysis": ANALYSES[name].label, "fpr": x, "fnr": y} for x, y in pairs]
    return rows, reasons


def _rows(result: AuditResult, low: float) -> tuple[list[Row], list[Row]]:
    """Return the points of the curve, and the outline of its band: the upper edge, then the lower edge in reverse."""
    false_positives, false_negatives, outs, ins = counts(result)
    error = (1.0 - result.confidence) / 2.0
    upper = (upper_bound(false_positives, outs, error), upper_bound(false_negatives, ins, error))
    lower = tuple(1.0 - upper_bound(n - k, n, error) for k, n in ((false_positives, outs), (false_negatives, ins)))
    # The upper edge ends at (1, 0) and (0, 1), where the attack guesses the same for every model.
    outline = np.concatenate(([[1.0, 0.0]], _stairs(*upper), [[0.0, 1.0]], _stairs(*lower)[::-1]))
    curve = np.stack((false_positives / max(outs, 1), false_negatives / max(ins, 1)), axis=1)
    return [
        {"analysis": FOUND, "order": order, "fpr": x, "fnr": y}
        for order, (x, y) in enumerate(np.maximum(curve, low).tolist())
    ], [{"order": order, "fpr": x, "fnr": y} for order, (x, y) in enumerate(np.maximum(outline, low).tolist())]


def _stairs(fpr: FloatArray, fnr: FloatArray) -> FloatArray:
    corners = np.stack((fpr[:-1], fnr[1:]), axis=1)
    points = np.stack((fpr, fnr), axis=1)
    return np.insert(points, np.arange(1, len(points)), corners, axis=0)


def counts(result: AuditResult) -> tuple[IntArray, IntArray, int, int]:
    """Return the counts of false positives, false negatives, scores without the canary, and scores with the canary.

    Thresholds whose points would coincide in the picture are left out.
    """
    ins, outs = np.sort(np.ravel(result.scores_in)), np.sort(np.ravel(result.scores_out))
    thresholds = np.unique(np.concatenate((ins, outs)))
    positives = outs.size - np.searchsorted(outs, thresholds)
    negatives = np.searchsorted(ins, thresholds)
    positives, negatives = np.append(positives, 0), np.append(negatives, ins.size)  # a threshold above every score
    places = np.floor(_FINEST * np.log(np.stack((positives, negatives)) + 0.5))
    first = np.append(True, np.any(np.diff(places) != 0.0, axis=0))
    first[-1] = True
    return positives[first], negatives[first], int(outs.size), int(ins.size)


def _bounds(result: AuditResult, low: float) -> list[Row]:
    points: dict[tuple[float, float], list[str]] = {}
    for method, each in result.estimates.items():
        points.setdefault((each.fpr_upper, each.fnr_upper), []).append(METHODS[method].label)
    return [
        {"fpr": max(x, low), "fnr": max(y, low), "fpr_upper": x, "fnr_upper": y, "methods": ", ".join(methods)}
        for (x, y), methods in points.items()
        if np.isfinite([x, y]).all()
    ]


# Growth: an anytime-valid lower bound after each number of models.

_DWARFING = 4.0  # a guarantee above this multiple of the bound is named, not drawn


def growth_panel(result: AuditResult, points: Sequence[tuple[int, float]], width: int, height: int) -> alt.LayerChart:
    """Return the lower bound by number of models, as steps, with predictions and guarantees as horizontal lines."""
    rows: list[Row] = [{"models": models, "epsilon": epsilon} for models, epsilon in points]
    title = f"epsilon is at least, at delta {spell_exact(result.delta)}"
    x = log_x("models", "models per world (log scale)", max(1, points[0][0]), max(result.models, points[-1][0]))
    y = alt.Y("epsilon:Q", title=title, scale=alt.Scale(zero=True, nice=True), axis=alt.Axis(tickCount=5))
    dots = alt.OverlayMarkDef(color=colour_of(FOUND), size=24, filled=True)
    found = chart_of(rows).mark_line(strokeWidth=2.6, color=colour_of(FOUND), interpolate="step-after", point=dots)
    layers = [found.encode(x=x, y=y, tooltip=["models:Q", "epsilon:Q"])]
    words = ["This bound holds for every number of models at once: you may look at any time."]
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


# Waterfall: levels from the guarantee down to the epsilon found, and the losses between them.

_NAMES, _NUMBERS = 150, 90  # pixels beside a bar
_COLOURS = {
    "guarantee": colour_of(COMPOSITION.label),
    "heuristic": colour_of(LAST_ITERATE.label),
    "perfect attack": BASELINE,
    "found": colour_of(FOUND),
}


def waterfall_panel(result: AuditResult, width: int) -> alt.LayerChart:
    """Return a bar for each level, and a pale bar for the difference from the previous level."""
    rows = _levels(result)
    most = max([1e-9, *(number_in(each, name) for each in rows for name in ("before", "epsilon"))])
    row = BarRow(width, _NAMES, _NUMBERS)
    x, y = row.epsilon_x("epsilon", result.delta, 1.03 * most), row.name_y(rows)
    encoded = {"x": x, "y": y, "color": alt.Color("colour:N", scale=None), "tooltip": ["words:N", "epsilon:Q"]}
    layers = (
        chart_of(rows).mark_bar(**row.bar, opacity=0.25).encode(x2="before:Q", **encoded),
        chart_of(rows).mark_bar(**row.bar, opacity=0.85).encode(**encoded),
        *row.texts(rows, y, "name", "value"),
    )
    return row.panel(layers, len(rows), "Why is the number so low?", [step.words for step in result.waterfall])


def _levels(result: AuditResult) -> list[Row]:
    steps = [step for step in result.waterfall if math.isfinite(step.epsilon)]
    befores = [steps[0].epsilon, *(step.epsilon for step in steps[:-1])] if steps else []
    return [
        {
            "name": step.name,
            "epsilon": step.epsilon,
            "before": before,
            "value": step.rounded,
            "colour": _COLOURS[step.name],
            "words": step.words,
        }
        for step, before in zip(steps, befores, strict=True)
    ]
