"""Proved lower and upper bounds on epsilon and delta of composition (docs/method.md, "The ends are proved").

Smoothing: delta is convex in e^epsilon. By Jensen's inequality E delta(epsilon + wZ - w^2 / 2) >= delta(epsilon), with
Z standard normal. The excess is at most w^2 e^(w^2 / 8) times the density of the loss, smoothed in the same way. Along
the line the smoothing is a factor exp(w^2 z (z + 1) / 2), which ends the integrals like a Gaussian. Every neglected or
rounded term has a bound, which the upper end adds and the lower end subtracts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lastiterate.common.types import FloatArray
from lastiterate.privacy.losses.certified_step import ULP, ProvedStep, log_moment_bound, proved_step
from lastiterate.privacy.losses.loss_cumulant import LossCumulant
from lastiterate.privacy.losses.loss_line import (
    below_tail,
    chernoff,
    chernoff_bound_at,
    chernoff_tilt,
    period,
    start,
    tilt_for,
)
from lastiterate.privacy.mixtures.fourier import Unreliable

_EXCESS = 2e-7  # largest increase of epsilon by smoothing, relative to max(1, epsilon)
_EXCESS_OF_SMALL = 1e-3  # another limit on the same increase, relative to epsilon
_LEFT_OUT = math.log(1e-9)  # log of the probability of losses left out over delta; the upper end adds it
_NEGLIGIBLE = 21.0  # aliases and truncation are about exp(-_NEGLIGIBLE) of delta
_CAP = 1.3  # cap on the loss of one step, over the smallest cap that is possible
_OF_APART = 1e-11  # relative error of the probability of losses above the cap, over max(1, noise multiplier)
_WIDEST, _WIDEST_OF_TILT = 2.0, 0.3  # limits on width, and on width times tilt (excess ~ exp((tilt width)^2 / 2))
_FLOAT_WIDTH = 70.0  # limit that keeps exp(width^2 / 8) a float; above it there is no lower end
_VANISHED = -40.0  # log of a product below which a bound is enough
_MOST_NODES = 100_000  # of a line; if more are needed, the smoothing is made wider
_GUESSES = 8  # largest number of guesses of an unknown epsilon
_MOST_KINDS = 4000  # largest number of distinct steps treated one by one
_LEVELS = 1000  # number of distinct steps that replace more than _MOST_KINDS
_CONDITION = 11.0  # log of the integrand at u = 0 over delta; above it rounding matters
_TILTS = (1.0, 0.8, 0.65, 0.5)  # tilts to try, in units of the best one
_RIVALS = (4.0, 2.0, 1.0, 0.5, 0.2, 0.1, 0.05)  # tilts of bounds on aliases, in units of 1 / standard deviation


@dataclass(frozen=True, eq=False)
class SmoothedLine:
    """A line with smoothing: terms exp(log_modulus + i phase - z epsilon), and bounds on every neglected term."""

    cumulant: LossCumulant
    theta: float
    spacing: float
    width: float
    log_modulus: FloatArray  # at u = 0, spacing, ...; with the smoothing, and half weight at 0
    phase: FloatArray
    log_upper: FloatArray  # log of modulus plus error
    vanished: tuple[float, float]  # sums of the other moduli, divided by u^2 and undivided, over exp(log_upper[0])
    count: int  # number of all nodes
    left_out: float  # probability of the losses left out

    def bounds(self, epsilon: float) -> tuple[float, float]:
        """Return logs of an upper and a lower bound on delta(epsilon); inf and -inf if there is no bound."""
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
        beyond, beyond_of_density = self._beyond(2.0 * float(size[0]))
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
        lower = _log_difference(lower - rounding, self._log_aliases(epsilon))
        upper = _log_sum(upper + rounding, (1.0 + off) * apart + self.left_out)
        return upper + rounding, _log_sum(lower, max(1.0 - off, 0.0) * apart) - rounding

    def _beyond(self, largest: float) -> tuple[float, float]:
        """Bound the sums beyond the last node, for delta and for the density.

        |exp K(z)| is at most exp K(theta), and the smoothing factor falls.
        """
        end = self.spacing * (self.count - 1)
        reach = self.width * end
        last = largest * math.exp(-0.5 * reach**2) / self.spacing
        return last / (end * max(1.0, reach**2)), last / (self.width * reach)

    def _log_aliases(self, epsilon: float) -> float:
        """Return log of a bound on the aliases that repetitions at multiples of the period add to delta(epsilon).

        For repetitions below, delta is at most 1. For those above, Chernoff's bound with any stronger tilt holds,
        smoothed.
        """
        span = 2.0 * math.pi / self.spacing
        below = -self.theta * span - math.log(-math.expm1(-self.theta * span))
        deviation = math.sqrt(self.cumulant.real(self.theta)[2])
        smoothing = 0.5 * self.width**2

        def bound(rival: float, value: float) -> float:
            fall = (rival - self.theta) * span
            return value + smoothing * rival * (rival + 1.0) - fall - math.log(-math.expm1(-fall))

        rivals = [self.theta + factor / deviation for factor in _RIVALS]
        best = min(rivals, key=lambda rival: bound(rival, chernoff(self.cumulant, rival, epsilon)))
        if best not in self._upper:
            self._upper[best] = upper_cumulant(self.cumulant, best)
        above = bound(best, self._upper[best] + below_tail(best) - best * epsilon)
        return float(np.logaddexp(below, above)) + 1e-9  # more than rounding

    @cached_property
    def _upper(self) -> dict[float, float]:
        """A cache of upper bounds on K, by tilt."""
        return {}


def upper_cumulant(cumulant: LossCumulant, theta: float) -> float:
    """Return an upper bound on K at a real point."""
    order = cumulant.order(theta)
    parts = [number * log_moment_bound(step, order) for number, step in cumulant.steps]
    return math.fsum(parts) + 4.0 * ULP * math.fsum(map(abs, parts))


def proved_chernoff_bound(cumulant: LossCumulant, epsilon: float, log_goal: float) -> float:
    """Return log of an upper bound on delta(epsilon), by Chernoff's bound with a tilt chosen for exp(log_goal)."""
    cumulant = cumulant.leaving_out(log_goal + _LEFT_OUT)
    _, theta = chernoff_tilt(cumulant, epsilon, log_goal)
    left_out = math.fsum(number * step.left_out for number, step in cumulant.steps)
    bound = upper_cumulant(cumulant, theta) + below_tail(theta) - theta * epsilon
    rounding = 16.0 * ULP * (abs(bound) + 2.0 * abs(theta * epsilon) + 10.0)
    return _log_sum(bound, 1.000001 * left_out) + rounding


def _up(errors: FloatArray) -> float:
    """Return the sum of errors, rounded up."""
    return (1.0 + 1e-12) * float(errors.sum())


def _log(value: float, log_scale: float) -> float:
    return math.log(value) + log_scale if value > 0.0 else -math.inf


def _log_sum(log_value: float, other: float) -> float:
    return float(np.logaddexp(log_value, math.log(other))) if other > 0.0 else log_value


def _log_difference(larger: float, smaller: float) -> float:
    return larger + math.log(-math.expm1(smaller - larger)) if larger > smaller else -math.inf


def proved_epsilon(cumulant: LossCumulant, log_delta: float, near: float | None) -> tuple[float, float]:
    """Return lower and upper bounds on the epsilon of one direction; ``near`` is an approximation of it if known."""
    if near is None:
        near = max(start(cumulant.leaving_out(log_delta + _LEFT_OUT), log_delta)[1], 0.0)
        return _from_guess(cumulant, log_delta, near)
    if cumulant.counts.size > _MOST_KINDS:
        better, worse = (proved_epsilon(_levelled(cumulant, worse=worse), log_delta, near) for worse in (False, True))
        return better[0], worse[1]
    line = smoothed_line(cumulant, log_delta, near)
    bounds = _solved(line, log_delta, near)
    aim = _excess(near)
    if aim < math.inf and bounds[1] - near > 2.0 * aim and line.count < _MOST_NODES:  # the excess was underestimated
        width = line.width * math.sqrt(aim / (bounds[1] - near))
        return _solved(smoothed_line(cumulant, log_delta, near, max(width, 0.2 * line.width)), log_delta, near)
    return bounds


def _from_guess(cumulant: LossCumulant, log_delta: float, near: float) -> tuple[float, float]:
    """Return the bounds of `proved_epsilon`, starting from a guess that may be far off.

    Every line gives valid bounds. The next line is made for the best upper bound so far.
    """
    lower, upper = 0.0, math.inf
    for _ in range(_GUESSES):
        bounds = proved_epsilon(cumulant, log_delta, near)
        lower, upper = max(lower, bounds[0]), min(upper, bounds[1])
        before, near = near, upper if math.isfinite(upper) else 2.0 * near - cumulant.edge()
        if abs(near - before) <= 1e-3 * near:
            break
    return lower, upper


def _levelled(cumulant: LossCumulant, *, worse: bool) -> LossCumulant:
    """Return a long schedule with few distinct steps, whose delta is no smaller (``worse``) or no larger.

    Noise and sample rates are all moved to the side that raises delta, or all to the side that lowers it.
    """
    both = np.ptp(cumulant.rates) > 0.0 and np.ptp(cumulant.sigmas) > 0.0
    levels = math.isqrt(_LEVELS) if both else _LEVELS
    rates, sigmas = _moved(cumulant.rates, levels, up=worse), _moved(cumulant.sigmas, levels, up=not worse)
    kinds, index = np.unique(np.stack((rates, sigmas)), axis=1, return_inverse=True)
    return replace(
        cumulant, counts=np.bincount(index.ravel(), cumulant.counts).astype(np.float64), rates=kinds[0], sigmas=kinds[1]
    )


def _moved(values: FloatArray, levels: int, *, up: bool) -> FloatArray:
    """Return each value moved up or down to one of ``levels`` levels between the smallest and the largest value."""
    grid = np.sort(np.clip(np.geomspace(values.min(), values.max(), levels), values.min(), values.max()))
    grid[0], grid[-1] = values.min(), values.max()
    index = np.searchsorted(grid, values, side="left" if up else "right") - (0 if up else 1)
    return grid[np.clip(index, 0, levels - 1)]


def _solved(line: SmoothedLine, log_delta: float, near: float) -> tuple[float, float]:
    """Return the epsilons at which the lower and the upper bound on delta equal the requested delta."""
    tolerance = 1e-9 * line.theta * max(1e-3, near)
    upper = _crossing(lambda epsilon: line.bounds(epsilon)[0] - log_delta, near, line.theta, tolerance)
    lower = -_crossing(lambda minus: log_delta - line.bounds(-minus)[1], -near, line.theta, tolerance)
    return max(lower, 0.0), max(upper, 0.0)


def _excess(near: float) -> float:
    """Return the largest increase of an epsilon of this size that smoothing may cause."""
    return min(_EXCESS * max(1.0, near), _EXCESS_OF_SMALL * near if near > 0.0 else math.inf)


def proved_log_delta(cumulant: LossCumulant, epsilon: float) -> float:
    """Return log of an upper bound on delta(epsilon) of one direction. The value 0 is always valid."""
    bound = chernoff_bound_at(cumulant, epsilon)
    near = epsilon if epsilon * _EXCESS_OF_SMALL > _EXCESS else 0.0  # smaller epsilons need no finer smoothing
    try:
        for _ in range(3):  # the losses left out and the end of the line depend on the result
            bound = min(bound, smoothed_line(cumulant, min(bound, -1e-3), near).bounds(epsilon)[0])
    except (Unreliable, OverflowError):
        pass
    return bound


def _crossing(function: Callable[[float], float], near: float, theta: float, tolerance: float) -> float:
    """Return a point at which a falling function is at most 0 and close to 0; inf if none is found."""
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
    """Return a line for the epsilon at this delta, which is about ``near``; the smoothing has at most this width."""
    cumulant = cumulant.leaving_out(log_delta + _LEFT_OUT)
    cumulant = cumulant.capped(_CAP * (near - cumulant.edge()))
    best = tilt_for(cumulant, near)
    hazard = best + 1.0 + 1.0 / math.sqrt(cumulant.real(best)[2])  # about the density of the loss over its tail
    width = min(math.sqrt(2.0 * _excess(near) / hazard), _WIDEST, _WIDEST_OF_TILT / best, width)
    extents = [_extent(cumulant, factor * best, log_delta, near) for factor in _TILTS]
    allowed = max(extents[0][1], math.sqrt(2.0 * (_NEGLIGIBLE + _CONDITION)))
    span, reach, theta = min(extent for extent in extents if extent[1] <= allowed)
    width = max(width, reach * span / (2.0 * math.pi * _MOST_NODES))
    if not (0.0 < width < math.inf and 0.0 < span < math.inf):
        raise Unreliable
    spacing = 2.0 * math.pi / span
    count = math.ceil(reach / (width * spacing)) + 1
    return _line(cumulant, theta, spacing, count, width)


def _extent(cumulant: LossCumulant, theta: float, log_delta: float, near: float) -> tuple[float, float, float]:
    """Return the period that a line needs, the end of the line in units of 1 / width, and the tilt.

    A weaker tilt than the best one costs digits, of which there are enough, and may have a shorter period.
    """
    condition = max(cumulant.real(theta)[0] - theta * near - log_delta, 0.0)
    span = period(cumulant, theta, near, -log_delta, (0.0,), _NEGLIGIBLE)
    return span, math.sqrt(2.0 * (_NEGLIGIBLE + condition)), theta


def _line(cumulant: LossCumulant, theta: float, spacing: float, count: int, width: float) -> SmoothedLine:
    """Return the line: the product over all kinds of steps up to where it vanishes, and a bound beyond that."""
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
    """Return log of a bound on |exp K(theta + iu)| / exp K(theta), and the kinds of steps evaluated at all u.

    Kinds of steps are added until the bound vanishes. Later kinds are evaluated only where earlier kinds have not
    vanished.
    """
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
