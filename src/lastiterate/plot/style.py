"""Shared style of all charts: colours, dashes, titles, legends and axes. Lines also differ without colour."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from lastiterate.common.errors import MissingExtra, not_installed
from lastiterate.common.types import Row, Value
from lastiterate.formatting import spell_exact
from lastiterate.labels import ANALYSES

if TYPE_CHECKING:
    import altair

    alt = altair
    Picture: TypeAlias = alt.Chart | alt.LayerChart | alt.HConcatChart | alt.VConcatChart
    Drawn = TypeVar("Drawn", alt.Chart, alt.LayerChart, alt.HConcatChart, alt.VConcatChart)
else:

    class _Altair:
        """The optional module altair, which is slow to load. The first use of an attribute loads it."""

        def __getattr__(self, name: str) -> object:
            try:
                return getattr(import_module("altair"), name)
            except ImportError:
                raise MissingExtra(not_installed("plots", "altair", "plot", "need")) from None

    alt = _Altair()

EXACT = "this example (exact)"
FOUND = "found by the attack"

# One colour for each of the three numbers: what is guaranteed (blue, by Okabe and Ito), predicted (purple, by Tol) and
# found (black). With any colour blindness their CIE76 distance is at least 20. None of them means good or bad.
GUARANTEE, PREDICTION, ATTACK, BASELINE = "#0072B2", "#AA3377", "#222222", "#777777"
_LOOKS = {
    ANALYSES["composition"].label: (GUARANTEE, [1, 0]),
    ANALYSES["no_amplification"].label: (GUARANTEE, [7, 5]),
    ANALYSES["convex"].label: (GUARANTEE, [10, 3, 2, 3]),
    ANALYSES["last_iterate"].label: (PREDICTION, [1, 0]),
    ANALYSES["max_over_steps"].label: (PREDICTION, [2, 3]),
    FOUND: (ATTACK, [1, 0]),
    EXACT: ("#E69F00", [1, 0]),
    ANALYSES["full_batch"].label: (BASELINE, [7, 5]),
}

# Only a refutation has a colour that warns: "not refuted" does not mean that a training is safe.
_VERDICTS = {
    "violation": "#B24502",
    "above heuristic": PREDICTION,
    "inconclusive": "#777777",
    "consistent": "#4B5866",
}


def verdict_colour(verdict: str) -> str:
    """Return the colour of a verdict in tables, pictures and pages. An unknown verdict is grey."""
    return _VERDICTS.get(verdict, "#777777")


def colour_of(label: str) -> str:
    """Return the colour of an analysis, or of the attack's result, in all pictures. An unknown label is grey."""
    return _LOOKS[label][0] if label in _LOOKS else "#777777"


def dash_of(label: str) -> list[int]:
    """Return the dash pattern of this label's lines in all pictures."""
    return _LOOKS[label][1] if label in _LOOKS else [1, 0]


def chart_of(rows: Sequence[Mapping[str, Value]]) -> alt.Chart:
    """Return a chart of these rows, without marks and encodings."""
    # Altair keeps a tuple, but copies a list row by row whenever charts are combined.
    return alt.Chart(alt.Data(values=tuple(rows)))  # type: ignore[no-untyped-call]


def lines(rows: Sequence[Mapping[str, Value]], x: alt.X, y: alt.Y, look: Mapping[str, Any], **mark: Any) -> alt.Chart:
    """Return lines through the rows, with further encodings (``look``) and properties of the lines (``mark``)."""
    drawn: alt.Chart = chart_of(rows).mark_line(**{"strokeWidth": 2.5, **mark}).encode(x=x, y=y, **look)
    return drawn


def layered(*layers: alt.Chart | alt.LayerChart) -> alt.LayerChart:
    """Draw charts on top of each other, with the first at the bottom."""
    drawn = alt.layer(*layers)
    assert isinstance(drawn, alt.LayerChart)  # fails if a layer is split into facets
    return drawn


def legend_below(**look: Any) -> alt.Legend:
    """Return a legend under the picture, without a title."""
    return alt.Legend(title=None, orient="bottom", **look)


def scale_of(values: Mapping[str, str | Sequence[float]]) -> alt.Scale:
    """Return a scale that gives each name its own value, such as a colour."""
    return alt.Scale(domain=list(values), range=list(values.values()))


def line_looks(
    field: str, colours: Mapping[str, str], dashes: Mapping[str, Sequence[float]], columns: int
) -> dict[str, alt.Color | alt.StrokeDash]:
    """Return encodings that give each name in the column ``field`` its colour and dash, with one legend."""
    stroke = {"symbolType": "stroke", "symbolSize": 500, "symbolStrokeWidth": 2.5}
    legend = legend_below(labelLimit=0, **stroke, columns=columns)
    return {
        "color": alt.Color(f"{field}:N", scale=scale_of(colours), legend=legend),
        "strokeDash": alt.StrokeDash(f"{field}:N", scale=scale_of(dashes), legend=legend),
    }


def looks(labels: Iterable[str], columns: int = 4) -> dict[str, alt.Color | alt.StrokeDash]:
    """Return encodings that give each analysis its colour and dash, with one legend."""
    given = set(labels)
    shown = [label for label in _LOOKS if label in given]
    return line_looks(
        "analysis", {each: colour_of(each) for each in shown}, {each: dash_of(each) for each in shown}, columns
    )


def found_shape(shapes: Mapping[str, str]) -> alt.Shape:
    """Return the encoding that gives each name in the column ``found`` its shape, with one legend."""
    legend = legend_below(labelLimit=0, symbolSize=120, padding=6)
    return alt.Shape("found:N", scale=scale_of(shapes), legend=legend)


def long(rows: Iterable[Row], quantity: str, names: Iterable[str]) -> list[Row]:
    """Convert rows with one column per analysis to rows with one value each. Missing values are left out."""
    columns = list(names)
    return [
        {
            **{key: value for key, value in row.items() if key not in columns},
            "analysis": ANALYSES[name].label,
            quantity: row[name],
        }
        for row in rows
        for name in columns
        if row.get(name) is not None
    ]


def panel_title(title: str, words: Sequence[str], width: int, **look: Any) -> alt.TitleParams:
    """Return the title of a panel, with ``words`` as subtitle in lines of at most ``width`` characters."""
    lines = [line for sentence in words for line in textwrap.wrap(sentence, width)]
    return alt.TitleParams(title, subtitle=lines, anchor="start", **{"offset": 8, **look})


def styled(chart: Drawn, title: str, words: Sequence[str], width: int = 120) -> Drawn:
    """Add a title and lines of text below it, and apply the fonts and sizes of all pictures."""
    heading = panel_title(title, words, width, fontSize=19, subtitleFontSize=14, subtitleColor="#444", offset=16)
    return configured(chart.properties(title=heading, background="white", padding=14))


def configured(chart: Drawn) -> Drawn:
    """Apply the fonts, sizes and greys of every picture."""
    finished: Drawn = (
        chart.configure(font="Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif")
        .configure_axis(
            labelFontSize=13, titleFontSize=14, titleFontWeight="normal", gridColor="#e6e6e6", titlePadding=8
        )
        .configure_axisX(labelFlush=False)
        .configure_legend(labelFontSize=14, columnPadding=28, offset=16)
        .configure_title(fontSize=15, subtitleFontSize=13, subtitleColor="#444")
        .configure_view(stroke="#bbb")
    )
    return finished


# Axes: ranges and ticks.


def log_x(field: str, title: str, low: float, high: float) -> alt.X:
    """Return a logarithmic horizontal axis from ``low`` to ``high``."""
    return alt.X(f"{field}:Q", title=title, **_logarithmic(low, high))


def log_y(field: str, title: str, low: float, high: float) -> alt.Y:
    """Return a logarithmic vertical axis from ``low`` to ``high``."""
    return alt.Y(f"{field}:Q", title=title, **_logarithmic(low, high))


def epsilon_y(
    delta: float, log: tuple[float, float] | None = None, between: tuple[float, float] | None = None
) -> alt.Y:
    """Return the vertical axis of epsilon. It starts at zero, unless the bounds ``log`` or ``between`` are given."""
    title = f"epsilon at delta {spell_exact(delta)}"
    if log is not None:
        return alt.Y("epsilon:Q", title=f"{title} (log scale)", **_logarithmic(*log))
    if between is not None:
        scale = alt.Scale(domain=between, nice=False, zero=False)
        return alt.Y("epsilon:Q", title=title, scale=scale, axis=alt.Axis(tickCount=6))
    return alt.Y("epsilon:Q", title=title, **from_zero())


def from_zero() -> dict[str, Any]:
    """Return a linear axis from zero to a tick, so that titles of panels side by side have the same height."""
    return {"scale": alt.Scale(zero=True, nice=6), "axis": alt.Axis(tickCount=6)}


def _logarithmic(low: float, high: float) -> dict[str, Any]:
    """Return an axis with ticks at powers of ten. If there are few, the axis has more ticks between them."""
    decades = math.log10(high / low) if high > low else 0.0
    factors = (1, 2, 3, 5, 8) if decades < 1.2 else (1, 2, 5) if decades < 2.5 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1, max(1, math.ceil(decades / 6)))
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    shown = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
    scale = alt.Scale(type="log", domain=[low, max(high, low * 1.01)], nice=False)
    return {"scale": scale, "axis": alt.Axis(values=shown, format="~s" if high >= 1e6 else ",~r")}
