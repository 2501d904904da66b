"""The loss of a step, or of a block of steps, in which the canary may count more or less than once.

The module does for any mixture what `step_loss` does for two values. If one example replaces another (``mirrored``),
the world without the canary is the mixture reflected at 0. The loss is then l(x) - l(-x), where l is the loss against
the noise alone. `mixture_of` makes the mixture from the law of S, by a sum over the values of S or by inverting a
transform.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr, ndtri_exp

from lastiterate.common.types import FloatArray
from lastiterate.privacy.losses.gaussian_mixture import (
    LEAST_LOG_MASS,
    Local,
    Mixture,
    Points,
    binomial_points,
    falling_root,
    interpolated,
)
from lastiterate.privacy.losses.step_loss import BEND, RISE, TURN, Loss, Nodes, log_panel_errors, panel_ellipses
from lastiterate.privacy.mixtures.fourier import Contour, Cumulant, Unreliable, contour
from lastiterate.privacy.mixtures.kernels import small_support
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.pairs import rounded
from lastiterate.privacy.mixtures.support import Support

_UNIT = 4.0  # grid of x: windows that differ little share a cached mixture
_TO_ZERO = 0.5 * math.pi  # distance of the loss' singularities at a bend, times the root of its curvature


@dataclass(frozen=True, eq=False)
class MixtureLoss(Loss):
    """The loss of a mixture; ``remove``, ``log_left_out`` and ``cap`` are as in `StepLoss`."""

    mixture: Mixture
    remove: bool
    log_left_out: float
    cap: float = math.inf
    mirrored: bool = False

    @property
    def density_is_off(self) -> float:
        return 1.0 if self.mirrored else 0.0

    def loss(self, x: FloatArray) -> FloatArray:
        value = self._quick.loss(x)
        return value - self._quick.loss(-x) if self.mirrored else value

    def log_density(self, x: FloatArray) -> FloatArray | float:
        return self._quick.loss(-x) if self.mirrored else 0.0

    def moved(self, x: FloatArray) -> FloatArray:
        """Return the error of the loss in ulps: an ulp of x, each a and each a^2 / 2, and some of each probability."""
        return self._moved(x) + self._moved(-x) if self.mirrored else self._moved(x)

    def _moved(self, x: FloatArray) -> FloatArray:
        local = self._quick.at(x)
        probabilities = 8.0 * np.minimum(1.0, local.slope / max(self.mixture.jump, 1e-300))
        return 2.0 * np.abs(x) * local.slope + local.curvature + local.slope**2 + probabilities

    @property
    def steepest(self) -> float:
        return self.mixture.steepest

    @cached_property
    def window(self) -> tuple[float, float]:
        return float(ndtri_exp(self.log_left_out - math.log(2.0))), min(self._far, self._at_cap)

    @property
    def is_capped(self) -> bool:
        return self._at_cap < self._far

    @cached_property
    def _far(self) -> float:
        log_quarter = self.log_left_out - math.log(4.0)
        return self.mixture.far(log_quarter) if self.remove else -float(ndtri_exp(log_quarter))

    @cached_property
    def _at_cap(self) -> float:
        if not math.isfinite(self.cap):
            return math.inf

        def minus_loss(x: float) -> float:
            at = np.array([x])
            value = self.mixture.at(at).loss - (self.mixture.at(-at).loss if self.mirrored else 0.0)
            return -float(value[0])

        return falling_root(minus_loss, -self.cap, 0.0) if self.cap > 0.0 else -math.inf

    @cached_property
    def above(self) -> tuple[float, float]:
        high = self.window[1]
        _, _, without, more = self.mixture.tails(high)
        if not self.mirrored:
            return without, more
        turned = self.mixture.tails(-high)[1]
        return turned, without + more - turned

    @cached_property
    def outside(self) -> tuple[float, float]:
        low = self.window[0]
        out, shifted, _, _ = self.mixture.tails(low)
        if self.mirrored:
            _, _, without, more = self.mixture.tails(-low)
            out = without + more
        without, more = self.above
        return shifted + without + more, out + without

    @property
    def left_out(self) -> float:
        below, shifted, _, _ = self.mixture.tails(self.window[0])
        if self.is_capped:
            return shifted if self.mirrored else below
        return self.outside[0 if self.remove else 1]

    @cached_property
    def _quick(self) -> Mixture:
        low, high = self.window
        if not low < high:
            raise Unreliable
        if self.mirrored:
            low, high = min(low, -high), max(-low, high)
        ends = _UNIT * math.floor(low / _UNIT), _UNIT * math.ceil(high / _UNIT)
        if ends not in self.mixture.known:
            mixture = self.mixture.within(*ends)
            self.mixture.known[ends] = mixture if mixture.is_quick else interpolated(mixture, *ends)
        return self.mixture.known[ends]

    @cached_property
    def _bends(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Some x, the loss and a measure of its rise there, and the number of panels the bends need up to each x."""
        low, high = self.window
        x = np.concatenate((np.linspace(low, high, 161), *self._near_bends(low, high)))
        x = np.unique(x[(x >= low) & (x <= high)])
        local, other = self._quick.at(x), None
        curvature = local.curvature
        if self.mirrored:
            other = self._quick.at(-x)
            curvature = np.maximum(curvature, other.curvature)
        distance = _TO_ZERO / np.sqrt(np.maximum(curvature, 1e-300))
        dense = (1.0 / np.hypot(np.subtract.outer(x, x), distance)).max(axis=1) / BEND
        bent = np.concatenate(([0.0], np.cumsum(0.5 * (dense[1:] + dense[:-1]) * np.diff(x))))
        return x, self.loss(x), _rise(local, other), bent

    def _near_bends(self, low: float, high: float) -> list[FloatArray]:
        """Return places around the x at which one value of a gives way to the next."""
        if not isinstance(self._quick, Points) or self._quick.points.size == 1:
            return []
        points, log_mass = self._quick.points, self._quick.log_mass
        gaps = np.diff(points)
        bends = 0.5 * (points[1:] + points[:-1]) - np.diff(log_mass) / gaps
        bends, widths = bends[(bends > low) & (bends < high)], (math.pi / gaps)[(bends > low) & (bends < high)]
        near = bends[:, None] + widths[:, None] * np.sinh(np.linspace(-3.0, 3.0, 25))
        return [near.ravel(), -near.ravel()] if self.mirrored else [near.ravel()]

    def _places(self, size: float) -> tuple[FloatArray, FloatArray]:
        x, loss, rise, bent = self._bends
        turned = size * loss + 0.5 * x * np.abs(x) + 4.0 * x
        risen = np.copysign(np.log1p(size * np.abs(rise)), rise)
        return x, turned / (2.0 * TURN) + bent + risen / RISE

    def log_error(self, nodes: Nodes, order: float, frequency: float) -> float:
        """Return log of a bound on the panels' error, as for a step (docs/method.md, "The worst pair").

        Given x, |E exp(iya)| >= 1 - y^2 Var(a) / 2.
        """
        if not self._quick.is_quick:
            raise Unreliable  # an interpolated or transformed loss has no proved bound
        left, right, high = panel_ellipses(nodes)
        log_size = self._log_size(left, right, high, order, frequency)
        if self.mirrored:
            log_size += self._log_size(-right, -left, high, 1.0 - order, frequency)
        return log_panel_errors(nodes, log_size)

    def _log_size(
        self, left: FloatArray, right: FloatArray, high: FloatArray, order: float, frequency: float
    ) -> FloatArray:
        """Return log of a bound on |exp(s l)| for Re x between ``left`` and ``right`` and Im x up to ``high``."""
        at_left, at_right = self._quick.at(left), self._quick.at(right)
        least = np.maximum(1.0 - 0.5 * high * high * self._quick.spread(left, right), 0.0)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            turning = frequency * high * at_right.slope / least
            growth = order * at_right.loss if order >= 0.0 else order * (at_left.loss + np.log(least))
        bound: FloatArray = growth + turning
        return bound


def _rise(local: Local, other: Local | None) -> FloatArray:
    """Return L' over its largest value. L' may grow by a few factors of e per panel, seen from 1 / |s| on."""
    if other is None:
        return local.slope / max(float(local.slope.max()), 1e-300)
    largest = max(float(local.slope.max()), float(other.slope.max()), 1e-300)
    rises: FloatArray = np.where(local.slope >= other.slope, local.slope, -other.slope) / largest
    return rises


# Mixtures of a law: the loss of S + N against N from the law of S.

_LEAST = 1e-5  # smallest sum over the sum of its moduli
_ROUNDING = 3e-14  # of a loss, the difference of logs of two densities, each about x^2 / 2 in size
_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


def mixture_of(law: Law, *, up: bool) -> tuple[Mixture, bool]:
    """Return the mixture S + N in units of the noise, and whether it is rounded. S is not negative and not constant.

    If the noise is too small for the transform, weights are rounded up, which makes S easier to see, or down.
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
    """A mixture with many values of S: its density under noise is found along contours, each of which serves some x."""

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
        """The largest distance from its centre at which a contour is used."""
        return 0.5 * self.law.noise

    def within(self, low: float, high: float) -> Mixture:
        return self

    def spread(self, left: FloatArray, right: FloatArray) -> FloatArray:
        raise Unreliable  # a transform has no proved bound

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
    """Return the loss and its first two derivatives at some x close to each other."""
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
