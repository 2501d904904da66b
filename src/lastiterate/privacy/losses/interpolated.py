"""The loss of a mixture with many values, or with a law that is only known by its transform, by piecewise polynomials.

Lines need a loss at tens of thousands of x. Every panel is halved until the last Chebyshev coefficients have vanished.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lastiterate.arrays import FloatArray
from lastiterate.privacy.losses.mixture import Local, Mixture
from lastiterate.privacy.mixtures.contour import Unreliable

_DEGREE = 24
_LAST = 3  # coefficients that have to vanish
_VANISHED = 2e-15  # against the largest one
_FIRST_PANELS = 8
_MOST_PANELS = 4000
_LEAST_WIDTH = 1e-9
_ANGLE = np.pi * (np.arange(_DEGREE) + 0.5) / _DEGREE
_NODES = np.cos(_ANGLE)
_TO_COEFFICIENTS = np.cos(np.multiply.outer(np.arange(_DEGREE), _ANGLE)) * (2.0 / _DEGREE)
_TO_COEFFICIENTS[0] *= 0.5


@dataclass(frozen=True, eq=False)
class Interpolated:
    """A mixture whose loss is interpolated between ``ends[0]`` and ``ends[-1]``."""

    mixture: Mixture
    ends: FloatArray
    coefficients: FloatArray  # [loss, slope or curvature; panel; order]
    is_quick = False

    @property
    def steepest(self) -> float:
        return self.mixture.steepest

    @property
    def known(self) -> dict[tuple[float, float], Mixture]:
        return self.mixture.known

    @property
    def rounding(self) -> float:
        return self.mixture.rounding

    @property
    def jump(self) -> float:
        return self.mixture.jump

    @property
    def unseen(self) -> float:
        return self.mixture.unseen

    def at(self, x: FloatArray) -> Local:
        return Local(*(self._values(x, which) for which in range(3)))

    def loss(self, x: FloatArray) -> FloatArray:
        return self._values(x, 0)

    def _values(self, x: FloatArray, which: int) -> FloatArray:
        """The loss, or one of its derivatives, by Clenshaw's recurrence."""
        panel = np.clip(np.searchsorted(self.ends, x, side="right") - 1, 0, self.ends.size - 2)
        low, high = self.ends[panel], self.ends[panel + 1]
        place = np.clip((2.0 * x - low - high) / (high - low), -1.0, 1.0)
        columns = np.ascontiguousarray(self.coefficients[which].T)
        now, before = np.zeros_like(place), np.zeros_like(place)
        for order in range(_DEGREE - 1, 0, -1):
            now, before = columns[order][panel] + 2.0 * place * now - before, now
        result: FloatArray = columns[0][panel] + place * now - before
        return result

    def spread(self, left: FloatArray, right: FloatArray) -> FloatArray:
        raise Unreliable  # nothing is proved here

    def within(self, low: float, high: float) -> Mixture:
        return self.mixture.within(low, high)

    def tails(self, x: float) -> tuple[float, float, float, float]:
        return self.mixture.tails(x)

    def far(self, log_tail: float) -> float:
        return self.mixture.far(log_tail)


def interpolated(mixture: Mixture, low: float, high: float) -> Interpolated:
    """The same mixture for x in between."""
    waiting = np.linspace(low, high, _FIRST_PANELS + 1)
    lows, highs = waiting[:-1], waiting[1:]
    done: list[tuple[FloatArray, FloatArray, FloatArray]] = []
    panels = 0
    while lows.size:
        panels += lows.size
        if panels > _MOST_PANELS:
            raise Unreliable
        half, middle = 0.5 * (highs - lows), 0.5 * (highs + lows)
        values = np.stack(mixture.at(middle[:, None] + half[:, None] * _NODES))
        coefficients = values @ _TO_COEFFICIENTS.T
        size = np.abs(coefficients[0])
        smooth = size[:, -_LAST:].max(axis=1) <= _VANISHED * size.max(axis=1) + mixture.rounding
        smooth |= half < _LEAST_WIDTH * max(abs(low), abs(high), 1.0)
        done.append((lows[smooth], highs[smooth], coefficients[:, smooth]))
        rough = ~smooth
        lows, highs, middle = lows[rough], highs[rough], middle[rough]
        lows, highs = np.concatenate((lows, middle)), np.concatenate((middle, highs))
    starts = np.concatenate([part[0] for part in done])
    order = np.argsort(starts)
    ends = np.append(starts[order], high)
    return Interpolated(mixture, ends, np.concatenate([part[2] for part in done], axis=1)[:, order])
