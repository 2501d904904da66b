"""Charts of an audit: scores, errors and epsilons in one picture, and separately for web pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from lastiterate.formatting import caveat_of, describe, spell_exact
from lastiterate.plot.chart_file import Spec
from lastiterate.plot.epsilons import epsilon_panel
from lastiterate.plot.histogram import histogram_panel
from lastiterate.plot.page_assets import harmless
from lastiterate.plot.roc import growth_panel, roc_panel, waterfall_panel
from lastiterate.plot.style import chart_of, configured, layered, styled, verdict_colour

if TYPE_CHECKING:
    from altair import LayerChart

    from lastiterate.auditing.evidence.audit_result import AuditResult

if TYPE_CHECKING:
    from altair import HConcatChart, LayerChart, VConcatChart

    from lastiterate.auditing.evidence.audit_result import AuditResult

    Concatenated = TypeVar("Concatenated", HConcatChart, VConcatChart)

_WIDTH, _HEIGHT = 420, 300  # pixels of a panel with a neighbour
_BOTH = 2 * _WIDTH + 100  # width of a panel below two, including the space between these
_WORD = 24  # height of the verdict in pixels


def audit_chart(result: AuditResult) -> VConcatChart:
    """Return all panels in one picture, with the run, the attack and the reason for the verdict."""
    import altair as alt

    scores, errors = histogram_panel(result, _WIDTH, _HEIGHT), roc_panel(result, _WIDTH, _HEIGHT)
    above = _with_own_legends(alt.hconcat(scores, errors, spacing=36))
    below = [epsilon_panel(result, _BOTH), *([waterfall_panel(result, _BOTH)] if result.waterfall else [])]
    panels = _with_own_legends(alt.vconcat(_verdict(result), above, *below, spacing=28))
    words = [
        f"{describe(result.run)}; delta {spell_exact(result.delta)}",
        f"Attack: {result.attack}",
        result.reason,
        f"{caveat_of(result.run)} An empirical epsilon is a lower bound, for this attack.",
    ]
    return styled(panels, "What an attack found in the released model", words, width=145)


def _with_own_legends(panels: Concatenated) -> Concatenated:
    """Keep each legend with its panel."""
    resolved: Concatenated = panels.resolve_scale(color="independent", fill="independent", strokeDash="independent")
    return resolved


def _verdict(result: AuditResult) -> LayerChart:
    """Return the verdict in its colour, after a bar of the same colour."""
    import altair as alt

    colour = verdict_colour(result.verdict)
    row = chart_of([{"verdict": f"Verdict: {result.verdict}"}])
    bar = row.mark_rect(color=colour).encode(x=alt.value(0), x2=alt.value(8), y=alt.value(0), y2=alt.value(_WORD))
    word = row.mark_text(align="left", baseline="middle", fontSize=17, fontWeight="bold", color=colour)
    text = word.encode(x=alt.value(18), y=alt.value(_WORD / 2), text="verdict:N")
    return layered(bar, text).properties(width=_BOTH, height=_WORD, view=alt.ViewBackground(stroke=None))


# Page charts: fitted to a width, without titles, which the page itself shows.

LEAST, MOST = 300, 1200  # range of the width of a picture, in pixels
_AXIS = 72  # pixels of an axis with its labels
_MARGIN = 12
_PAGE_HEIGHT = 270


@dataclass(frozen=True)
class PageChart:
    """A chart with its caption.

    Attributes:
        title: the title.
        words: what a reader must know.
        description: alternative text for readers who do not see the chart.
        spec: the Vega-Lite specification.
    """

    title: str
    words: str
    description: str
    spec: Spec


def page_charts(result: AuditResult, width: int, growth: Sequence[tuple[int, float]] = ()) -> dict[str, PageChart]:
    """Return all charts of an audit by name. ``growth`` is the anytime-valid bound by number of models, if any."""
    whole = min(max(width, LEAST), MOST)
    inner, bars = whole - _AXIS, whole - _MARGIN
    charts = {
        "scores": _chart(
            histogram_panel(result, inner, _PAGE_HEIGHT),
            "Histograms of the scores of models with and without the canary.",
        ),
        "errors": _chart(
            roc_panel(result, inner, _PAGE_HEIGHT),
            "False negative rate against false positive rate of the attack, on log axes.",
        ),
        "epsilons": _chart(epsilon_panel(result, bars), "Epsilon by each analysis and by each method of estimation."),
    }
    if result.waterfall:
        charts["waterfall"] = _chart(
            waterfall_panel(result, bars), "From the guarantee down to what was found, level by level."
        )
    if growth:
        panel = growth_panel(result, growth, inner, _PAGE_HEIGHT)
        charts["growth"] = _chart(panel, "The bound on epsilon after each number of models.")
    return charts


def _chart(panel: LayerChart, description: str) -> PageChart:
    title, lines = panel.title.text, panel.title.subtitle
    spec = configured(panel.properties(background="white", padding=4)).to_dict(validate=False)
    del spec["title"]
    spec = harmless({**spec, "description": description})
    return PageChart(str(title), " ".join(lines), description, spec)
