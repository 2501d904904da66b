"""Parameters that no gradient moves, such as weights of pixels that are always black: they show steps as they are.

What a canary does there is the sum of its steps' weights, to the last digit, whatever curvature does elsewhere. So they
are known by their effects, which are all the same where others differ; their noise is just that declared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lastiterate.arrays import BoolArray, FloatArray, IntArray
from lastiterate.checking.effects import Effect

_FEWEST = 8  # parameters that agree by accident are fewer
_SHARP = 0.01  # of how much effects differ: within so little of each other few agree by accident
_STANDS_OUT = 4  # times as many as agree anywhere else
_ROUNDINGS = 1.5
_EXACT = 1e-9  # relative, of float64


def dead_parameters(effects: Sequence[Effect], floor: float) -> IntArray | None:
    """Parameters without gradients, as all effects that bend show them; None: there are none, or none is seen.

    ``floor`` is what rounding does to an effect.
    """
    found: IntArray | None = None
    for effect in effects:
        which = np.flatnonzero(effect.direction)
        if not effect.took_part or len(which) < 2 * _FEWEST:
            continue
        shares = effect.along + effect.rest[which] / effect.direction[which]
        width = _ROUNDINGS * floor + _EXACT * abs(effect.along)
        if width > _SHARP * float(shares.std()):
            continue  # too straight, or rounded too coarsely, to tell them
        same = which[_densest(shares, width)]
        found = same if found is None else np.intersect1d(found, same)
    return None if found is None or len(found) < _FEWEST else np.asarray(found, np.int64)


def _densest(shares: FloatArray, width: float) -> IntArray:
    """Where most numbers agree, if others differ: curvature that is the same for many makes groups, too."""
    among = _most_alike(shares, width)
    others = shares[~among]
    if len(others) < _FEWEST or np.count_nonzero(among) < _STANDS_OUT * np.count_nonzero(_most_alike(others, width)):
        return np.zeros(0, np.int64)
    if float(np.median(shares)) > shares[among].max():  # what is pulled least is not pulled at all
        return np.zeros(0, np.int64)
    return np.flatnonzero(among)


def _most_alike(shares: FloatArray, width: float) -> BoolArray:
    order = np.sort(shares)
    counts = np.searchsorted(order, order + width, "right") - np.arange(len(order))
    begin = order[int(np.argmax(counts))]
    return np.asarray((shares >= begin) & (shares <= begin + width))
