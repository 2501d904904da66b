"""The privacy loss of a mixture of Gaussians: log E exp(a x - a^2 / 2), where a is what the canary adds.

That of one step has two values of a, 0 and 1 / sigma. A person's examples have more, and a block of steps between two
released iterates has many. The loss is convex in x, with slope E[a | x] and curvature Var[a | x].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from scipy.special import log_ndtr, ndtr

from lastiterate.common.types import FloatArray
from lastiterate.privacy.mixtures import support as binomial
from lastiterate.privacy.mixtures.fourier import Unreliable

LEAST_LOG_MASS = -800.0  # of a value of a; all that is smaller is no float, nor any delta that is asked for
_NEGLIGIBLE = -42.0  # log of a share of the sum
_AT_ONCE = 1_000_000  # numbers in memory
_FEW = 48  # values that may be summed at every x


class Local(NamedTuple):
    """The loss at some x, and its first two derivatives."""

    loss: FloatArray
    slope: FloatArray
    curvature: FloatArray


class Mixture(Protocol):
    """What is known of a mixture."""

    @property
    def steepest(self) -> float:
        """The largest a."""

    @property
    def jump(self) -> float:
        """By how much the values of a are apart, at most."""

    @property
    def unseen(self) -> float:
        """The probability that a is 0."""

    @property
    def is_quick(self) -> bool:
        """Whether losses are sums over few a, at any x; their rounding errors are then known as well."""

    @property
    def known(self) -> dict[tuple[float, float], Mixture]:
        """The same, as quick as may be, for some ranges of x."""

    @property
    def rounding(self) -> float:
        """The absolute error of a loss, beside that of the last digits."""

    def at(self, x: FloatArray) -> Local: ...

    def loss(self, x: FloatArray) -> FloatArray:
        """The loss alone, which is quicker."""

    def within(self, low: float, high: float) -> Mixture:
        """The same, as quick as may be for x in between."""

    def far(self, log_tail: float) -> float:
        """The x above which the mixture has this log-probability."""

    def spread(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """At least the curvature everywhere between ``left`` and ``right``."""

    def tails(self, x: float) -> tuple[float, float, float, float]:
        """How probable is it that N(0, 1) is below x, and the mixture; that N(0, 1) is above, and by how much more so
        the mixture."""


@dataclass(frozen=True, eq=False)
class Points:
    """Values of a in increasing order, not negative, with the logarithms of their probabilities."""

    points: FloatArray
    log_mass: FloatArray
    missing: float = 0.0  # probability of values left out, which matter nowhere in the range of x

    @property
    def is_quick(self) -> bool:
        return self.points.size <= _FEW

    @cached_property
    def known(self) -> dict[tuple[float, float], Mixture]:
        return {}

    @property
    def rounding(self) -> float:
        return 0.0

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
        """All x, so many of them at once as memory allows."""
        flat, width = np.ravel(x), max(1, _AT_ONCE // self.points.size)
        return [flat[start : start + width] for start in range(0, max(flat.size, 1), width)]

    def _shares(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The loss, and the probabilities of the values of a given x."""
        exponent = np.multiply.outer(x, self.points) - 0.5 * self.points**2
        logs = exponent + self.log_mass
        top = logs.max(axis=1)
        share = np.exp(logs - top[:, None])
        total = share.sum(axis=1)
        loss = np.log(total) + top
        small = np.abs(loss) < 0.5
        if small.any():
            # Sums of probability times (ratio - 1) have the digits that 1 swamps in those of probability times ratio.
            exponent, mass = exponent[small], np.exp(self.log_mass)
            excess = np.where(
                exponent < 1.0, mass * np.expm1(np.minimum(exponent, 1.0)), np.exp(logs[small]) - mass
            ).sum(axis=1)
            loss[small] = np.log1p(excess - self.missing)
        return loss, share / total[:, None]

    def spread(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """At least the curvature everywhere between ``left`` and ``right``.

        The variance of a is at most its mean square distance to any c. Where a > c that rises with x, below it falls.
        """
        centre = 0.5 * (self.at(left).slope + self.at(right).slope)
        result = np.zeros_like(centre)
        for x, sign in (right, 1.0), (left, -1.0):
            logs = np.multiply.outer(x, self.points) - 0.5 * self.points**2 + self.log_mass
            share = np.exp(logs - logs.max(axis=-1, keepdims=True))
            beyond = np.maximum(sign * (self.points - centre[..., None]), 0.0)
            result += np.vecdot(share, np.square(beyond)) / share.sum(axis=-1)
        return result

    def within(self, low: float, high: float) -> Mixture:
        """Without values whose share of the sum is negligible in this range."""
        x = np.linspace(low, high, 65)
        logs = np.multiply.outer(x, self.points) - 0.5 * self.points**2 + self.log_mass
        # The logarithm of a share has a slope of at most the range of a: so much more may it be in between.
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
        """The x above which the mixture has this log-probability."""
        return falling_root(
            lambda x: float(np.logaddexp.reduce(self.log_mass + log_ndtr(self.points - x))), log_tail, 0.0
        )


def falling_root(function: Callable[[float], float], goal: float, start: float, tolerance: float = 1e-14) -> float:
    """Where a falling function has the value ``goal``: by doubling, then by halving, then by secants."""
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
    """a is ``unit`` times a binomial variable, 0 < rate < 1."""
    spread = math.sqrt(-2.0 * LEAST_LOG_MASS * trials * rate * (1.0 - rate)) - LEAST_LOG_MASS
    low, high = max(0.0, math.floor(trials * rate - spread)), min(float(trials), math.ceil(trials * rate + spread))
    count = np.arange(low, high + 1.0)
    log_mass = np.asarray(binomial.log_binomial(count, np.float64(trials), np.float64(rate)))
    if low == 0.0:
        log_mass[0] = trials * math.log1p(-rate)
    kept = np.flatnonzero(log_mass > LEAST_LOG_MASS)
    part = slice(int(kept[0]), int(kept[-1]) + 1)
    return Points(unit * count[part], log_mass[part])


# The loss of a mixture with many values, or with a law that is only known by its transform, by piecewise polynomials.
#
# Lines need a loss at tens of thousands of x. Every panel is halved until the last Chebyshev coefficients have
# vanished.

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
