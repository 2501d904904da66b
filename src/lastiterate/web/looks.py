"""How analyses look in the pictures of pages: as in all others, and by lighter colours in the dark."""

from __future__ import annotations

from lastiterate.plot.style import colour_of, dash_of
from lastiterate.rows import Fields
from lastiterate.vocabulary import ANALYSES

# Okabe and Ito's sky blue and their like, which stand out from black as the others do from white.
IN_THE_DARK = {
    "#0072B2": "#56B4E9",
    "#D55E00": "#F08A48",
    "#009E73": "#3CC79C",
    "#CC79A7": "#E0A3C4",
    "#222222": "#E4E4E4",
}


def looks() -> Fields:
    """Colour, colour in the dark and dash of each analysis, by its label."""
    return {
        each.label: {
            "light": colour_of(each.label),
            "dark": IN_THE_DARK.get(colour_of(each.label), colour_of(each.label)),
            "dash": dash_of(each.label),
        }
        for each in ANALYSES.values()
    }
