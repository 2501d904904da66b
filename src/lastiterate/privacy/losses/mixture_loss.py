"""The loss of a step, or of a block of steps, in which the canary may count more or less than once.

This module does for any mixture what `step_loss` does for two values. If one example replaces another (``mirrored``),
the distribution without the canary is the mixture reflected at 0. The loss is then l(x) - l(-x), where l is the loss
against the noise alone. `mixture_of` makes the mixture from the law of S, by a sum over the values of S or by inverting
a transform.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr, ndtri_exp

from lastiterate.common.types import FloatArray
from lastiterate.privacy.losses.gaussian_mixture import (
    LEAST_LOG_MASS,
    Interpolated,
    Local,
    Mixture,
    Points,
    binomial_points,
    falling_root,
)
from lastiterate.privacy.losses.step_loss import BEND, RISE, TURN, Nodes, WindowLoss, log_panel_errors, panel_ellipses
from lastiterate.privacy.mixtures.fourier import Contour, Cumulant, Unreliable, contour
from lastiterate.privacy.mixtures.kernels import rounded, small_support
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.solve import HALF_LOG_TAU
from lastiterate.privacy.mixtures.support import Support

_TO_ZERO = 0.5 * math.pi  # distance of a bend from the singularities of the loss, times the root of the curvature


@dataclass(frozen=True, eq=False)
class MixtureLoss(WindowLoss):
    """The loss of a mixture. ``remove``, ``log_left_out`` and ``cap`` are as in `StepLoss`."""

    mixture: Mixture
    remove: bool
    log_left_out: float
    cap: float = math.inf
    mirrored: bool = False

    def loss(self, x: FloatArray) -> FloatArray:
        value = self._quick.loss(x)
        return value - self._quick.loss(-x) if self.mirrored else value

    def log_density(self, x: FloatArray) -> FloatArray | float:
        return self._quick.loss(-x) if self.mirrored else 0.0

    def moved(self, x: FloatArray) -> FloatArray:
        def one(x: FloatArray) -> FloatArray:  # an ulp of x, of each a and a^2 / 2, some ulps of each probability
            local = self._quick.at(x)
            probabilities = 8.0 * np.minimum(1.0, local.slope / max(self.mixture.jump, 1e-300))
            return 2.0 * np.abs(x) * local.slope + local.curvature + local.slope**2 + probabilities

        return one(x) + one(-x) if self.mirrored else one(x)

    @cached_property
    def window(self) -> tuple[float, float]:
        low, high = super().window
        if not self.mirrored or self.remove:
            return low, high
        return -self.mixture.far(self.log_left_out - math.log(4.0)), -low  # that of P over Q, reflected at 0

    @property
    def steepest(self) -> float:
        return self.mixture.steepest

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
    def _quick(self) -> Points | Interpolated:
        low, high = self.window
        if not low < high:
            raise Unreliable
        if self.mirrored:
            low, high = min(low, -high), max(-low, high)
        return self.mixture.quick(low, high)

    @cached_property
    def _bends(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Some x, the loss at x, a measure of its rise, and the number of panels up to x that its bends need."""
        low, high = self.window
        x = np.linspace(low, high, 161)
        if isinstance(self._quick, Points) and self._quick.points.size > 1:
            # More x around the bends, where the most likely a changes from one value to the next.
            points, log_mass = self._quick.points, self._quick.log_mass
            gaps = np.diff(points)
            bends = 0.5 * (points[1:] + points[:-1]) - np.diff(log_mass) / gaps
            bends, widths = bends[(bends > low) & (bends < high)], (math.pi / gaps)[(bends > low) & (bends < high)]
            near = (bends[:, None] + widths[:, None] * np.sinh(np.linspace(-3.0, 3.0, 25))).ravel()
            x = np.concatenate((x, near, -near) if self.mirrored else (x, near))
        x = np.unique(x[(x >= low) & (x <= high)])
        local, other = self._quick.at(x), None
        curvature = local.curvature
        if self.mirrored:
            other = self._quick.at(-x)
            curvature = np.maximum(curvature, other.curvature)
        distance = _TO_ZERO / np.sqrt(np.maximum(curvature, 1e-300))
        dense = (1.0 / np.hypot(np.subtract.outer(x, x), distance)).max(axis=1) / BEND
        bent = np.concatenate(([0.0], np.cumsum(0.5 * (dense[1:] + dense[:-1]) * np.diff(x))))
        # L' divided by its largest value. Above 1 / |s|, it may grow by a few factors of e per panel.
        largest = max(float(local.slope.max()), 0.0 if other is None else float(other.slope.max()), 1e-300)
        rise = local.slope / largest
        if other is not None:
            rise = np.where(local.slope >= other.slope, local.slope, -other.slope) / largest
        return x, self.loss(x), rise, bent

    def _places(self, size: float) -> tuple[FloatArray, FloatArray]:
        x, loss, rise, bent = self._bends
        turned = size * loss + 0.5 * x * np.abs(x) + 4.0 * x
        risen = np.copysign(np.log1p(size * np.abs(rise)), rise)
        return x, turned / (2.0 * TURN) + bent + risen / RISE

    def log_error(self, nodes: Nodes, order: float, frequency: float) -> float:
        """Return the log of a bound on the error of quadrature, using |E exp(iya)| >= 1 - y^2 Var(a) / 2 given x."""
        quick = self._quick
        if not isinstance(quick, Points):
            raise Unreliable  # an interpolated loss has no proved bound
        left, right, high = panel_ellipses(nodes)

        def log_size(left: FloatArray, right: FloatArray, order: float) -> FloatArray:
            """Return the log of a bound on |exp(s l)| for Re x in [``left``, ``right``] and Im x up to ``high``."""
            at_left, at_right = quick.at(left), quick.at(right)
            least = np.maximum(1.0 - 0.5 * high * high * quick.spread(left, right), 0.0)
            with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                turning = frequency * high * at_right.slope / least
                growth = order * at_right.loss if order >= 0.0 else order * (at_left.loss + np.log(least))
            return growth + turning

        size = log_size(left, right, order)
        if self.mirrored:
            size += log_size(-right, -left, 1.0 - order)
        return log_panel_errors(nodes, size)


# Mixtures of a law: the loss of S + N against N from the law of S.

_LEAST = 1e-5  # smallest ratio of a sum to the sum of its moduli


def mixture_of(law: Law, *, up: bool) -> tuple[Mixture, bool]:
    """Return the mixture S + N in units of the noise, S >= 0 and not constant, and whether it is rounded.

    If the noise is too small for the transform, weights are rounded up, which makes S easier to detect, or down.
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
class Transformed(Mixture):
    """A mixture with many values of S. Its density is computed by line integrals. One line serves several x."""

    law: Law
    rounding = 3e-14  # of a loss, the difference of logs of two densities, each about x^2 / 2 in size

    @property
    def mean(self) -> float:
        return self.law.mean / self.law.noise

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
        start, step = 0, 0.5 * self.law.noise  # a line is used up to this distance from its centre
        while start < flat.size:
            y = flat[order[start:]] * self.law.noise
            line = contour(Cumulant(self.law), float(y[0]) + step)
            together = order[start : start + int(np.searchsorted(y, y[0] + 2.0 * step, side="right"))]
            columns[:, together] = _on_contour(line, flat[together])
            start += together.size
        return Local(*(column.reshape(np.shape(x)) for column in columns))

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
    noise, z = near.noise, near.line.z
    exponent = near.line.log_values - np.multiply.outer(x * noise, z)
    scale = exponent.real.max(axis=1)
    terms = np.exp(exponent - scale[:, None])
    density, first, second = (terms.real.sum(axis=1), (terms @ z).real, (terms @ (z * z)).real)
    if not np.all(density > _LEAST * np.abs(terms).sum(axis=1)):
        raise Unreliable
    loss = scale + np.log(density * (near.line.spacing / math.pi * noise)) + 0.5 * x * x + HALF_LOG_TAU
    slope = x - noise * first / density
    curvature = 1.0 + noise**2 * (second / density - (first / density) ** 2)
    return np.stack((loss, slope, np.maximum(curvature, 0.0)))
