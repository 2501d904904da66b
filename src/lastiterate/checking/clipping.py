"""To which norm a gradient is clipped, by canaries of one direction and different norms, and by other shapes.

A canary below the clipping norm is not clipped, so that the same direction far above it shows the norm: the steps that
the canary was in, the learning rate and curvature are the same for both and cancel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lastiterate.checking.canary_effects import Effect, along_at_random, restricted
from lastiterate.checking.check_result import LARGER, SMALL, Row, Status, cannot_tell
from lastiterate.checking.declared import Parameters
from lastiterate.common.types import FloatArray, IntArray

NORM, SMALLER, COORDINATE = "clipping norm", "clipping of small gradients", "clipping of one coordinate"
TENSOR, OTHERS = "clipping of one tensor", "clipping of others"
EXACT = 0.02  # relative: of float32 and of curvature of second order, for canaries of one direction
_DIRECTIONS = 0.3  # relative: by which effects in different directions may differ by curvature
_BENDING = 3.0  # how much more a canary above the clipping norm bends than the larger one below, with a margin of two
_ANYWAY = 0.3  # relative difference of two rests that are one; those of both canaries differ by 2.7
_BESIDES = 4.0  # times what effects are besides: by how much two directions may differ
_WIDE = 0.25  # an interval of a ratio that is wider, relatively, tells nothing


def ratio_row(
    name: str, tensor: str | None, top: Effect, bottom: Effect, scale: float, around: float, bent: float = 0.0
) -> Row:
    """``scale`` times the ratio of two effects, which is declared to be 1.

    ``around`` is by how much it may differ, and ``bent`` by how much more it may where effects are not linear.
    """
    measured, low, high = ratio(top, bottom, scale)
    row = Row(name, tensor, measured, 1.0, low, high, "ok")
    if low > 1.0 + around + bent or high < 1.0 - around - bent:
        return replace(row, status="fault")
    if low > 1.0 + around or high < 1.0 - around:
        return replace(row, status="cannot tell", advice=_BENT)
    wide = not np.isfinite(measured) or high - low > 2.0 * _WIDE * max(abs(measured), 1.0)
    return replace(row, status="cannot tell", advice=_UNSHARED) if wide else row


_BENT = "effects are not proportional to the canary, by strong curvature; train for fewer steps or at a smaller rate"
_UNSHARED = "models with and without a canary do not share noise and batches, so that its effect is lost in the noise"


def ratio(top: Effect, bottom: Effect, scale: float) -> tuple[float, float, float]:
    """``scale`` times the ratio of two effects, with its ends.

    Where noise is shared all that moves the ends is that effects are not quite proportional to each other.
    """
    above, below = top.margin, bottom.margin
    if top.shared and bottom.shared and bottom.along:
        above, below = 0.0, 0.0
        if top.direction is bottom.direction:
            above = top.bound * along_at_random(unlike(top, bottom), top.direction)
    if abs(bottom.along) <= below or not bottom.along:
        value = scale * top.along / bottom.along if bottom.along else np.inf
        most = abs(bottom.along) + below
        least = scale * max(abs(top.along) - above, 0.0) / most if most else 0.0
        return value, least, np.inf
    ends = [scale * (top.along + a * above) / (bottom.along + b * below) for a in (-1, 1) for b in (-1, 1)]
    return scale * top.along / bottom.along, min(ends), max(ends)


def bent(larger: Effect, small: Effect) -> float:
    """By how much the effect of a canary five times as large may differ by curvature, relatively."""
    if not (larger.shared and small.shared and larger.along and small.along) or is_there_anyway(larger, small):
        return 0.0
    return _BENDING * float(np.linalg.norm(unlike(larger, small))) / abs(larger.along)


def is_there_anyway(larger: Effect, small: Effect) -> bool:
    """Whether what canaries do besides does not depend on their size, as it must, by curvature or else."""
    return float(np.linalg.norm(larger.rest - small.rest)) < _ANYWAY * float(np.linalg.norm(small.rest))


def unlike(top: Effect, bottom: Effect) -> FloatArray:
    """What is left of the rest of an effect if it is taken to be proportional to another one along its direction."""
    return top.rest - bottom.rest * (top.along / bottom.along)


def norm_row(loud: Effect, small: Effect, like: Parameters, tensors: Sequence[int], bent: float) -> Row:
    """The norm to which a gradient on all coordinates of all tensors is clipped, in units of the declared one."""
    row = ratio_row(NORM, None, loud, small, SMALL, EXACT, bent)
    if row.status != "fault":
        return row
    assert row.measured is not None
    return with_advice(row, _kind(row.measured, like, tensors))


def not_finite_row() -> Row:
    """A canary far above the clipping norm breaks the training."""
    why = "with a canary far above the clipping norm parameters become NaN or infinite: gradients are not clipped"
    return Row(NORM, None, None, 1.0, None, None, "fault", why)


def with_advice(row: Row, advice: str) -> Row:
    """The row with a sentence."""
    return replace(row, advice=advice)


def _kind(measured: float, like: Parameters, tensors: Sequence[int]) -> str:
    """Which way to clip would let so much through."""
    shapes = [like.shapes[tensor] for tensor in tensors]
    size = sum(int(np.prod(shape)) for shape in shapes)
    ways = {
        "each tensor by itself (by layer)": len(shapes),
        "each column by itself": sum(int(np.prod(shape[1:])) for shape in shapes),
        "each row by itself": sum(shape[0] if shape else 1 for shape in shapes),
        "each coordinate by itself": size,
    }
    for way, pieces in ways.items():
        if pieces > 1 and abs(measured / np.sqrt(pieces) - 1.0) < 0.03:
            return f"{measured:.4g} = sqrt({pieces}) clipping norms: as if clipping {way}, not the whole gradient"
    if measured > 10.0 * np.sqrt(size):
        return "gradients are not clipped, or not all of them: look where norms are computed and gradients are scaled"
    if measured > 1.0:
        return (
            f"a gradient counts {measured:.3g} clipping norms: look at the norm that is clipped to, at what the norm "
            "is taken of (all tensors of one example), and whether sums or means of several examples are clipped"
        )
    return f"a gradient counts only {measured:.3g} clipping norms: look at the norm that is clipped to"


def small_row(larger: Effect, small: Effect, bent: float) -> Row:
    """Whether gradients below the clipping norm are left as they are."""
    row = ratio_row(SMALLER, None, larger, small, SMALL / LARGER, EXACT, bent)
    if row.status != "fault":
        return row
    why = "gradients below the clipping norm are scaled: they are normalised, or clipped to less than the norm declared"
    return with_advice(row, why)


def coordinate_row(one: Effect, small: Effect, still: IntArray | None, tensor: str, bent: float) -> Row:
    """A canary on one coordinate must count a clipping norm; ``still`` ones show what curvature took from others."""
    bent += _BESIDES * small.spread
    if still is not None and small.along:
        bent += (1.0 + _DIRECTIONS) * max(restricted(small, still).along / small.along - 1.0, 0.0)
    row = ratio_row(COORDINATE, tensor, one, small, SMALL, _DIRECTIONS, bent)
    if row.status == "fault" and row.measured is not None and row.measured < 1.0:
        why = "one coordinate counts less than a clipping norm: curvature along it, or another norm than the Euclidean"
        return replace(row, status="cannot tell", advice=why)
    return with_advice(row, _SHAPE) if row.status == "fault" else row


_SHAPE = (
    "more than a clipping norm: look whether the norm is the Euclidean one of all tensors, and all are scaled by it"
)


_SHARE = "less than a clipping norm: look whether each tensor is clipped by itself, to a share of the norm"


def tensor_row(one: Effect, small: Effect, tensor: str, bent: float) -> Row:
    """A canary on one tensor must count a clipping norm."""
    there = restricted(small, np.flatnonzero(one.direction))
    besides = max(there.spread, small.spread)  # a tensor of one number cannot bend, but others pull it
    row = ratio_row(
        TENSOR, tensor, one, there, SMALL, EXACT + min(_DIRECTIONS, 3.0 * besides), bent + _BESIDES * besides
    )
    if row.status != "fault":
        return row
    assert row.measured is not None
    return with_advice(row, _SHAPE if row.measured > 1.0 else _SHARE)


def others_row(loud: Effect, above: Effect, floor: float) -> Row:
    """Whether a canary far above the clipping norm does what one a little above it does: clipped, they are the same.

    Curvature is the same for both. It is otherwise if a gradient is clipped together with others, which a large one
    takes away from.
    """
    size = float(np.hypot(np.linalg.norm(loud.rest), loud.along))
    if not (loud.shared and above.shared) or not size:
        return cannot_tell(OTHERS, 0.0, _UNSHARED)
    apart = float(np.hypot(np.linalg.norm(loud.rest - above.rest), loud.along - above.along))
    measured, unsure = apart / size, 2.0 * floor / size
    low, high = max(0.0, measured - unsure), measured + unsure
    status: Status = "fault" if low > EXACT else "ok" if unsure < 1.0 else "cannot tell"
    why = (
        "a gradient counts by how far it is above the clipping norm, or takes away from others: look whether sums or "
        "means of examples (micro-batches) are clipped"
    )
    return Row(OTHERS, None, measured, 0.0, low, high, status, why if status == "fault" else "")


# Whether a canary, however small, changes how much others count, or how large a step is.
#
# Two canaries below the clipping norm, along the same direction, tell what a canary of norm zero would do: nothing,
# unless sums are divided by the size that a batch turned out to have, or there are more steps with it.

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
