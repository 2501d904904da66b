"""The highest point of a function with several peaks, on the unit interval or square."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Generic, TypeVar

import numpy as np

from lastiterate.arrays import FloatArray

_POINTS = {1: 25, 2: 13}  # of a lattice along each axis, by the number of axes
_PEAKS = 3  # of a lattice that are climbed

Thing = TypeVar("Thing")


class Tried(Generic[Thing]):
    """Minus the height, for an optimiser; remembers the highest of all that it tried."""

    def __init__(self, at: Callable[[FloatArray], Thing], height: Callable[[Thing], float]) -> None:
        self._at, self._height = at, height
        self._highest: Thing | None = None

    def __call__(self, place: FloatArray) -> float:
        new = self._at(place)
        if self._highest is None or self._height(new) > self._height(self._highest):
            self._highest = new
        return -self._height(new)

    def highest(self) -> Thing:
        if self._highest is None:
            raise RuntimeError("nothing was tried")
        return self._highest


def climb(at: Callable[[FloatArray], Thing], height: Callable[[Thing], float], axes: int) -> Thing:
    """The highest found: on a lattice, then uphill from the highest of its points that overtop all around."""
    from scipy.optimize import minimize

    tried = Tried(at, height)
    places = np.linspace(0.0, 1.0, _POINTS[axes])
    heights = np.array([-tried(np.array(place)) for place in product(places, repeat=axes)])
    heights = heights.reshape((places.size,) * axes)
    for peak in sorted(_peaks(heights), key=lambda index: -heights[index])[:_PEAKS]:
        start = places[list(peak)]
        aside = start + np.diag(np.where(start > 0.5, -0.5, 0.5) * places[1])
        options = {"initial_simplex": np.vstack((start, aside)), "xatol": 1e-4, "fatol": 1e-9}
        minimize(lambda place: tried(np.clip(place, 0.0, 1.0)), start, method="Nelder-Mead", options=options)
    return tried.highest()


def _peaks(heights: FloatArray) -> list[tuple[int, ...]]:
    """The points of a lattice that no neighbour exceeds."""
    padded = np.pad(heights, 1, constant_values=-np.inf)
    around = {index: padded[tuple(slice(i, i + 3) for i in index)].max() for index in np.ndindex(*heights.shape)}
    return [index for index, highest in around.items() if heights[index] >= highest]
