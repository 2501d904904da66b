"""The pictures of an audit for pages: made to a width, and without titles, which are for the page to tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lastiterate.plot.epsilons import epsilon_panel
from lastiterate.plot.escaping import harmless
from lastiterate.plot.growth import growth_panel
from lastiterate.plot.histogram import histogram_panel
from lastiterate.plot.rendering import Spec
from lastiterate.plot.roc import roc_panel
from lastiterate.plot.style import configured
from lastiterate.plot.waterfall import waterfall_panel

if TYPE_CHECKING:
    from altair import LayerChart

    from lastiterate.auditing.evidence.result import AuditResult

LEAST, MOST = 300, 1200  # pixels that a picture may be wide
_AXIS = 72  # pixels of an axis with its labels
_MARGIN = 12
_HEIGHT = 270


@dataclass(frozen=True)
class PageChart:
    """A picture, and what stands above it.

    Attributes:
        title: what it shows.
        words: what its reader must know.
        description: for those who do not see it.
        spec: of Vega-Lite.
    """

    title: str
    words: str
    description: str
    spec: Spec


def page_charts(result: AuditResult, width: int, growth: Sequence[tuple[int, float]] = ()) -> dict[str, PageChart]:
    """All pictures of an audit, by name; ``growth`` is the bound by numbers of models, if one may watch it."""
    whole = min(max(width, LEAST), MOST)
    inner, bars = whole - _AXIS, whole - _MARGIN
    charts = {
        "scores": _chart(
            histogram_panel(result, inner, _HEIGHT), "Histograms of the scores of models with and without the canary."
        ),
        "errors": _chart(
            roc_panel(result, inner, _HEIGHT),
            "False negative rate against false positive rate of the attack, on log axes.",
        ),
        "epsilons": _chart(epsilon_panel(result, bars), "Epsilon by each analysis and by each method of estimation."),
    }
    if result.waterfall:
        charts["waterfall"] = _chart(
            waterfall_panel(result, bars), "From the guarantee down to what was found, level by level."
        )
    if growth:
        panel = growth_panel(result, growth, inner, _HEIGHT)
        charts["growth"] = _chart(panel, "The bound on epsilon after each number of models.")
    return charts


def _chart(panel: LayerChart, description: str) -> PageChart:
    title, lines = panel.title.text, panel.title.subtitle
    spec = configured(panel.properties(background="white", padding=4)).to_dict(validate=False)
    del spec["title"]
    spec = harmless({**spec, "description": description})
    return PageChart(str(title), " ".join(lines), description, spec)
