"""The picture of an audit's errors: what every threshold achieves, how sure that is, and what was predicted."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.answers import guarantee_of
from lastiterate.auditing.evidence.rates import upper_bound
from lastiterate.plot.axes import log_x, log_y
from lastiterate.plot.style import FOUND, chart_of, colour_of, layered, looks, panel_title
from lastiterate.rows import Row, text
from lastiterate.vocabulary import ANALYSES, METHODS
from lastiterate.wording import per_cent

if TYPE_CHECKING:
    from altair import LayerChart

    from lastiterate.arrays import FloatArray, IntArray
    from lastiterate.auditing.evidence.result import AuditResult

_POINTS = {"last_iterate": 31, "composition": 16, "no_amplification": 31}  # composition takes long for few steps
_TWO_COLUMNS = 400  # pixels from which on a legend has room for two
_FINEST = 24  # points of the curve for each factor of e in a rate: some three pixels apart


def roc_panel(result: AuditResult, width: int, height: int) -> LayerChart:
    """False negatives against false positives, both logarithmic: the attack, its band and the predictions."""

    low = lowest_rate(result)
    x = log_x("fpr", "false positive rate (log scale)", low, 1.0)
    y = log_y("fnr", "false negative rate (log scale)", low, 1.0)
    predicted, without = predicted_rates(result)
    found, band = _rows(result, low)
    shown = [FOUND, *dict.fromkeys(text(row, "analysis") for row in predicted)]
    guess = np.geomspace(low, 0.5, 30)
    guesses = np.concatenate((guess, 1.0 - guess[::-1])).tolist()
    chance = chart_of([{"fpr": rate, "fnr": 1.0 - rate} for rate in guesses])
    if is_one_run := any(METHODS[method].is_one_run for method in result.estimates):
        words = ["No band: canaries of one training are not independent. Grey: guessing."]
    else:
        error_text = f"Band: {per_cent(result.confidence)}, pointwise, half the error to each rate."
        words = [f"{error_text} Dots: bounds that the estimates use. Grey: guessing."]
    words += [f"Without {ANALYSES[name].label}: {why.partition(':')[0]}." for name, why in without.items()]
    layers = [
        chart_of([] if is_one_run else band)
        .mark_line(filled=True, fill=colour_of(FOUND), fillOpacity=0.16, strokeWidth=0, clip=True)
        .encode(x=x, y=y, order="order:Q"),
        chance.mark_line(color="#999", strokeWidth=1, clip=True).encode(x=x, y=y, order="fpr:Q"),
        chart_of(found)
        .mark_line(strokeWidth=2.8, interpolate="step-before", clip=True)
        .encode(x=x, y=y, order="order:Q", **looks(shown, columns=2 if width >= _TWO_COLUMNS else 1)),
        chart_of(predicted)
        .mark_line(strokeWidth=2, interpolate="monotone", clip=True)
        .encode(x=x, y=y, order="fpr:Q", **looks(shown, columns=2 if width >= _TWO_COLUMNS else 1)),
        chart_of([] if is_one_run else _bounds(result, low))
        .mark_point(size=75, filled=True, opacity=1.0, color=colour_of(FOUND), stroke="white", strokeWidth=1.2)
        .encode(x=x, y=y, tooltip=["methods:N", "fpr_upper:Q", "fnr_upper:Q"]),
    ]
    title = panel_title("Errors of the attack, and of the best one predicted", words, width // 6)
    return layered(*layers).properties(width=width, height=height, title=title)


def lowest_rate(result: AuditResult) -> float:
    """Where the axes begin: at half of one error. Rates of zero, which a logarithm does not know, stand there."""
    models = max(np.size(result.scores_in), np.size(result.scores_out), 1)
    return min(0.5 / models, 0.01)


@lru_cache(maxsize=1)  # the same audit becomes a picture and a page
def predicted_rates(result: AuditResult) -> tuple[list[Row], dict[str, str]]:
    """Points of the predicted trade-off curves, and why an analysis has none."""

    low = lowest_rate(result)
    rows: list[Row] = []
    reasons = {}
    for name in dict.fromkeys(("last_iterate", "composition", guarantee_of(result.run))):
        points = _POINTS[name]
        try:
            curve = ANALYSES[name].curve(result.run)
            bend = np.linspace(0.2, 1.0, points // 2, endpoint=False)  # where logarithmic axes bend the curve
            fpr = np.concatenate((np.geomspace(low, 0.2, points // 2, endpoint=False), bend, [0.98, 0.995]))
            fnr = np.maximum(curve.fnr(fpr), 1e-3 * low)
        except ValueError as refusal:
            reasons[name] = str(refusal)
            continue
        pairs = zip(fpr.tolist(), fnr.tolist(), strict=True)
        rows += [{"analysis": ANALYSES[name].label, "fpr": x, "fnr": y} for x, y in pairs]
    return rows, reasons


def _rows(result: AuditResult, low: float) -> tuple[list[Row], list[Row]]:
    """The curve through all thresholds, and the outline of its band: the upper edge there, the lower edge back."""
    false_positives, false_negatives, outs, ins = counts(result)
    error = (1.0 - result.confidence) / 2.0
    upper = (upper_bound(false_positives, outs, error), upper_bound(false_negatives, ins, error))
    lower = tuple(1.0 - upper_bound(n - k, n, error) for k, n in ((false_positives, outs), (false_negatives, ins)))
    # The upper edge ends where no model, or every model, is called "in"; so few models may be sure of neither.
    outline = np.concatenate(([[1.0, 0.0]], _stairs(*upper), [[0.0, 1.0]], _stairs(*lower)[::-1]))
    curve = np.stack((false_positives / max(outs, 1), false_negatives / max(ins, 1)), axis=1)
    return [
        {"analysis": FOUND, "order": order, "fpr": x, "fnr": y}
        for order, (x, y) in enumerate(np.maximum(curve, low).tolist())
    ], [{"order": order, "fpr": x, "fnr": y} for order, (x, y) in enumerate(np.maximum(outline, low).tolist())]


def _stairs(fpr: FloatArray, fnr: FloatArray) -> FloatArray:
    """Points with the corners between them: a threshold between two scores errs like the one above it or below."""
    corners = np.stack((fpr[:-1], fnr[1:]), axis=1)
    points = np.stack((fpr, fnr), axis=1)
    return np.insert(points, np.arange(1, len(points)), corners, axis=0)


def counts(result: AuditResult) -> tuple[IntArray, IntArray, int, int]:
    """False positives and false negatives of all thresholds, lowest first, without those that look the same."""
    ins, outs = np.sort(np.ravel(result.scores_in)), np.sort(np.ravel(result.scores_out))
    thresholds = np.unique(np.concatenate((ins, outs)))
    positives = outs.size - np.searchsorted(outs, thresholds)
    negatives = np.searchsorted(ins, thresholds)
    positives, negatives = np.append(positives, 0), np.append(negatives, ins.size)  # above every score
    places = np.floor(_FINEST * np.log(np.stack((positives, negatives)) + 0.5))
    first = np.append(True, np.any(np.diff(places) != 0.0, axis=0))
    first[-1] = True
    return positives[first], negatives[first], int(outs.size), int(ins.size)


def _bounds(result: AuditResult, low: float) -> list[Row]:
    """What the estimates rest on; methods that share a threshold share a dot."""
    points: dict[tuple[float, float], list[str]] = {}
    for method, each in result.estimates.items():
        points.setdefault((each.fpr_upper, each.fnr_upper), []).append(METHODS[method].label)
    return [
        {"fpr": max(x, low), "fnr": max(y, low), "fpr_upper": x, "fnr_upper": y, "methods": ", ".join(methods)}
        for (x, y), methods in points.items()
        if np.isfinite([x, y]).all()
    ]
