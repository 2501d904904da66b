"""Gradients that a training is given as one more example's: shapes that tell one way to clip from another.

``spread`` is on all tensors, with the same norm on each, and on all coordinates of a tensor alike, with random signs:
whoever clips by layer, column or coordinate lets more than the clipping norm through. The signs are random so that what
else happens in a training has nothing to do with them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lastiterate.arrays import FloatArray
from lastiterate.checking.parameters import Parameters

SMALL, LARGER = 0.2, 0.75  # norms of canaries that must not be clipped, in clipping norms
ABOVE = 1.4  # the norm of one that must be, in clipping norms: near, to see a norm that is taken for its square
LOUD = 100.0  # clipping norms in the least coordinate of another one that must be


def spread(like: Parameters, tensors: Sequence[int], seed: int) -> FloatArray:
    """A vector of norm 1 on these tensors: of equal norm on each, of equal size in all coordinates of one."""
    rng = np.random.default_rng([seed, 1])
    direction = np.zeros(len(like.vector))
    for tensor in tensors:
        where = like.slices[tensor]
        size = where.stop - where.start
        direction[where] = rng.choice([-1.0, 1.0], size) / np.sqrt(size * len(tensors))
    return direction


def one_coordinate(like: Parameters, tensors: Sequence[int], seed: int) -> tuple[FloatArray, int]:
    """A vector of norm 1 on one coordinate of one of these tensors, and that tensor."""
    rng = np.random.default_rng([seed, 2])
    tensor = int(rng.choice(np.asarray(tensors)))
    where = like.slices[tensor]
    direction = np.zeros(len(like.vector))
    direction[rng.integers(where.start, where.stop)] = rng.choice([-1.0, 1.0])
    return direction, tensor


def loud(direction: FloatArray, clip_norm: float) -> FloatArray:
    """A canary along a direction, so large that every one of its coordinates is above the clipping norm."""
    least = float(np.abs(direction[direction != 0.0]).min())
    return direction * (LOUD * clip_norm / least)
