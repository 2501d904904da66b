"""Whether a canary, however small, changes how much others count, or how large a step is.

Two canaries below the clipping norm, along the same direction, tell what a canary of norm zero would do: nothing,
unless sums are divided by the size that a batch turned out to have, or there are more steps with it.
"""

from __future__ import annotations

import numpy as np

from lastiterate.arrays import FloatArray
from lastiterate.checking.canaries import LARGER, SMALL
from lastiterate.checking.clipping import is_there_anyway
from lastiterate.checking.effects import Effect
from lastiterate.checking.row import Row, Status, cannot_tell

PRESENCE = "normalisation"
_CURVATURES = 6.0  # how many times the curvature that was seen there may be
_UNCLEAR = 0.3  # clipping norms that are too many, even if curvature may explain them
_DISPLACED = 0.05  # clipping norms a participation


def presence_row(small: Effect, larger: Effect, loud: Effect, clip: float, floor: float) -> Row:
    """What the mere presence of a canary does, in clipping norms for each time that it took part."""
    if not (small.shared and larger.shared) or not small.along:
        why = "models with and without a canary do not share noise and batches"
        return cannot_tell(PRESENCE, 0.0, why)
    share = SMALL / (LARGER - SMALL)
    nothing = (1.0 + share) * small.rest - share * larger.rest
    unit = abs(small.along) / SMALL
    measured = float(np.linalg.norm(nothing)) / unit
    # The parabola through all three: what it says otherwise is curvature of higher order, or clipping.
    bent = _at_zero([SMALL, LARGER, max(clip, 1.1 * LARGER)], [small.rest, larger.rest, loud.rest])
    unsure = floor * (1.0 + 2.0 * share) / unit + _CURVATURES * float(np.linalg.norm(nothing - bent)) / unit
    if is_there_anyway(larger, small):
        unsure = floor * (1.0 + 2.0 * share) / unit
    low, high = max(0.0, measured - unsure), measured + unsure
    status: Status = "fault" if low > _DISPLACED else "ok" if measured < _UNCLEAR else "cannot tell"
    why = (
        "a canary changes what others do, however small it is: look whether sums are divided by the batch size that "
        "was drawn instead of the expected one, examples are clipped in groups, or the number of steps depends on data"
    )
    return Row(PRESENCE, None, measured, 0.0, low, high, status, why if status == "fault" else "")


def _at_zero(sizes: list[float], values: list[FloatArray]) -> FloatArray:
    """The polynomial through values at these sizes, at size zero (Lagrange)."""
    weights = [np.prod([other / (other - size) for other in sizes if other != size]) for size in sizes]
    return np.asarray(sum(weight * value for weight, value in zip(weights, values, strict=True)))
