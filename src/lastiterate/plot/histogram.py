"""Chart of an audit's scores: histograms with and without the canary, predicted densities and thresholds."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from lastiterate.common.types import FloatArray, Row, among, number_in
from lastiterate.formatting import spell
from lastiterate.labels import THRESHOLDS
from lastiterate.plot.style import (
    ATTACK,
    PREDICTION,
    alt,
    chart_of,
    layered,
    lines,
    panel_title,
    scale_of,
)

if TYPE_CHECKING:
    from lastiterate.auditing.evidence.audit_result import AuditResult

WORLDS = {"out": "without the canary", "in": "with the canary"}

# Filled and outlined bars, and dashed and solid lines, can be distinguished without colour.
_FILLS = {"out": "#8C8C8C", "in": ATTACK}
_DASHES = {"out": [6, 4], "in": [1, 0]}
_MOST_BINS = 60
_LETTER = 6.2  # width in pixels of a letter of a label
_LARGEST = 1e150  # scores are clipped to this value, so that bin widths and their inverses are finite


def histogram_panel(result: AuditResult, width: int, height: int) -> alt.LayerChart:
    """Return histograms with and without the canary. Lines are predicted densities; vertical rules are thresholds."""
    scores = {"out": np.asarray(result.scores_out, float), "in": np.asarray(result.scores_in, float)}
    pooled = np.concatenate((scores["out"], scores["in"]))
    low, high = _range(pooled)
    edges = _edges(np.clip(pooled, low, high), low, high)
    bars = [row for world in WORLDS for row in _bars(world, scores[world], edges)]
    predicted = _predicted(result, low, high)
    top = 1.14 * max([number_in(row, "density") for row in bars + predicted], default=1.0)
    unit = textwrap.wrap(f"score ({result.score_unit})".replace("score (score)", "score"), width // 8)
    ticks = alt.Axis(tickCount=width // 60, labelOverlap=True)
    x = alt.X("low:Q", title=unit, scale=alt.Scale(domain=[low, high], nice=False, zero=False), axis=ticks)
    y = alt.Y("density:Q", title="density", scale=alt.Scale(domain=[0.0, top], nice=False), axis=alt.Axis(tickCount=5))
    layers = [_bar_layer(bars, world, x, y) for world in WORLDS]
    for world, dash in _DASHES.items():
        mark = {"strokeWidth": 2, "color": PREDICTION, "strokeDash": dash, "clip": True}
        rows = among(predicted, "world", WORLDS[world])
        layers += [lines(rows, x, y, {"order": "low:Q"}, **mark)] if predicted else []
    layers += _threshold_layers(result, low, high, x, width)
    words = ["Grey bars: without the canary. Outlined bars: with the canary."]
    words += ["Lines: predicted, if losses are linear." if predicted else "No prediction of the scores."]
    words += _threshold_words(result)
    beyond = int(np.sum((pooled < low) | (pooled > high)))
    if beyond:
        words.append(f"{beyond:,} score{'s' if beyond > 1 else ''} beyond the picture, counted at its ends.")
    title = panel_title("Scores of the released models", words, width // 6)
    return layered(*layers).properties(width=width, height=height, title=title)


def _range(pooled: FloatArray) -> tuple[float, float]:
    finite = np.clip(pooled[np.isfinite(pooled)], -_LARGEST, _LARGEST)
    if finite.size == 0:
        return -1.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    inner_low, inner_high = np.quantile(finite, [0.005, 0.995])
    inner = float(inner_high - inner_low)
    if 0.0 < 5.0 * inner < high - low:
        low, high = max(low, float(inner_low) - inner), min(high, float(inner_high) + inner)
    least = max(1.0, abs(low), abs(high)) * 1e-9
    margin = max(0.5, least)
    return (low, high) if high - low > least else (low - margin, high + margin)


def _edges(pooled: FloatArray, low: float, high: float) -> FloatArray:
    """Return bin edges by the rule of Freedman and Diaconis, limited to 10 to 60 bins."""
    first, third = np.quantile(pooled, [0.25, 0.75])
    advised = 2.0 * (third - first) * pooled.size ** (-1.0 / 3.0)
    count = _MOST_BINS // 2 if advised == 0.0 else _MOST_BINS
    if advised * _MOST_BINS > high - low:
        count = math.ceil((high - low) / advised)
    return np.linspace(low, high, max(count, 10) + 1)


def _bars(world: str, scores: FloatArray, edges: FloatArray) -> list[Row]:
    counts, _ = np.histogram(np.clip(scores, edges[0], edges[-1]), edges)
    densities = counts / (max(scores.size, 1) * np.diff(edges))
    columns = (edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), densities.tolist())
    return [
        {"world": WORLDS[world], "low": low, "high": high, "count": count, "density": density}
        for low, high, count, density in zip(*columns, strict=True)
        if count
    ]


def _predicted(result: AuditResult, low: float, high: float) -> list[Row]:
    if result.score_density is None:
        return []
    points = np.asarray(result.score_density, float)
    points = points[(points[:, 0] >= low) & (points[:, 0] <= high)]
    return [
        {"world": WORLDS[world], "low": score, "density": density}
        for column, world in ((1, "out"), (2, "in"))
        for score, density in zip(points[:, 0].tolist(), points[:, column].tolist(), strict=True)
    ]


def _bar_layer(bars: list[Row], world: str, x: alt.X, y: alt.Y) -> alt.Chart:
    colours = scale_of({WORLDS[each]: fill for each, fill in _FILLS.items()})
    outline: dict[str, Any] = {"stroke": _FILLS[world], "strokeWidth": 1.4} if world == "in" else {}
    chart: alt.Chart = (
        chart_of(among(bars, "world", WORLDS[world]))
        .mark_rect(opacity=1.0, fillOpacity=0.16 if world == "in" else 0.6, **outline)
        .encode(
            x=x,
            x2="high:Q",
            y=y,
            y2=alt.datum(0.0),
            fill=alt.Fill("world:N", scale=colours, legend=None),
            tooltip=["world:N", "low:Q", "high:Q", "count:Q"],
        )
    )
    return chart


def _thresholds(result: AuditResult) -> list[tuple[float, str]]:
    return list(dict.fromkeys((each.threshold, each.threshold_choice) for each in result.estimates.values()))


def _threshold_layers(result: AuditResult, low: float, high: float, x: alt.X, width: int) -> list[alt.Chart]:
    """Return a rule for each threshold. Only the first threshold has a label, so that labels never collide."""
    layers: list[alt.Chart] = []
    for index, (threshold, _) in enumerate(_thresholds(result)):
        shown = float(np.clip(threshold, low, high))
        rule = chart_of([{"low": shown, "threshold": spell(threshold)}])
        look: dict[str, Any] = {"strokeWidth": 1.5 if index == 0 else 0.8, "opacity": 1.0 if index == 0 else 0.5}
        layers.append(rule.mark_rule(color="#333", strokeDash=[3, 2], **look).encode(x=x))
        if index:
            continue
        label = f"threshold {spell(threshold, 3) if math.isfinite(threshold) else 'infinite'}"
        at = width * (shown - low) / (high - low)
        side = ("left", 5) if at + _LETTER * len(label) < width else ("right", -5)
        place: dict[str, Any] = {"align": side[0], "dx": side[1], "baseline": "top", "fontSize": 12, "color": "#333"}
        halo = rule.mark_text(text=label, stroke="white", strokeWidth=5, **place)
        layers += [text.encode(x=x, y=alt.value(4)) for text in (halo, rule.mark_text(text=label, **place))]
    return layers


def _threshold_words(result: AuditResult) -> list[str]:
    used = _thresholds(result)
    how = [f"The threshold was {THRESHOLDS[choice].meaning.partition(':')[0]}." for _, choice in used[:1]]
    return [*how, "Thin: thresholds of the other methods."] if len(used) > 1 else how
