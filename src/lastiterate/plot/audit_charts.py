"""The picture of an audit: scores, errors and epsilons together."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from lastiterate.plot.epsilons import epsilon_panel
from lastiterate.plot.histogram import histogram_panel
from lastiterate.plot.roc import roc_panel
from lastiterate.plot.style import chart_of, layered, styled, verdict_colour
from lastiterate.plot.waterfall import waterfall_panel
from lastiterate.wording import caveat_of, describe, spell_exact

if TYPE_CHECKING:
    from altair import HConcatChart, LayerChart, VConcatChart

    from lastiterate.auditing.evidence.result import AuditResult

    Concatenated = TypeVar("Concatenated", HConcatChart, VConcatChart)

_WIDTH, _HEIGHT = 420, 300  # of a panel that has a neighbour
_BOTH = 2 * _WIDTH + 100  # of one below two, with what is between these
_WORD = 24  # of the verdict's height


def audit_chart(result: AuditResult) -> VConcatChart:
    """All of them in one picture, with what was run, how it was attacked and what that shows."""
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
    """Legends stay with their panels."""
    resolved: Concatenated = panels.resolve_scale(color="independent", fill="independent", strokeDash="independent")
    return resolved


def _verdict(result: AuditResult) -> LayerChart:
    """The verdict in its colour, behind a bar of it."""
    import altair as alt

    colour = verdict_colour(result.verdict)
    row = chart_of([{"verdict": f"Verdict: {result.verdict}"}])
    bar = row.mark_rect(color=colour).encode(x=alt.value(0), x2=alt.value(8), y=alt.value(0), y2=alt.value(_WORD))
    word = row.mark_text(align="left", baseline="middle", fontSize=17, fontWeight="bold", color=colour)
    text = word.encode(x=alt.value(18), y=alt.value(_WORD / 2), text="verdict:N")
    return layered(bar, text).properties(width=_BOTH, height=_WORD, view=alt.ViewBackground(stroke=None))
