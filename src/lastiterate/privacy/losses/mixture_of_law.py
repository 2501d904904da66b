"""From the law of S to the loss of S + N against N: a sum over the values of S, or a transform that is inverted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr

from lastiterate.arrays import FloatArray
from lastiterate.privacy.losses.mixture import LEAST_LOG_MASS, Local, Mixture, Points, binomial_points, falling_root
from lastiterate.privacy.mixtures.contour import Unreliable
from lastiterate.privacy.mixtures.fourier import Contour, Cumulant, contour
from lastiterate.privacy.mixtures.kernels import small_support
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.rounding import rounded
from lastiterate.privacy.mixtures.support import Support

_LEAST = 1e-5  # of a sum against its moduli
_ROUNDING = 3e-14  # of a loss: of logarithms of two densities, each about x^2 / 2 in size
_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


def mixture_of(law: Law, *, up: bool) -> tuple[Mixture, bool]:
    """The mixture that S + N is in units of the noise, and whether it is rounded. S is not negative, nor constant.

    Where noise is too little for the transform, weights are rounded up, which makes S easier to see, or down.
    """
    if law.is_binomial:
        return binomial_points(int(law.counts[0]), float(law.rates[0]), float(law.weights[0]) / law.noise), False
    support = small_support(law)
    if support is not None:
        return _points(support, law.noise), False
    mixture = Transformed(law)
    try:
        mixture.at(np.array([-8.0, 0.0, mixture.mean, mixture.mean + 8.0]))
    except Unreliable:
        return _points(rounded(law)[1 if up else 0].support, law.noise), True
    return mixture, False


def _points(support: Support, noise: float) -> Points:
    kept = support.log_mass > LEAST_LOG_MASS
    return Points(support.points[kept] / noise, support.log_mass[kept])


@dataclass(frozen=True, eq=False)
class Transformed:
    """S has many values: its density under noise is found along contours, each of which serves some x."""

    law: Law
    is_quick = False

    @property
    def mean(self) -> float:
        return self.law.mean / self.law.noise

    @cached_property
    def known(self) -> dict[tuple[float, float], Mixture]:
        return {}

    @property
    def rounding(self) -> float:
        return _ROUNDING

    @property
    def steepest(self) -> float:
        return self.law.high / self.law.noise

    @cached_property
    def jump(self) -> float:
        return Cumulant(self.law).largest_jump / self.law.noise

    @cached_property
    def unseen(self) -> float:
        if self.law.constant > 0.0:
            return 0.0
        chances = [math.log(max(float(chance[values == 0.0].sum()), 1e-320)) for values, chance in self.law.blocks]
        return math.exp(float(self.law.counts @ np.log1p(-self.law.rates)) + math.fsum(chances))

    def at(self, x: FloatArray) -> Local:
        flat = np.ravel(x)
        order = np.argsort(flat)
        columns = np.empty((3, flat.size))
        start = 0
        while start < flat.size:
            y = flat[order[start:]] * self.law.noise
            line = contour(Cumulant(self.law), float(y[0]) + self._step)
            together = order[start : start + int(np.searchsorted(y, y[0] + 2.0 * self._step, side="right"))]
            columns[:, together] = _on_contour(line, flat[together])
            start += together.size
        return Local(*(column.reshape(np.shape(x)) for column in columns))

    def loss(self, x: FloatArray) -> FloatArray:
        return self.at(x).loss

    @property
    def _step(self) -> float:
        """How far from its centre a contour is used."""
        return 0.5 * self.law.noise

    def within(self, low: float, high: float) -> Mixture:
        return self

    def spread(self, left: FloatArray, right: FloatArray) -> FloatArray:
        raise Unreliable  # nothing is proved here

    def tails(self, x: float) -> tuple[float, float, float, float]:
        y = np.float64(x * self.law.noise)
        near = contour(Cumulant(self.law), float(y))
        above = float(ndtr(-x))
        return float(ndtr(x)), math.exp(near.log_lower(y)), above, math.exp(near.log_upper(y)) - above

    def far(self, log_tail: float) -> float:
        def log_upper(x: float) -> float:
            y = np.float64(x * self.law.noise)
            return float(contour(Cumulant(self.law), float(y)).log_upper(y))

        return falling_root(log_upper, log_tail, self.mean, 1e-6)


def _on_contour(near: Contour, x: FloatArray) -> FloatArray:
    """The loss at some x close to each other, and its derivatives."""
    noise, z = near.noise, near.line.z
    exponent = near.line.log_values - np.multiply.outer(x * noise, z)
    scale = exponent.real.max(axis=1)
    terms = np.exp(exponent - scale[:, None])
    density, first, second = (terms.real.sum(axis=1), (terms @ z).real, (terms @ (z * z)).real)
    if not np.all(density > _LEAST * np.abs(terms).sum(axis=1)):
        raise Unreliable
    loss = scale + np.log(density * (near.line.spacing / math.pi * noise)) + 0.5 * x * x + _HALF_LOG_TAU
    slope = x - noise * first / density
    curvature = 1.0 + noise**2 * (second / density - (first / density) ** 2)
    return np.stack((loss, slope, np.maximum(curvature, 0.0)))
