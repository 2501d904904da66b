"""The privacy loss of a mixture of Gaussians: log E exp(a x - a^2 / 2), where a is the canary's random shift.

One step has two values of a, 0 and 1 / sigma. A person with several examples has more values, and a block of steps
between two released iterates has many. The loss is convex in x, with slope E[a | x] and curvature Var[a | x].

`Points` sums over the values of a. `Interpolated` uses piecewise polynomials if there are many values, or if only the
transform of the law is known.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtr

from lastiterate.common.types import FloatArray
from lastiterate.privacy.mixtures import support as binomial
from lastiterate.privacy.mixtures.fourier import Unreliable

LEAST_LOG_MASS = -800.0  # values of a with a smaller log-probability are left out; it is below any delta
_NEGLIGIBLE = -42.0  # log of a negligible share of the sum
_AT_ONCE = 1_000_000  # largest number of array elements in memory
_UNIT = 4.0  # windows of x are widened to multiples of this, so that similar windows share a cache
_FEW = 48  # largest number of values summed at every x


class Local(NamedTuple):
    """The loss at some x, and its first two derivatives."""

    loss: FloatArray
    slope: FloatArray
    curvature: FloatArray


class Mixture(ABC):
    """A mixture of Gaussians N(a, 1), a >= 0, against N(0, 1).

    ``steepest`` is the largest a, ``jump`` is the largest gap between values of a, and ``unseen`` is the probability
    that a is 0. ``rounding`` is the absolute error of a loss, in addition to rounding in the last digits.
    """

    rounding: float = 0.0

    @property
    @abstractmethod
    def steepest(self) -> float: ...
    @property
    @abstractmethod
    def jump(self) -> float: ...
    @property
    @abstractmethod
    def unseen(self) -> float: ...
    @abstractmethod
    def at(self, x: FloatArray) -> Local: ...

    @abstractmethod
    def far(self, log_tail: float) -> float:
        """Return the x above which the mixture has this log-probability."""

    @abstractmethod
    def tails(self, x: float) -> tuple[float, float, float, float]:
        """Return the mass of N(0, 1) below x, mixture below x, N(0, 1) above x, and mixture minus N(0, 1) above x."""

    def loss(self, x: FloatArray) -> FloatArray:
        """Return the loss without its derivatives."""
        return self.at(x).loss

    def within(self, low: float, high: float) -> Mixture:
        """Return the mixture for x in this range, without values of a that are negligible there."""
        return self

    def quick(self, low: float, high: float) -> Points | Interpolated:
        """Return the mixture for x in this range, as a sum of few terms or interpolated."""
        ends = _UNIT * math.floor(low / _UNIT), _UNIT * math.ceil(high / _UNIT)
        if ends not in self._known:
            within = self.within(*ends)
            few = within if isinstance(within, Points) and within.points.size <= _FEW else None
            self._known[ends] = few or interpolated(within, *ends)
        return self._known[ends]

    @cached_property
    def _known(self) -> dict[tuple[float, float], Points | Interpolated]:
        return {}


@dataclass(frozen=True, eq=False)
class Points(Mixture):
    """Non-negative values of a in increasing order, with logs of their probabilities."""

    points: FloatArray
    log_mass: FloatArray
    missing: float = 0.0  # probability of values left out, which are negligible in the range of x

    @property
    def steepest(self) -> float:
        return float(self.points[-1])

    @cached_property
    def jump(self) -> float:
        return float(np.max(np.diff(self.points), initial=0.0))

    @property
    def unseen(self) -> float:
        return math.exp(float(self.log_mass[0])) if self.points[0] == 0.0 else 0.0

    def at(self, x: FloatArray) -> Local:
        parts = []
        for part in self._parts(x):
            loss, share = self._shares(part)
            slope = share @ self.points
            parts.append((loss, slope, np.vecdot(share, np.square(self.points - slope[:, None]))))
        return Local(*(np.concatenate(column).reshape(np.shape(x)) for column in zip(*parts, strict=True)))

    def loss(self, x: FloatArray) -> FloatArray:
        return np.concatenate([self._shares(part)[0] for part in self._parts(x)]).reshape(np.shape(x))

    def _parts(self, x: FloatArray) -> list[FloatArray]:
        flat, width = np.ravel(x), max(1, _AT_ONCE // self.points.size)
        return [flat[start : start + width] for start in range(0, max(flat.size, 1), width)]

    def _shares(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        exponent = np.multiply.outer(x, self.points) - 0.5 * self.points**2
        logs = exponent + self.log_mass
        top = logs.max(axis=1)
        share = np.exp(logs - top[:, None])
        total = share.sum(axis=1)
        loss = np.log(total) + top
        small = np.abs(loss) < 0.5
        if small.any():
            # A sum of probability times ratio is near 1 and loses digits. Sum probability times (ratio - 1) instead.
            exponent, mass = exponent[small], np.exp(self.log_mass)
            excess = np.where(
                exponent < 1.0, mass * np.expm1(np.minimum(exponent, 1.0)), np.exp(logs[small]) - mass
            ).sum(axis=1)
            loss[small] = np.log1p(excess - self.missing)
        return loss, share / total[:, None]

    def spread(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Bound Var[a | x] for x between ``left`` and ``right``, by the mean square distance of a from one value."""
        centre = 0.5 * (self.at(left).slope + self.at(right).slope)
        result = np.zeros_like(centre)
        for x, sign in (right, 1.0), (left, -1.0):
            logs = np.multiply.outer(x, self.points) - 0.5 * self.points**2 + self.log_mass
            share = np.exp(logs - logs.max(axis=-1, keepdims=True))
            beyond = np.maximum(sign * (self.points - centre[..., None]), 0.0)
            result += np.vecdot(share, np.square(beyond)) / share.sum(axis=-1)
        return result

    def within(self, low: float, high: float) -> Mixture:
        x = np.linspace(low, high, 65)
        logs = np.multiply.outer(x, self.points) - 0.5 * self.points**2 + self.log_mass
        # The log of a share has a slope of at most the range of a, which bounds its growth between grid points.
        step = (x[1] - x[0]) * (self.steepest - float(self.points[0]))
        shares = (logs - np.logaddexp.reduce(logs, axis=1)[:, None]).max(axis=0)
        kept = np.flatnonzero(shares > _NEGLIGIBLE - step)
        part = slice(int(kept[0]), int(kept[-1]) + 1)
        if part.stop - part.start == self.points.size:
            return self
        out = np.ones(self.points.size, dtype=bool)
        out[part] = False
        missing = self.missing + float(np.exp(self.log_mass[out]).sum())
        return Points(self.points[part], self.log_mass[part], missing)

    def tails(self, x: float) -> tuple[float, float, float, float]:
        mass = np.exp(self.log_mass)
        below, above = float(ndtr(x)), float(ndtr(-x))
        return below, float(mass @ ndtr(x - self.points)), above, float(mass @ (ndtr(self.points - x) - above))

    def far(self, log_tail: float) -> float:
        return falling_root(
            lambda x: float(np.logaddexp.reduce(self.log_mass + log_ndtr(self.points - x))), log_tail, 0.0
        )


def falling_root(function: Callable[[float], float], goal: float, start: float, tolerance: float = 1e-14) -> float:
    """Return the point at which a falling function has the value ``goal``, by doubling, bisection and secants."""
    low, step = start, 1.0
    while function(low) < goal:
        low, step = low - step, 2.0 * step
    high, step = low + 1.0, 2.0
    while function(high) > goal:
        low, high, step = high, high + step, 2.0 * step
    at_low, at_high = function(low) - goal, function(high) - goal
    for turn in range(200):
        if high - low <= tolerance * max(1.0, abs(low), abs(high)) or at_low == at_high:
            break
        secant = low + (high - low) * at_low / (at_low - at_high)
        middle = secant if turn % 3 and low < secant < high else 0.5 * (low + high)
        value = function(middle) - goal
        if value > 0.0:
            low, at_low = middle, value
        else:
            high, at_high = middle, value
    return high


def binomial_points(trials: int, rate: float, unit: float) -> Points:
    """Return the mixture in which a is ``unit`` times a binomial variable, 0 < rate < 1."""
    spread = math.sqrt(-2.0 * LEAST_LOG_MASS * trials * rate * (1.0 - rate)) - LEAST_LOG_MASS
    low, high = max(0.0, math.floor(trials * rate - spread)), min(float(trials), math.ceil(trials * rate + spread))
    count = np.arange(low, high + 1.0)
    log_mass = np.asarray(binomial.log_binomial(count, np.float64(trials), np.float64(rate)))
    if low == 0.0:
        log_mass[0] = trials * math.log1p(-rate)
    kept = np.flatnonzero(log_mass > LEAST_LOG_MASS)
    part = slice(int(kept[0]), int(kept[-1]) + 1)
    return Points(unit * count[part], log_mass[part])


# Interpolation: line integrals need the loss at tens of thousands of x. Every panel is halved until its last Chebyshev
# coefficients vanish.

_DEGREE = 24
_LAST = 3  # number of last coefficients that must vanish
_VANISHED = 2e-15  # relative to the largest coefficient
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

    ends: FloatArray
    coefficients: FloatArray  # indexed by [loss, slope or curvature; panel; order]

    def at(self, x: FloatArray) -> Local:
        return Local(*(self._values(x, which) for which in range(3)))

    def loss(self, x: FloatArray) -> FloatArray:
        return self._values(x, 0)

    def _values(self, x: FloatArray, which: int) -> FloatArray:
        panel = np.clip(np.searchsorted(self.ends, x, side="right") - 1, 0, self.ends.size - 2)
        low, high = self.ends[panel], self.ends[panel + 1]
        place = np.clip((2.0 * x - low - high) / (high - low), -1.0, 1.0)
        columns = np.ascontiguousarray(self.coefficients[which].T)
        now, before = np.zeros_like(place), np.zeros_like(place)
        for order in range(_DEGREE - 1, 0, -1):
            now, before = columns[order][panel] + 2.0 * place * now - before, now
        result: FloatArray = columns[0][panel] + place * now - before
        return result


def interpolated(mixture: Mixture, low: float, high: float) -> Interpolated:
    """Return the mixture with its loss interpolated for x in this range."""
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
    return Interpolated(ends, np.concatenate([part[2] for part in done], axis=1)[:, order])
