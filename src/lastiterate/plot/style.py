"""How every picture looks: the same colour and dash for an analysis everywhere, told apart without colour too."""

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

# Okabe and Ito's colours, which colour-blind readers can tell apart.
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

# Also Okabe and Ito's: good, look here, bad, and one that is none of these.
_VERDICTS = {
    "violation": "#D55E00",
    "above heuristic": "#E69F00",
    "inconclusive": "#0072B2",
    "consistent": "#009E73",
}


def verdict_colour(verdict: str) -> str:
    """The colour of a verdict in tables, pictures and pages; grey for one that is not known here."""
    return _VERDICTS.get(verdict, "#777777")


def colour_of(label: str) -> str:
    """The colour that this analysis, or what an attack found, has in every picture."""
    return _LOOKS[label][0] if label in _LOOKS else "#777777"


def dash_of(label: str) -> list[int]:
    """The dash that its lines have."""
    return _LOOKS[label][1] if label in _LOOKS else [1, 0]


def chart_of(rows: Sequence[Mapping[str, Value]]) -> Chart:
    """A chart of these rows, to be given marks and encodings."""
    import altair as alt

    # A tuple is kept as it is, where every combination of charts would copy all rows of a list, one by one.
    return alt.Chart(alt.Data(values=tuple(rows)))  # type: ignore[no-untyped-call]


def layered(*layers: Chart | LayerChart) -> LayerChart:
    """Charts over each other, the first lowest."""
    import altair as alt

    drawn = alt.layer(*layers)
    assert isinstance(drawn, alt.LayerChart)  # else some layer is split into facets
    return drawn


def looks(labels: Iterable[str], columns: int = 4) -> dict[str, Color | StrokeDash]:
    """Encodings that give each analysis its colour and dash, with one legend under the picture."""
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
    """The encoding of what attacks found, each name under ``found`` by its shape, with one legend under the picture."""
    import altair as alt

    legend = alt.Legend(title=None, orient="bottom", labelLimit=0, symbolSize=120, padding=6)
    return alt.Shape("found:N", scale=alt.Scale(domain=list(shapes), range=list(shapes.values())), legend=legend)


def long(rows: Iterable[Row], quantity: str, names: Iterable[str]) -> list[Row]:
    """One row for each analysis of each row, without those that have no value."""
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
    """The title of one of several panels, with what its reader must know in lines of at most ``width`` characters."""
    import altair as alt

    lines = [line for sentence in words for line in textwrap.wrap(sentence, width)]
    return alt.TitleParams(title, subtitle=lines, anchor="start", offset=8)


def styled(chart: Drawn, title: str, words: Sequence[str], width: int = 120) -> Drawn:
    """A finished picture: title, plain words under it, sizes that stay legible in a README."""
    import altair as alt

    lines = [line for sentence in words for line in textwrap.wrap(sentence, width)]
    heading = alt.TitleParams(
        title, subtitle=lines, anchor="start", fontSize=19, subtitleFontSize=14, subtitleColor="#444", offset=16
    )
    return configured(chart.properties(title=heading, background="white", padding=14))


def configured(chart: Drawn) -> Drawn:
    """Fonts, sizes and greys of every picture."""
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


# Axes of pictures: where they begin and end, and where their ticks are.


class Ruler(TypedDict):
    """The scale of an axis, and its ticks."""

    scale: Scale
    axis: Axis


def log_x(field: str, title: str, low: float, high: float) -> X:
    """A logarithmic horizontal axis that ends with the data."""
    import altair as alt

    return alt.X(f"{field}:Q", title=title, **_logarithmic(low, high))


def log_y(field: str, title: str, low: float, high: float) -> Y:
    """A logarithmic vertical axis that ends with the data."""
    import altair as alt

    return alt.Y(f"{field}:Q", title=title, **_logarithmic(low, high))


def epsilon_y(delta: float, log: tuple[float, float] | None = None, between: tuple[float, float] | None = None) -> Y:
    """The vertical axis of epsilon: from zero; or logarithmic, or linear, between two bounds."""
    import altair as alt

    title = f"epsilon at delta {spell_exact(delta)}"
    if log is not None:
        return alt.Y("epsilon:Q", title=f"{title} (log scale)", **_logarithmic(*log))
    if between is not None:
        scale = alt.Scale(domain=between, nice=False, zero=False)
        return alt.Y("epsilon:Q", title=title, scale=scale, axis=alt.Axis(tickCount=6))
    return alt.Y("epsilon:Q", title=title, **from_zero())


def from_zero() -> Ruler:
    """A linear axis that begins at zero and ends with a tick, so that titles of panels side by side are level."""
    import altair as alt

    return {"scale": alt.Scale(zero=True, nice=6), "axis": alt.Axis(tickCount=6)}


def _logarithmic(low: float, high: float) -> Ruler:
    """Ticks at powers of ten, and between these where there are few."""
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
