"""Charts of an audit: scores, errors and epsilons in one picture, and separately for web pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lastiterate.auditing.evidence.audit_result import AuditResult
from lastiterate.common.types import Fields
from lastiterate.formatting import caveat_of, describe, spell_exact
from lastiterate.plot.chart_file import Spec
from lastiterate.plot.epsilons import epsilon_panel
from lastiterate.plot.histogram import histogram_panel
from lastiterate.plot.page_assets import harmless
from lastiterate.plot.roc import growth_panel, roc_panel, waterfall_panel
from lastiterate.plot.style import alt, chart_of, configured, layered, styled, verdict_colour

_WIDTH, _HEIGHT = 420, 300  # pixels of one of two panels side by side
_BOTH = 2 * _WIDTH + 100  # width of a panel below two panels, including the space between them
_WORD = 24  # height of the verdict in pixels
_OWN_LEGENDS: Fields = {"color": "independent", "fill": "independent", "strokeDash": "independent"}


def audit_chart(result: AuditResult) -> alt.VConcatChart:
    """Return all panels in one picture, with the run, the attack and the reason for the verdict."""
    scores, errors = histogram_panel(result, _WIDTH, _HEIGHT), roc_panel(result, _WIDTH, _HEIGHT)
    above = alt.hconcat(scores, errors, spacing=36).resolve_scale(**_OWN_LEGENDS)
    below = [epsilon_panel(result, _BOTH), *([waterfall_panel(result, _BOTH)] if result.waterfall else [])]
    panels: alt.VConcatChart = alt.vconcat(_verdict(result), above, *below, spacing=28).resolve_scale(**_OWN_LEGENDS)
    words = [
        f"{describe(result.run)}; delta {spell_exact(result.delta)}",
        f"Attack: {result.attack}",
        result.reason,
        result.strength.words,
        f"{caveat_of(result.run)} An empirical epsilon is a lower bound, for this attack.",
    ]
    return styled(panels, "What an attack found in the released model", words, width=145)


def _verdict(result: AuditResult) -> alt.LayerChart:
    colour = verdict_colour(result.verdict)
    row = chart_of([{"verdict": result.headline}])
    bar = row.mark_rect(color=colour).encode(x=alt.value(0), x2=alt.value(8), y=alt.value(0), y2=alt.value(_WORD))
    word = row.mark_text(align="left", baseline="middle", fontSize=17, fontWeight="bold", color=colour)
    text = word.encode(x=alt.value(18), y=alt.value(_WORD / 2), text="verdict:N")
    return layered(bar, text).properties(width=_BOTH, height=_WORD, view=alt.ViewBackground(stroke=None))


# Page charts: fitted to a width, without titles, which the page itself shows.

LEAST, MOST = 300, 1200  # range of the width of a picture, in pixels
_AXIS = 72  # pixels of an axis with its labels
_MARGIN = 12
_PAGE_HEIGHT = 270
_DESCRIPTIONS = {
    "scores": "Histograms of the scores of models with and without the canary.",
    "errors": "False negative rate against false positive rate of the attack, on log axes.",
    "waterfall": "From the guarantee down to what was found, level by level.",
    "growth": "The bound on epsilon after each number of models.",
}


@dataclass(frozen=True)
class PageChart:
    """A chart with its caption, and a description for readers who do not see it."""

    title: str
    words: str
    description: str
    spec: Spec


def page_charts(result: AuditResult, width: int, growth: Sequence[tuple[int, float]] = ()) -> dict[str, PageChart]:
    """Return the charts of a page by name. ``growth`` has pairs of a number of models and an anytime-valid bound."""
    whole = min(max(width, LEAST), MOST)
    inner, bars = whole - _AXIS, whole - _MARGIN
    panels = {
        "scores": histogram_panel(result, inner, _PAGE_HEIGHT),
        "errors": roc_panel(result, inner, _PAGE_HEIGHT),
    }
    if result.waterfall:
        panels["waterfall"] = waterfall_panel(result, bars)
    if growth:
        panels["growth"] = growth_panel(result, growth, inner, _PAGE_HEIGHT)
    charts = {}
    for name, panel in panels.items():
        spec = configured(panel.properties(background="white", padding=4)).to_dict(validate=False)
        del spec["title"]
        spec = harmless({**spec, "description": _DESCRIPTIONS[name]})
        charts[name] = PageChart(str(panel.title.text), " ".join(panel.title.subtitle), _DESCRIPTIONS[name], spec)
    return charts
