"""Axes of pictures: where they begin and end, and where their ticks are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypedDict

from lastiterate.wording import spell_exact

if TYPE_CHECKING:
    from altair import Axis, Scale, X, Y


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
