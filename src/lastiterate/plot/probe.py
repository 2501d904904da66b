"""What the pictures of counterexamples share: the example's own epsilon, horizontal levels, and what attacks found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lastiterate.plot.style import FOUND, Row, chart_of, colour_of, found_shape, looks, styled
from lastiterate.wording import CAVEAT, describe, per_cent

if TYPE_CHECKING:
    from lastiterate.counterexamples.probe import Probe


def level(field: str, ends: tuple[float, float], label: str, epsilon: float | None) -> list[Row]:
    """Rows of a horizontal line between two values of ``field``; none where there is no epsilon."""
    return [] if epsilon is None else [{field: end, "analysis": label, "epsilon": epsilon} for end in ends]


def lines(rows: list[Row], x: Any, y: Any) -> Any:
    """One line for each label under ``analysis``: analyses as in every picture, and the example's exact epsilon."""
    marks = chart_of(rows).mark_line(strokeWidth=2.5, interpolate="monotone", clip=True)
    return marks.encode(x=x, y=y, **looks(row["analysis"] for row in rows))


def points(rows: list[Row], x: Any, y: Any) -> Any:
    """What attacks found: lower bounds, under ``epsilon``."""
    chart = chart_of([{**row, "found": FOUND} for row in rows])
    marks = chart.mark_point(filled=True, size=100, opacity=1.0, color=colour_of(FOUND))
    return marks.encode(x=x, y=y, shape=found_shape({FOUND: "circle"}))


def picture(found: Probe, title: str, layers: Sequence[Any], *more: str) -> Any:
    """The finished picture: layers over each other, the run and what a point means under the title."""
    import altair as alt

    setting = found.setting
    words = [
        describe(found.run),
        f"Point: at least this was found, at {per_cent(setting.confidence)} confidence, with {setting.models:,} models "
        "in each world.",
        f"Method: {found.cases[-1].method}.",
    ]
    layered = alt.layer(*layers).properties(width=620, height=340)
    return styled(layered, title, [*words, *more, CAVEAT], width=92)
