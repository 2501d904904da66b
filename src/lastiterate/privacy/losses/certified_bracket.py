"""Proved lower and upper bounds on epsilon and delta of composition (docs/method.md, "The ends are proved").

Smoothing: delta is convex in e^epsilon. By Jensen's inequality E delta(epsilon + wZ - w^2 / 2) >= delta(epsilon), with
Z standard normal. The excess is at most w^2 e^(w^2 / 8) times the density of the loss, smoothed in the same way. In
the integral along a line, smoothing is a factor exp(w^2 z (z + 1) / 2), so the integrand falls like a Gaussian. Every
neglected term and every rounding error has a bound. The upper end adds these bounds, and the lower end subtracts them.

Rounding follows the standard model: every operation has an error of at most half a unit in the last place, and
functions such as exp and log have an error of at most one unit. The error of fast Fourier transforms follows Higham
(2002), Theorem 24.2, with a constant that allows for mixed radices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from lastiterate.common.types import BoolArray, FloatArray
from lastiterate.privacy.losses import loss_line as lines
from lastiterate.privacy.losses.fourier_sums import characteristic
from lastiterate.privacy.losses.loss_cumulant import Certain, LossCumulant
from lastiterate.privacy.losses.step_loss import Loss, Nodes, weighted_rise
from lastiterate.privacy.mixtures.fourier import Unreliable

_EXCESS = 2e-7  # largest increase of epsilon by smoothing, relative to max(1, epsilon)
_EXCESS_OF_SMALL = 1e-3  # another limit on the same increase, relative to epsilon
_LEFT_OUT = math.log(1e-9)  # log of (probability of losses left out / delta); the upper end adds this probability
_NEGLIGIBLE = 21.0  # aliases and truncation are about exp(-_NEGLIGIBLE) of delta
_CAP = 1.3  # cap on the loss of one step, divided by the smallest possible cap
_OF_APART = 1e-11  # relative error of the probability of losses above the cap, per max(1, noise multiplier)
_WIDEST, _WIDEST_OF_TILT = 2.0, 0.3  # limits on the width w, and on w * tilt (excess ~ exp((w * tilt)^2 / 2))
_FLOAT_WIDTH = 70.0  # limit that keeps exp(width^2 / 8) a float; above it there is no lower end
_VANISHED = -40.0  # log of a product of moduli; below it a bound on the product is enough
_MOST_NODES = 100_000  # largest number of nodes of a line; if more are needed, the smoothing is made wider
_GUESSES = 8  # largest number of guesses of an unknown epsilon
_MOST_KINDS = 4000  # largest number of distinct steps treated one by one
_LEVELS = 1000  # number of distinct steps that replace a schedule with more than _MOST_KINDS
_CONDITION = 11.0  # log of (integrand at u = 0 / delta); above it rounding matters
_TILTS = (1.0, 0.8, 0.65, 0.5)  # tilts to try, in units of the best one
_RIVALS = (4.0, 2.0, 1.0, 0.5, 0.2, 0.1, 0.05)  # tilts of bounds on aliases: theta + factor / standard deviation

ULP = 2.0**-52
_OF_FFT = 12.0  # error bound of an FFT, in half ulps * log2(size) * norm of the result; Higham: 7 for radix 2
_OF_SERIES = math.exp(0.5 * math.pi)  # the sum of the moduli of the coefficients of Taylor's series
_LARGEST_BOUND = math.log(1e-3)  # log of the largest admissible error of quadrature; usually the error is 1e-15
_FINER = 1.3  # ratio of successive frequencies at which errors of masses are summed
_NO_MASS = 1e-24  # a node with less mass is left out


@dataclass(frozen=True, eq=False)
class SmoothedLine:
    """A line with smoothing. Its terms are exp(log_modulus + i phase - z epsilon). Neglected terms have bounds."""

    cumulant: LossCumulant
    theta: float
    spacing: float
    width: float
    log_modulus: FloatArray  # at u = 0, spacing, ...; includes the smoothing, and half weight at u = 0
    phase: FloatArray
    log_upper: FloatArray  # log of (modulus + error)
    vanished: tuple[float, float]  # sums of modulus / u^2 and of modulus at other nodes, divided by exp(log_upper[0])
    count: int  # number of all nodes
    left_out: float  # probability of the losses left out
    _upper: dict[float, float] = field(default_factory=dict, init=False, repr=False)  # upper bounds on K, by tilt

    def bounds(self, epsilon: float) -> tuple[float, float]:
        """Return logs of an upper and a lower bound on delta(epsilon). They are inf and -inf if there is no bound."""
        u = self.spacing * np.arange(self.log_modulus.size)
        z = self.theta + 1j * u
        scale = float(self.log_upper[0])
        modulus, size = np.exp(self.log_modulus - scale), np.exp(self.log_upper - scale)
        terms = modulus * np.exp(1j * (self.phase - u * epsilon))
        error = size - modulus + size * ULP * (4.0 * u * abs(epsilon) + 60.0)
        kernel = 1.0 / (z * (z + 1.0))
        # NumPy's sums are pairwise, with about 30 roundings. A scalar product has one rounding per term.
        total, error_of_total = float(np.sum((terms * kernel).real)), _up(error * np.abs(kernel)) + self.vanished[0]
        density = max(float(terms.real.sum()) + _up(error), 0.0) + self.vanished[1]
        # Beyond the last node |exp K(z)| is at most exp K(theta), and the smoothing factor falls.
        end = self.spacing * (self.count - 1)
        reach = self.width * end
        last = 2.0 * float(size[0]) * math.exp(-0.5 * reach**2) / self.spacing
        beyond, beyond_of_density = last / (end * max(1.0, reach**2)), last / (self.width * reach)
        growth = math.exp(0.125 * self.width**2) if self.width < _FLOAT_WIDTH else math.inf
        excess = self.width**2 * growth * (density + beyond_of_density)
        log_scale = scale - self.theta * epsilon + math.log(self.spacing / math.pi)
        upper = _log(total + error_of_total + beyond, log_scale)
        lower = _log(total - error_of_total - beyond - excess, log_scale)
        cap, edge = self.cumulant.cap, self.cumulant.edge()
        if epsilon > cap + edge if self.cumulant.remove else epsilon < edge - cap:
            return math.inf, -math.inf  # the formula for losses above the cap does not hold here
        apart, _ = self.cumulant.apart(epsilon)
        off = _OF_APART * max(1.0, float(self.cumulant.sigmas.max()))
        rounding = 16.0 * ULP * (abs(scale) + abs(self.theta * epsilon) + abs(math.log(self.spacing)) + 10.0)
        lower, aliases = lower - rounding, self._log_aliases(epsilon)
        lower = lower + math.log(-math.expm1(aliases - lower)) if lower > aliases else -math.inf
        upper = _log_sum(upper + rounding, (1.0 + off) * apart + self.left_out)
        return upper + rounding, _log_sum(lower, max(1.0 - off, 0.0) * apart) - rounding

    def _log_aliases(self, epsilon: float) -> float:
        """Return the log of a bound on the aliases of delta(epsilon) at multiples of the period."""
        span = 2.0 * math.pi / self.spacing
        below = -self.theta * span - math.log(-math.expm1(-self.theta * span))
        deviation = math.sqrt(self.cumulant.real(self.theta)[2])
        smoothing = 0.5 * self.width**2

        def bound(rival: float, value: float) -> float:
            fall = (rival - self.theta) * span
            return value + smoothing * rival * (rival + 1.0) - fall - math.log(-math.expm1(-fall))

        rivals = [self.theta + factor / deviation for factor in _RIVALS]
        best = min(rivals, key=lambda rival: bound(rival, lines.chernoff(self.cumulant, rival, epsilon)))
        if best not in self._upper:
            self._upper[best] = upper_cumulant(self.cumulant, best)
        above = bound(best, self._upper[best] + lines.below_tail(best) - best * epsilon)
        return float(np.logaddexp(below, above)) + 1e-9  # more than the rounding error


def upper_cumulant(cumulant: LossCumulant, theta: float) -> float:
    """Return an upper bound on K at a real point."""
    order = cumulant.order(theta)
    parts = [number * log_moment_bound(step, order) for number, step in cumulant.steps]
    return math.fsum(parts) + 4.0 * ULP * math.fsum(map(abs, parts))


def proved_chernoff_bound(cumulant: LossCumulant, epsilon: float, log_goal: float) -> float:
    """Return the log of Chernoff's upper bound on delta(epsilon), with a tilt for a delta of about exp(log_goal)."""
    cumulant = cumulant.leaving_out(log_goal + _LEFT_OUT)
    _, theta = lines.chernoff_tilt(cumulant, epsilon, log_goal)
    left_out = math.fsum(number * step.left_out for number, step in cumulant.steps)
    bound = upper_cumulant(cumulant, theta) + lines.below_tail(theta) - theta * epsilon
    rounding = 16.0 * ULP * (abs(bound) + 2.0 * abs(theta * epsilon) + 10.0)
    return _log_sum(bound, 1.000001 * left_out) + rounding


def _up(errors: FloatArray) -> float:
    return (1.0 + 1e-12) * float(errors.sum())  # rounded up


def _log(value: float, log_scale: float) -> float:
    return math.log(value) + log_scale if value > 0.0 else -math.inf


def _log_sum(log_value: float, other: float) -> float:
    return float(np.logaddexp(log_value, math.log(other))) if other > 0.0 else log_value


def proved_epsilon(cumulant: LossCumulant, log_delta: float, near: float | None) -> tuple[float, float]:
    """Return bounds on the epsilon of P over Q, or of Q over P. ``near`` is an estimate of this epsilon, or None."""
    if near is None:
        near = max(lines.start(cumulant.leaving_out(log_delta + _LEFT_OUT), log_delta)[1], 0.0)
        lower, upper = 0.0, math.inf
        for _ in range(_GUESSES):  # every line gives valid bounds; the next one is made for the best upper bound so far
            bounds = proved_epsilon(cumulant, log_delta, near)
            lower, upper = max(lower, bounds[0]), min(upper, bounds[1])
            before, near = near, upper if math.isfinite(upper) else 2.0 * near - cumulant.edge()
            if abs(near - before) <= 1e-3 * near:
                break
        return lower, upper
    if cumulant.counts.size > _MOST_KINDS:
        better, worse = (proved_epsilon(_levelled(cumulant, worse=worse), log_delta, near) for worse in (False, True))
        return better[0], worse[1]
    line = smoothed_line(cumulant, log_delta, near)
    bounds = _solved(line, log_delta, near)
    aim = _excess(near)
    if aim < math.inf and bounds[1] - near > 2.0 * aim and line.count < _MOST_NODES:  # the excess was underestimated
        width = line.width * math.sqrt(aim / (bounds[1] - near))
        with suppress(Unreliable):  # a narrower smoothing needs more nodes
            return _solved(smoothed_line(cumulant, log_delta, near, max(width, 0.2 * line.width)), log_delta, near)
    return bounds


def _levelled(cumulant: LossCumulant, *, worse: bool) -> LossCumulant:
    """Replace a long schedule by few distinct steps whose delta is no smaller (``worse``) or no larger."""
    both = np.ptp(cumulant.rates) > 0.0 and np.ptp(cumulant.sigmas) > 0.0
    levels = math.isqrt(_LEVELS) if both else _LEVELS
    rates, sigmas = _moved(cumulant.rates, levels, up=worse), _moved(cumulant.sigmas, levels, up=not worse)
    kinds, index = np.unique(np.stack((rates, sigmas)), axis=1, return_inverse=True)
    return replace(
        cumulant, counts=np.bincount(index.ravel(), cumulant.counts).astype(np.float64), rates=kinds[0], sigmas=kinds[1]
    )


def _moved(values: FloatArray, levels: int, *, up: bool) -> FloatArray:
    grid = np.sort(np.clip(np.geomspace(values.min(), values.max(), levels), values.min(), values.max()))
    grid[0], grid[-1] = values.min(), values.max()
    index = np.searchsorted(grid, values, side="left" if up else "right") - (0 if up else 1)
    return grid[np.clip(index, 0, levels - 1)]


def _solved(line: SmoothedLine, log_delta: float, near: float) -> tuple[float, float]:
    tolerance = 1e-9 * line.theta * max(1e-3, near)
    upper = _crossing(lambda epsilon: line.bounds(epsilon)[0] - log_delta, near, line.theta, tolerance)
    lower = -_crossing(lambda minus: log_delta - line.bounds(-minus)[1], -near, line.theta, tolerance)
    return max(lower, 0.0), max(upper, 0.0)


def _excess(near: float) -> float:
    return min(_EXCESS * max(1.0, near), _EXCESS_OF_SMALL * near if near > 0.0 else math.inf)


def proved_log_delta(cumulant: LossCumulant, epsilon: float) -> float:
    """Return the log of an upper bound on delta(epsilon), for P over Q or Q over P. It is at most 0."""
    bound = lines.chernoff_bound_at(cumulant, epsilon)
    near = epsilon if epsilon * _EXCESS_OF_SMALL > _EXCESS else 0.0  # smaller epsilons need no finer smoothing
    try:
        for _ in range(3):  # the losses left out and the end of the line depend on the result
            bound = min(bound, smoothed_line(cumulant, min(bound, -1e-3), near).bounds(epsilon)[0])
    except (Unreliable, OverflowError):
        pass
    return bound


def _crossing(function: Callable[[float], float], near: float, theta: float, tolerance: float) -> float:
    """Return a point at which a falling function is at most 0 and close to 0, or inf if none is found."""
    at, step, slope = near, 1e-8 * max(1.0, abs(near)), -theta
    best = math.inf
    before: tuple[float, float] | None = None
    for _ in range(50):
        value = function(at)
        if value <= 0.0:
            best = min(best, at)
            if value >= -tolerance:
                break
        if not math.isfinite(value):
            at, step = at + math.copysign(step, value), 4.0 * step
            continue
        if before is not None and at != before[0]:
            slope = min((value - before[1]) / (at - before[0]), -1e-3 * theta)
        before = at, value
        at -= (value + 0.5 * tolerance) / slope
    return best


def smoothed_line(cumulant: LossCumulant, log_delta: float, near: float, width: float = math.inf) -> SmoothedLine:
    """Return a line for an epsilon of about ``near`` at this delta. The smoothing has at most this width."""
    cumulant = cumulant.leaving_out(log_delta + _LEFT_OUT)
    cumulant = cumulant.capped(_CAP * (near - cumulant.edge()))
    best = lines.tilt_for(cumulant, near)
    hazard = best + 1.0 + 1.0 / math.sqrt(cumulant.real(best)[2])  # about density / tail probability of the loss
    width = min(math.sqrt(2.0 * _excess(near) / hazard), _WIDEST, _WIDEST_OF_TILT / best, width)
    extents = []  # period, end in units of 1 / width, and tilt: a weak tilt costs digits, but may save nodes
    for theta in (factor * best for factor in _TILTS):
        condition = max(cumulant.real(theta)[0] - theta * near - log_delta, 0.0)
        span = lines.period(cumulant, theta, near, -log_delta, (0.0,), _NEGLIGIBLE)
        extents.append((span, math.sqrt(2.0 * (_NEGLIGIBLE + condition)), theta))
    allowed = max(extents[0][1], math.sqrt(2.0 * (_NEGLIGIBLE + _CONDITION)))
    span, reach, theta = min(extent for extent in extents if extent[1] <= allowed)
    width = max(width, reach * span / (2.0 * math.pi * _MOST_NODES))
    if not (0.0 < width < math.inf and 0.0 < span < math.inf):
        raise Unreliable
    spacing = 2.0 * math.pi / span
    count = math.ceil(reach / (width * spacing)) + 1
    return _line(cumulant, theta, spacing, count, width)


def _line(cumulant: LossCumulant, theta: float, spacing: float, count: int, width: float) -> SmoothedLine:
    order, sign = cumulant.order(theta), 1.0 if cumulant.remove else -1.0
    log_bound, parts = _vanishing(cumulant, order, spacing, count)
    active = int(np.flatnonzero(log_bound > _VANISHED)[-1]) + 1
    if active > 0.5 * count:
        active = count
    else:  # evaluated again, because fewer nodes are also more accurate
        parts = {}
    u = spacing * np.arange(count, dtype=np.float64)
    smoothing = 0.5 * width**2 * (theta * (theta + 1.0) - u * u)
    now = slice(0, max(active, 2))
    modulus, turn = _Sum(smoothing[now]), _Sum(width**2 * (theta + 0.5) * u[now])
    upper = _Sum(modulus.total + 8.0 * ULP * (np.abs(modulus.total) + turn.total + 1.0))
    log_largest, left_out = float(smoothing[0]), 0.0
    for index, (number, step) in enumerate(cumulant.steps):
        part = parts.get(index) or proved_step(step, order, spacing, now.stop)
        turned = part.phase + part.mean * u[now]
        sizes = abs(part.log_total) + np.abs(part.phase) + abs(part.mean) * u[now] + np.abs(part.log_upper)
        modulus.add(number * (part.log_total + part.log_modulus))
        upper.add(number * (part.log_total + part.error_of_total + part.log_upper + 4.0 * ULP * sizes))
        turn.add(sign * number * turned)
        log_largest += number * (part.log_total + part.error_of_total)
        left_out += 1.000001 * number * step.left_out
    log_modulus, log_upper, phase = modulus.value(), upper.value(), turn.value()
    for values in (log_modulus, log_upper):
        values[0] -= math.log(2.0)
    rest = slice(log_modulus.size, count)
    sizes = 1.000001 * np.exp(log_largest - smoothing[0] + smoothing[rest] + log_bound[rest] - log_upper[0])
    vanished = float(sizes @ (1.0 / np.square(u[rest]))), float(sizes.sum())
    return SmoothedLine(cumulant, theta, spacing, width, log_modulus, phase, log_upper, vanished, count, left_out)


class _Sum:
    """A compensated sum of many arrays: its rounding error does not grow with the number of arrays."""

    def __init__(self, first: FloatArray) -> None:
        self.total, self.lost = first.copy(), np.zeros_like(first)

    def add(self, values: FloatArray) -> None:
        total = self.total + values
        added = total - self.total
        self.lost += (self.total - (total - added)) + (values - added)
        self.total = total

    def value(self) -> FloatArray:
        return self.total + self.lost


def _vanishing(
    cumulant: LossCumulant, order: float, spacing: float, count: int
) -> tuple[FloatArray, dict[int, ProvedStep]]:
    """Return the log of a bound on |exp K(theta + iu)| / exp K(theta), and the steps that were evaluated at all u."""
    log_bound, parts, active = np.zeros(count), {}, count
    for index in np.argsort(-cumulant.counts * cumulant.rates).tolist():
        number, step = cumulant.steps[index]
        part = proved_step(step, order, spacing, active)
        log_bound[:active] += number * np.minimum(part.log_upper, 0.0)
        if active == count:
            parts[index] = part
        before, active = active, max(int(np.flatnonzero(log_bound > _VANISHED)[-1]) + 1, 2)
        if active < 0.01 * count or (active < 0.2 * count and active > 0.9 * before):
            break
    return log_bound, parts


# The factor exp M(s) of one step, with bounds on the errors of quadrature in x, Taylor's series and rounding.


@dataclass(frozen=True, eq=False)
class ProvedStep:
    """exp M(s) of one step along a line: exp(log_total) times a modulus and a phase, with bounds on the errors."""

    log_total: float
    error_of_total: float  # error bound of log_total
    mean: float  # about the mean of the loss under the tilt; mean times u is subtracted from the phase
    log_modulus: FloatArray
    phase: FloatArray
    log_upper: FloatArray  # log of (modulus + largest error of the complex value)


def proved_step(step: Loss | Certain, order: float, spacing: float, count: int) -> ProvedStep:
    """Return exp M(s) with bounds for s = order + iu at u = 0, spacing, ..., (count - 1) spacing."""
    u = spacing * np.arange(count, dtype=np.float64)
    if isinstance(step, Certain):
        value, mean, variance = step.moments(order)
        log_modulus = -0.5 * variance * u * u
        upper = log_modulus + 4.0 * ULP * np.abs(log_modulus)
        return ProvedStep(value, 4.0 * ULP * abs(value), mean, log_modulus, np.zeros(count), upper)
    nodes = step.nodes(order, float(u[-1]))
    log_total, mass = _masses(nodes, order)
    kept = mass > _NO_MASS
    dropped = float(mass[~kept].sum())
    loss, mass = nodes.loss[kept], mass[kept]
    mean = float(mass @ loss)
    quadrature = _bound(step, nodes, order, float(u[-1]), log_total)
    moved, of_masses = _rounding(step, nodes, order, kept)
    of_loss = ULP * float(mass @ (8.0 * np.abs(loss) + 2.0 * moved + 16.0 * np.abs(loss - mean)))
    got = characteristic(loss - mean, mass, spacing, count)
    of_transform = 0.5 * _OF_FFT * math.log2(got.size) * math.sqrt(got.size) * got.norm + 80.0 * got.far
    everywhere = 2.0 * (quadrature + dropped) + got.remainder() + _OF_SERIES * ULP * of_transform
    error = everywhere + _times_distance(mass * (of_masses + float(mass @ of_masses)), loss - mean, u) + of_loss * u
    log_modulus, phase = got.logarithm()
    modulus = np.exp(log_modulus)
    log_upper = np.where(error < modulus, log_modulus + np.log1p(error / modulus), np.log(modulus + error))
    log_upper += 4.0 * ULP * np.abs(log_upper)
    value, off = _log_total(step, nodes, order, log_total, float(of_masses.max()), quadrature)
    return ProvedStep(value, off, mean, log_modulus, phase, log_upper)


def log_moment_bound(step: Loss | Certain, order: float) -> float:
    """Return an upper bound on M(s) at a real s."""
    if isinstance(step, Certain):
        value = step.moments(order)[0]
        return value + 4.0 * ULP * abs(value)
    nodes = step.nodes(order, 0.0)
    log_total, mass = _masses(nodes, order)
    of_mass = float(_rounding(step, nodes, order, mass > _NO_MASS)[1].max())
    return sum(_log_total(step, nodes, order, log_total, of_mass, _bound(step, nodes, order, 0.0, log_total)))


def _masses(nodes: Nodes, order: float) -> tuple[float, FloatArray]:
    exponent = nodes.log_weight + order * nodes.loss
    top = float(exponent.max())
    mass = np.exp(exponent - top)
    total = float(mass.sum())
    return top + math.log(total), mass / total


def _rounding(step: Loss, nodes: Nodes, order: float, kept: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return the error of each loss in ulps, and the relative error of each mass, if each x is off by an ulp."""
    x, loss = nodes.x[kept], nodes.loss[kept]
    moved = step.moved_at(nodes)[kept]
    exponents = 4.0 * np.abs(nodes.log_weight[kept]) + abs(order) * (4.0 * np.abs(loss) + moved) + x * x
    if step.mirrored:
        exponents = exponents + moved
    return moved, ULP * (40.0 + exponents)


def _times_distance(weights: FloatArray, loss: FloatArray, u: FloatArray) -> FloatArray:
    """Bound the sum of weights * |exp(iu loss) - 1|, the effect of errors of masses, using min(2, u |loss|)."""
    knots = u[-1] * _FINER ** -np.arange(math.ceil(math.log(u.size) / math.log(_FINER)) + 1.0)[::-1]
    sums = np.minimum(2.0, knots[:, None] * np.abs(loss)) @ weights
    return 1.000001 * np.where(u > 0.0, sums[np.minimum(np.searchsorted(knots, u), knots.size - 1)], 0.0)


def _log_total(
    step: Loss, nodes: Nodes, order: float, value: float, of_mass: float, quadrature: float
) -> tuple[float, float]:
    if not abs(value) < 0.5:
        if not of_mass + quadrature < 1.0:
            raise Unreliable
        return value, -math.log1p(-of_mass - quadrature) + 4.0 * ULP * abs(value)
    rise = weighted_rise(nodes, order)
    with_canary, without = step.outside
    value = math.log1p(float(rise.sum()) + order * (without - with_canary) - without)
    rise, growth = np.abs(rise), np.abs(np.exp(nodes.log_weight + nodes.loss) - np.exp(nodes.log_weight))
    moved = np.abs(nodes.loss) * 8.0 + 2.0 * step.moved_at(nodes)
    steepness = abs(order) * (rise + abs(order - 1.0) * growth)  # the derivative of the rise with respect to the loss
    sizes = (40.0 + 4.0 * np.abs(nodes.log_weight) + nodes.x**2) * rise + 4.0 * abs(order) * growth
    if step.mirrored:
        sizes = sizes + step.moved_at(nodes) * rise
    # The normal distribution's tails are accurate to an ulp or two, but their end points are rounded.
    tails = abs(order) * (with_canary + without) + without
    rounding = ULP * (float(np.sum(sizes + moved * steepness)) + (8.0 + 2.0 * step.last**2) * tails)
    panels = sum(
        factor * _bound(step, nodes, at, 0.0, 0.0)
        for factor, at in ((1.0, order), (1.0 + abs(order), 0.0), (abs(order), 1.0))
    )
    return value, (rounding + panels) / math.exp(value) + ULP * abs(value)


def _bound(step: Loss, nodes: Nodes, order: float, frequency: float, log_unit: float) -> float:
    log_bound = step.log_error(nodes, order, frequency) - log_unit
    if not log_bound < _LARGEST_BOUND:
        raise Unreliable
    return math.exp(log_bound)
