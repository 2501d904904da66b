"""Shared style of all charts: colours and dashes, which also differ without colour, titles, legends and axes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypedDict, TypeVar

from lastiterate.common.types import Row, Value
from lastiterate.formatting import spell_exact
from lastiterate.registry import ANALYSES

if TYPE_CHECKING:
    from altair import Axis, Scale, X, Y

if TYPE_CHECKING:
    from altair import Chart, Color, HConcatChart, LayerChart, Shape, StrokeDash, TitleParams, VConcatChart

    Picture: TypeAlias = Chart | LayerChart | HConcatChart | VConcatChart
    Drawn = TypeVar("Drawn", Chart, LayerChart, HConcatChart, VConcatChart)

EXACT = "this example (exact)"
FOUND = "found by the attack"

# Okabe and Ito's colours, which colour-blind readers can distinguish.
_LOOKS = {
    ANALYSES["last_iterate"].label: ("#0072B2", [1, 0]),
    ANALYSES["max_over_steps"].label: ("#0072B2", [2, 3]),
    ANALYSES["composition"].label: ("#D55E00", [1, 0]),
    ANALYSES["no_amplification"].label: ("#D55E00", [7, 5]),
    ANALYSES["convex"].label: ("#E69F00", [1, 0]),
    ANALYSES["full_batch"].label: ("#009E73", [7, 5]),
    EXACT: ("#CC79A7", [1, 0]),
    FOUND: ("#222222", [1, 0]),
}

# Also Okabe and Ito's: bad, warning, neutral, good.
_VERDICTS = {
    "violation": "#D55E00",
    "above heuristic": "#E69F00",
    "inconclusive": "#0072B2",
    "consistent": "#009E73",
}


def verdict_colour(verdict: str) -> str:
    """Return the colour of a verdict in tables, pictures and pages; grey for an unknown verdict."""
    return _VERDICTS.get(verdict, "#777777")


def colour_of(label: str) -> str:
    """Return the colour that an analysis, or the attack's result, has in every picture; grey for an unknown label."""
    return _LOOKS[label][0] if label in _LOOKS else "#777777"


def dash_of(label: str) -> list[int]:
    """Return the dash that the lines of a label have in every picture."""
    return _LOOKS[label][1] if label in _LOOKS else [1, 0]


def chart_of(rows: Sequence[Mapping[str, Value]]) -> Chart:
    """Return a chart of these rows, without marks and encodings."""
    import altair as alt

    # Altair keeps a tuple, but copies a list row by row whenever charts are combined.
    return alt.Chart(alt.Data(values=tuple(rows)))  # type: ignore[no-untyped-call]


def layered(*layers: Chart | LayerChart) -> LayerChart:
    """Return charts on top of each other, the first at the bottom."""
    import altair as alt

    drawn = alt.layer(*layers)
    assert isinstance(drawn, alt.LayerChart)  # fails if a layer is split into facets
    return drawn


def looks(labels: Iterable[str], columns: int = 4) -> dict[str, Color | StrokeDash]:
    """Return encodings that give each analysis its colour and dash, with one legend under the picture."""
    import altair as alt

    given = set(labels)
    shown = [label for label in _LOOKS if label in given]
    legend = alt.Legend(
        title=None,
        orient="bottom",
        labelLimit=0,
        symbolType="stroke",
        symbolSize=500,
        symbolStrokeWidth=2.5,
        columns=columns,
    )
    colours = alt.Scale(domain=shown, range=[_LOOKS[label][0] for label in shown])
    dashes = alt.Scale(domain=shown, range=[_LOOKS[label][1] for label in shown])
    return {
        "color": alt.Color("analysis:N", scale=colours, legend=legend),
        "strokeDash": alt.StrokeDash("analysis:N", scale=dashes, legend=legend),
    }


def found_shape(shapes: dict[str, str]) -> Shape:
    """Return the encoding of names in the column ``found`` by shape, with one legend under the picture."""
    import altair as alt

    legend = alt.Legend(title=None, orient="bottom", labelLimit=0, symbolSize=120, padding=6)
    return alt.Shape("found:N", scale=alt.Scale(domain=list(shapes), range=list(shapes.values())), legend=legend)


def long(rows: Iterable[Row], quantity: str, names: Iterable[str]) -> list[Row]:
    """Return one row for each analysis of each row, without missing values."""
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


def panel_title(title: str, words: Sequence[str], width: int) -> TitleParams:
    """Return the title of a panel, with ``words`` as subtitle in lines of at most ``width`` characters."""
    import altair as alt

    lines = [line for sentence in words for line in textwrap.wrap(sentence, width)]
    return alt.TitleParams(title, subtitle=lines, anchor="start", offset=8)


def styled(chart: Drawn, title: str, words: Sequence[str], width: int = 120) -> Drawn:
    """Return a finished picture: title, plain words under it, sizes that stay legible in a README."""
    import altair as alt

    lines = [line for sentence in words for line in textwrap.wrap(sentence, width)]
    heading = alt.TitleParams(
        title, subtitle=lines, anchor="start", fontSize=19, subtitleFontSize=14, subtitleColor="#444", offset=16
    )
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


class Ruler(TypedDict):
    """The scale and the ticks of an axis."""

    scale: Scale
    axis: Axis


def log_x(field: str, title: str, low: float, high: float) -> X:
    """Return a logarithmic horizontal axis from ``low`` to ``high``."""
    import altair as alt

    return alt.X(f"{field}:Q", title=title, **_logarithmic(low, high))


def log_y(field: str, title: str, low: float, high: float) -> Y:
    """Return a logarithmic vertical axis from ``low`` to ``high``."""
    import altair as alt

    return alt.Y(f"{field}:Q", title=title, **_logarithmic(low, high))


def epsilon_y(delta: float, log: tuple[float, float] | None = None, between: tuple[float, float] | None = None) -> Y:
    """Return the vertical axis of epsilon: from zero, or logarithmic or linear between two bounds."""
    import altair as alt

    title = f"epsilon at delta {spell_exact(delta)}"
    if log is not None:
        return alt.Y("epsilon:Q", title=f"{title} (log scale)", **_logarithmic(*log))
    if between is not None:
        scale = alt.Scale(domain=between, nice=False, zero=False)
        return alt.Y("epsilon:Q", title=title, scale=scale, axis=alt.Axis(tickCount=6))
    return alt.Y("epsilon:Q", title=title, **from_zero())


def from_zero() -> Ruler:
    """Return a linear axis from zero to a tick, so that the titles of panels side by side are level."""
    import altair as alt

    return {"scale": alt.Scale(zero=True, nice=6), "axis": alt.Axis(tickCount=6)}


def _logarithmic(low: float, high: float) -> Ruler:
    """Return an axis with ticks at powers of ten, and between these if there are few powers."""
    import altair as alt

    decades = math.log10(high / low) if high > low else 0.0
    factors = (1, 2, 3, 5, 8) if decades < 1.2 else (1, 2, 5) if decades < 2.5 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1, max(1, math.ceil(decades / 6)))
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    return {
        "scale": alt.Scale(type="log", domain=[low, max(high, low * 1.01)], nice=False),
        "axis": alt.Axis(
            values=[tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)],
            format="~s" if high >= 1e6 else ",~r",
        ),
    }
