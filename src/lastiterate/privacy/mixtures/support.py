"""Kernel (a): S + N against N, summed over the support of S, as in the paper's Appendix A.

``noise`` is a number or an array, each entry a problem of its own; ``points`` and ``log_mass``, the support of S and
its log-probabilities, have one more axis, the last. With x_s = (y - s) / noise and Mills' ratio M,

    P(>= y) - e^f Q(>= y) = sum over s of  p_s phi(x_s) (M(x_s) - M(x_0)),

a sum of positive terms: nothing cancels, however close P and Q are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import erfc, erfcx, log_ndtr

from lastiterate.privacy.mixtures.rows import SQRT_HALF, Side, beside_points, every, pick, some

if TYPE_CHECKING:
    from lastiterate.arrays import FloatArray, Floats

_LOG_TWO = float(np.log(2.0))
_FAR = 30.0
_WHOLE = 1e-13


@dataclass(frozen=True)
class Support:
    """The pair where S has (or, near a threshold, might as well have) these points. Points must not be negative."""

    noise: Floats
    points: FloatArray
    log_mass: FloatArray

    def remove(self, y: Floats) -> Side:
        """P over Q: the set is {>= y}, y >= 0."""
        x, x0 = (beside_points(y) - self.points) / beside_points(self.noise), y / self.noise
        top, density = _scaled(self.log_mass - 0.5 * x * x)
        mills0 = erfcx(SQRT_HALF * x0)
        if every(x[..., -1] > 0.0):
            tail_top, tail = top, np.vecdot(density, erfcx(SQRT_HALF * x) - mills0[..., None])
        else:  # left of y tails are near one, where Mills' ratio would overflow
            right, left = np.maximum(x, 0.0), np.minimum(x, 0.0)
            tail_top, mass = _scaled(self.log_mass - 0.5 * right * right)
            mills = erfcx(SQRT_HALF * right) + (erfc(SQRT_HALF * left) - 1.0)
            tail = np.vecdot(mass, mills - mills0[..., None] * np.exp(-0.5 * left * left))
        total = np.add.reduce(density, -1)
        slope = np.vecdot(density, self.points) / (total * self.noise * self.noise)
        return Side(
            loss=np.log(total) + (top + 0.5 * x0 * x0),
            loss_slope=slope,
            log_delta=np.log(tail) + (tail_top - _LOG_TWO),
            log_delta_slope=-slope * total * mills0 * np.exp(top - tail_top) / tail,
        )

    def add(self, r: Floats) -> Side:
        """Q over P: the set is {<= y}, y = -r, so that as in `remove` delta falls and the loss -f rises along r."""
        y = -r
        x, x0 = (beside_points(y) - self.points) / beside_points(self.noise), y / self.noise
        top, density = _scaled(self.log_mass - 0.5 * x * x)
        total = np.add.reduce(density, -1)
        loss = np.log(total) + (top + 0.5 * x0 * x0)
        slope = np.vecdot(density, self.points) / (total * self.noise * self.noise)
        mills = erfcx(-SQRT_HALF * np.minimum(x, _FAR))
        mills0 = erfcx(-SQRT_HALF * np.minimum(x0, _FAR))
        log_scale = -0.5 * x0 * x0 - _LOG_TWO
        log_delta = np.log(np.vecdot(density, mills0[..., None] - mills) / total) + log_scale
        log_shared = np.log(np.vecdot(density, mills) / total) + log_scale  # e^-f P(<= y)
        if some(x0 >= _FAR):  # Q(<= y) = 1 to the last digit, and Mills' ratio would overflow
            far = self.log_lower(y) - loss
            log_shared = pick(x0 < _FAR, log_shared, far)
            log_delta = pick(x0 < _FAR, log_delta, np.log1p(-np.exp(np.minimum(far, 0.0))))
        return Side(-loss, slope, log_delta, -slope * np.exp(log_shared - log_delta))

    def loss(self, y: Floats) -> tuple[Floats, Floats]:
        """The privacy loss f(y) = log p(y) / q(y), and its derivative: the mean of S given y, over noise^2."""
        square = self.noise * self.noise
        of_point = self.points * ((beside_points(y) - 0.5 * self.points) / beside_points(square))
        top, ratio = _scaled(self.log_mass + of_point)
        total = np.add.reduce(ratio, -1)
        loss = np.log(total) + top
        if some(np.abs(loss) < 0.5):
            loss = self._small_loss(of_point, loss)
        return loss, np.vecdot(ratio, self.points) / (total * square)

    def _small_loss(self, of_point: FloatArray, loss: Floats) -> Floats:
        """The loss by the sum of mass times (ratio - 1): with the digits that 1 swamps in that of mass times ratio."""
        mass = np.exp(self.log_mass)
        excess = np.where(of_point < 1.0, mass * np.expm1(of_point), np.exp(self.log_mass + of_point) - mass)
        small = (np.abs(loss) < 0.5) & (np.abs(np.add.reduce(mass, -1) - 1.0) < _WHOLE)  # the points are all there are
        return pick(small, np.log1p(np.add.reduce(excess, -1)), loss)

    def log_lower(self, y: Floats) -> Floats:
        """log P(S + N <= y)."""
        return _log_sum(self.log_mass + log_ndtr((beside_points(y) - self.points) / beside_points(self.noise)))

    def log_upper(self, y: Floats) -> Floats:
        """log P(S + N >= y)."""
        return _log_sum(self.log_mass + log_ndtr((self.points - beside_points(y)) / beside_points(self.noise)))


def _scaled(logs: FloatArray) -> tuple[Floats, FloatArray]:
    """The largest of each problem's logarithms, and what they are the logarithms of, in units of it."""
    top: Floats = logs.max(-1)
    return top, np.exp(logs - beside_points(top))


def _log_sum(logs: FloatArray) -> Floats:
    top, values = _scaled(logs)
    total: Floats = top + np.log(np.add.reduce(values, -1))
    return total
