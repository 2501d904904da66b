"""Chart of a check: ratios of measured over declared values, with intervals, tensor by tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastiterate.common.types import Row
from lastiterate.formatting import describe, spell
from lastiterate.plot.style import alt, chart_of, layered, legend_below, log_x, scale_of, styled

if TYPE_CHECKING:
    from lastiterate.checking.check_result import CheckResult

# Okabe and Ito's colours: bad, unknown, good.
_COLOURS = {"fault": "#D55E00", "cannot tell": "#0072B2", "ok": "#009E73"}
_SHAPES = {"fault": "cross", "cannot tell": "diamond", "ok": "circle"}
_WIDTH, _BAR = 460, 24  # pixels
_LEAST, _MOST = 1e-3, 1e4  # ratios beyond these are drawn at the edge


def check_chart(result: CheckResult) -> alt.LayerChart:
    """Return the chart of ratios of measured over declared values. Rows that declare zero have no ratio."""
    rows = ratio_rows(result)
    numbers = [float(row[key] or 1.0) for row in rows for key in ("low", "ratio", "high")]
    low, high = min([0.5, *numbers]) / 1.1, max([2.0, *numbers]) * 1.1
    x = log_x("ratio", "measured over declared (log scale)", low, high)
    y = alt.Y("name:N", title=None, sort=None, axis=alt.Axis(labelLimit=320))
    colour = alt.Color("status:N", scale=scale_of(_COLOURS), legend=legend_below())
    shape = alt.Shape("status:N", scale=scale_of(_SHAPES), legend=legend_below())
    one = chart_of([{"ratio": 1.0}]).mark_rule(strokeDash=[6, 4], color="#777").encode(x=x)
    ends = log_x("low", "", low, high)
    lines = chart_of(rows).mark_rule(strokeWidth=2.5).encode(x=ends, x2="high:Q", y=y, color=colour)
    points = chart_of(rows).mark_point(size=80, filled=True, opacity=1).encode(x=x, y=y, color=colour, shape=shape)
    chart = layered(one, lines, points).properties(width=_WIDTH, height=_BAR * max(len(rows), 1))
    words = [describe(result.run), result.sentence, result.error_sentence, *result.notes]
    words += [
        f"{row.name}: {row.status}, {'nothing' if row.measured is None else spell(row.measured)} where 0 is declared."
        for row in result.rows
        if row.declared == 0.0
    ]
    found = [f"{row.title}: {row.smallest_fault}" for row in result.rows if row.smallest_fault]
    words += [f"Would have found: {'; '.join(found)}."] if found else []
    return styled(chart, "Does training match its declared settings?", words, 90)


def ratio_rows(result: CheckResult) -> list[Row]:
    """Return the rows to draw, which have a measured value and a nonzero declared value."""
    found: list[Row] = []
    for row in result.rows:
        if not row.declared or row.measured is None:
            continue
        low, high = (row.measured if end is None else end for end in (row.low, row.high))
        numbers = {"ratio": row.measured, "low": low, "high": high}
        ratios = {key: min(max(value / row.declared, _LEAST), _MOST) for key, value in numbers.items()}
        name = f"{row.name} ({row.tensor})" if row.tensor else row.name
        found.append({"name": name, "status": row.status, **ratios})
    return found
