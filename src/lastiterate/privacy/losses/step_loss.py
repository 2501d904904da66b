"""The privacy loss L(x) = log(1 - q + q exp(a x - a^2 / 2)) of one step, x ~ N(0, 1), and integrals of exp(s L).

L is flat on the left and has slope a = 1 / sigma on the right. Integrals over x run over a window, outside of which
there is next to no probability. The Gauss-Legendre panels are as narrow as exp(s L) and the bend of L require. The
error of the panels has an explicit bound (docs/method.md, "The ends are proved").
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import expit, ndtr, ndtri_exp

from lastiterate.common.types import FloatArray, IntArray
from lastiterate.privacy.mixtures.fourier import Unreliable
from lastiterate.privacy.mixtures.solve import HALF_LOG_TAU

_PANEL_NODES = 32
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(_PANEL_NODES)
_LOG_WEIGHTS = np.log(_WEIGHTS)
TURN = 24.0  # largest change of the integrand's phase (radians) or log in half a panel
BEND = 1.5  # widths of panels near the bend, in units of the distance from the bend to the singularities of L
RISE = 3.0  # largest growth of log L' in a panel
_MOST_NODES = 400_000
_LARGEST_SLOPE = 1e6  # for larger slopes the panels at the bend are narrower than rounding allows
_LARGEST_ORDER = 1e30
_ELLIPSES = np.array([1.2, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.5, 8.0])


@dataclass(frozen=True, eq=False)
class Nodes:
    """A quadrature: nodes, losses at the nodes, and the logs of weight times density of N(0, 1)."""

    x: FloatArray
    loss: FloatArray
    log_weight: FloatArray
    ends: FloatArray  # ends of the panels, in x


class Loss(ABC):
    """The loss of a step or of a block of steps: nodes for integrals of exp(s L), and what they leave out.

    P is the distribution with the canary, Q without it. Nodes are drawn from Q. If ``mirrored``, Q has other examples
    instead of the canaries, with opposite gradients.
    """

    mirrored: bool = False

    @property
    @abstractmethod
    def last(self) -> float: ...  # the largest x of the nodes
    @property
    @abstractmethod
    def largest(self) -> float: ...  # the largest loss that is not left out
    @property
    @abstractmethod
    def is_capped(self) -> bool: ...  # True if the window ends at the cap, not at a negligible probability
    @property
    @abstractmethod
    def above(self) -> tuple[float, float]: ...  # probability above the cap: under Q, and under P minus under Q
    @property
    @abstractmethod
    def outside(self) -> tuple[float, float]: ...  # probability outside of the nodes, under P and under Q
    @property
    @abstractmethod
    def left_out(self) -> float: ...  # the neglected probability: under P for P over Q, under Q for Q over P

    @abstractmethod
    def moved_at(self, nodes: Nodes) -> FloatArray:
        """Return the error of the loss at each node, in ulps, due to rounding of x and its factors."""

    @abstractmethod
    def log_error(self, nodes: Nodes, order: float, frequency: float) -> float:
        """Return the log of a bound on the error of quadrature of exp(s L), with Im s up to ``frequency``."""

    @abstractmethod
    def nodes(self, order: float, frequency: float, fineness: float = 1.0) -> Nodes:
        """Return nodes for integrals of exp(s L) with Re s = ``order`` and Im s up to ``frequency``."""

    def roughly(self, size: float) -> Nodes:
        """Return nodes that serve all real orders up to ``size``."""
        if size not in self._known:
            self._known[size] = self.nodes(size, 0.0)
        return self._known[size]

    @cached_property
    def _known(self) -> dict[float, Nodes]:
        return {}


class WindowLoss(Loss):
    """A loss L(x) that increases in x, on a window of x."""

    log_left_out: float

    @abstractmethod
    def loss(self, x: FloatArray) -> FloatArray: ...
    @abstractmethod
    def moved(self, x: FloatArray) -> FloatArray: ...  # error of the loss in ulps due to rounding of x and its factors
    @property
    @abstractmethod
    def steepest(self) -> float: ...  # an upper bound on L'
    @property
    @abstractmethod
    def _far(self) -> float: ...  # the x above which there is next to no probability
    @property
    @abstractmethod
    def _at_cap(self) -> float: ...  # the x at which the loss equals the cap

    @cached_property
    def window(self) -> tuple[float, float]:
        """The lower and upper limit of x."""
        return float(ndtri_exp(self.log_left_out - math.log(2.0))), min(self._far, self._at_cap)

    @property
    def last(self) -> float:
        return self.window[1]

    @property
    def largest(self) -> float:
        return float(self.loss(np.asarray(self.window[1])))

    @property
    def is_capped(self) -> bool:
        return self._at_cap < self._far

    def moved_at(self, nodes: Nodes) -> FloatArray:
        return self.moved(nodes.x)

    @abstractmethod
    def _places(self, size: float) -> tuple[FloatArray, FloatArray]:
        """Return increasing x across the window, and the number of panels up to each x, for |s| = size."""

    def log_density(self, x: FloatArray) -> FloatArray | float:
        """Return the log of the density of Q divided by the density of N(0, 1)."""
        return 0.0

    def nodes(self, order: float, frequency: float, fineness: float = 1.0) -> Nodes:
        if not (self.steepest < _LARGEST_SLOPE and abs(order) < _LARGEST_ORDER):
            raise Unreliable
        at, place = self._places(math.hypot(order, frequency))
        place = fineness * place
        place -= place[0]
        if not place[-1] * _PANEL_NODES <= _MOST_NODES:
            raise Unreliable
        ends = np.interp(np.linspace(0.0, place[-1], math.ceil(place[-1]) + 1), place, at)
        half, middle = 0.5 * np.diff(ends), 0.5 * (ends[1:] + ends[:-1])
        x = (middle[:, None] + half[:, None] * _NODES).ravel()
        weight = (np.log(half)[:, None] + _LOG_WEIGHTS).ravel()
        return Nodes(x, self.loss(x), weight - 0.5 * x * x - HALF_LOG_TAU + self.log_density(x), ends)


@dataclass(frozen=True, eq=False)
class StepLoss(WindowLoss):
    """The loss of one step on a window of x with all but exp(``log_left_out``) of the probability.

    The probability is that of the mixture if ``remove``, otherwise of N(0, 1). Losses above ``cap`` are outside of the
    window too and are accounted for separately.
    """

    rate: float
    slope: float
    remove: bool
    log_left_out: float
    cap: float = math.inf

    def loss(self, x: FloatArray) -> FloatArray:
        exponent = self.slope * x - 0.5 * self.slope**2
        small = np.log1p(self.rate * np.expm1(np.minimum(exponent, 1.0)))
        large = np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + exponent)
        return np.where(exponent < 1.0, small, large)

    def moved(self, x: FloatArray) -> FloatArray:
        share: FloatArray = expit(self.slope * (x - self.bend))
        return np.abs(x) * self.slope * share

    @property
    def steepest(self) -> float:
        return self.slope

    @cached_property
    def bend(self) -> float:
        """The x at which L turns from flat to steep. The singularities of L are pi / slope above and below it."""
        return 0.5 * self.slope + math.log((1.0 - self.rate) / self.rate) / self.slope

    @cached_property
    def _far(self) -> float:
        log_quarter = self.log_left_out - math.log(4.0)
        far = -float(ndtri_exp(log_quarter))
        if not self.remove:
            return far
        with_canary = self.slope - float(ndtri_exp(min(log_quarter - math.log(self.rate), -math.log(2.0))))
        # A smooth maximum, because steps are interpolated between steps with a little more or less noise.
        return 0.5 * (far + with_canary + math.hypot(far - with_canary, 0.5))

    @cached_property
    def _at_cap(self) -> float:
        if not math.isfinite(self.cap):
            return math.inf
        excess = math.expm1(min(self.cap, 700.0)) / self.rate  # exp(a x - a^2 / 2) - 1 at the cap
        log_ratio = self.cap - math.log(self.rate) if self.cap > 30.0 else math.log1p(excess)
        return 0.5 * self.slope + log_ratio / self.slope

    @cached_property
    def above(self) -> tuple[float, float]:
        high = self.window[1]
        without = float(ndtr(-high))
        return without, self.rate * float(ndtr(self.slope - high) - without)

    @cached_property
    def outside(self) -> tuple[float, float]:
        low = self.window[0]
        out, shifted = float(ndtr(low)), float(ndtr(low - self.slope))
        without, more = self.above
        return (1.0 - self.rate) * out + self.rate * shifted + without + more, out + without

    @property
    def left_out(self) -> float:
        if self.is_capped:
            return float(ndtr(self.window[0]))
        return self.outside[0 if self.remove else 1]

    def _places(self, size: float) -> tuple[FloatArray, FloatArray]:
        low, high = self.window
        width = math.pi / self.slope
        reach = math.asinh((high - low + abs(self.bend)) / width)
        near = self.bend + width * np.sinh(np.linspace(-reach, reach, 61))
        x = np.concatenate((np.linspace(low, high, 81), near[(near > low) & (near < high)]))
        x.sort()
        turned = size * self.loss(x) + 0.5 * x * np.abs(x) + 4.0 * x
        bent = np.arcsinh((x - self.bend) / width) / BEND
        rising = self.slope * (x - self.bend)  # left of the bend L' grows like exp(rising); it matters above 1 / |s|
        risen = np.logaddexp(0.0, rising + math.log1p(size)) - np.logaddexp(0.0, rising)
        return x, turned / (2.0 * TURN) + bent + risen / RISE

    def log_error(self, nodes: Nodes, order: float, frequency: float) -> float:
        """Return the log of a bound on the error of quadrature, the smallest of the bounds of several ellipses.

        Take an ellipse around a panel, with foci at the panel's ends and half axes that add up to rho times its half
        width. Then n Gauss-Legendre nodes err by at most (64 / 15) rho^(-2n) / (1 - rho^-2) times the half width times
        the largest modulus of the integrand on the ellipse.
        """
        left, right, high = panel_ellipses(nodes)
        # |1 - q + q e^(w + iv)| is e^L(x) times a factor in [least, 1].
        closest = np.clip(self.bend, left, right)
        share = expit(self.slope * (closest - self.bend))
        turned = np.square(np.sin(0.5 * np.minimum(self.slope * high, math.pi)))
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            least = np.sqrt(np.maximum(1.0 - 4.0 * share * (1.0 - share) * turned, 0.0))
            steepest = self.slope * expit(self.slope * (right - self.bend))
            turning = frequency * high * steepest / least
            growth = order * self.loss(right) if order >= 0.0 else order * (self.loss(left) + np.log(least))
        return log_panel_errors(nodes, growth + turning)


def panel_ellipses(nodes: Nodes) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return several ellipses around each panel: left and right ends on the real line, and height above it."""
    half = 0.5 * np.diff(nodes.ends)[:, None]
    middle = 0.5 * (nodes.ends[1:] + nodes.ends[:-1])[:, None]
    wide, high = 0.5 * half * (_ELLIPSES + 1.0 / _ELLIPSES), 0.5 * half * (_ELLIPSES - 1.0 / _ELLIPSES)
    return middle - wide, middle + wide, high


def log_panel_errors(nodes: Nodes, log_size: FloatArray) -> float:
    """Return the log of a bound on the error of quadrature, where exp(log_size) bounds |exp(s L)| on each ellipse."""
    left, right, high = panel_ellipses(nodes)
    half = 0.5 * np.diff(nodes.ends)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inner = np.maximum(np.maximum(left, -right), 0.0)
        log_most = log_size + 0.5 * (high * high - inner * inner) - HALF_LOG_TAU
        log_rate = -2.0 * _PANEL_NODES * np.log(_ELLIPSES) - np.log1p(-(_ELLIPSES**-2))
        bound = np.nan_to_num(log_most + log_rate, nan=np.inf, posinf=np.inf).min(axis=1)
    return float(np.logaddexp.reduce(bound + np.log(half * 64.0 / 15.0)))


def moments_of(steps: Sequence[Loss], order: float, known: dict[float, Segments] | None = None) -> FloatArray:
    """Return log E exp(s L) on the window, and mean and variance of L under the tilt exp(s L), in a row for each step.

    The nodes serve all real orders s up to a power of four. ``known`` caches the nodes.
    """
    size = 4.0 ** math.ceil(math.log(max(abs(order), 4.0), 4.0))
    known = {} if known is None else known
    if size not in known:
        known[size] = Segments.of([step.roughly(size) for step in steps])
    segments = known[size]
    loss = segments.loss
    exponent = segments.log_weight + order * loss
    top = np.maximum.reduceat(exponent, segments.starts)
    mass = np.exp(exponent - segments.spread(top))
    total = segments.sums(mass)
    mean = segments.sums(mass * loss) / total
    variance = segments.sums(mass * np.square(loss - segments.spread(mean))) / total
    value = np.log(total) + top
    small = np.flatnonzero(np.abs(value) < 0.5)
    if small.size:
        # A small value is multiplied by the number of steps. Keep its relative accuracy, using E e^L = 1.
        rise = weighted_rise(segments, order)
        outside = np.array([steps[index].outside for index in small.tolist()])
        missing = order * (outside[:, 1] - outside[:, 0]) - outside[:, 1]
        value[small] = np.log1p(segments.sums(rise)[small] + missing)
    return np.stack((value, mean, variance), axis=1)


@dataclass(frozen=True, eq=False)
class Segments:
    """The nodes of several steps, concatenated."""

    loss: FloatArray
    log_weight: FloatArray
    starts: IntArray
    lengths: IntArray

    @classmethod
    def of(cls, nodes: list[Nodes]) -> Segments:
        lengths = np.array([each.loss.size for each in nodes])
        if not lengths.all():  # all losses of a step are left out
            raise Unreliable
        starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
        loss, log_weight = (np.concatenate([getattr(each, name) for each in nodes]) for name in ("loss", "log_weight"))
        return cls(loss, log_weight, starts, lengths)

    def sums(self, values: FloatArray) -> FloatArray:
        """Return the sum over each step's nodes."""
        if self.lengths.size == 1:
            return np.array([values.sum()])
        return np.add.reduceat(values, self.starts)

    def spread(self, values: FloatArray) -> FloatArray:
        """Repeat the value of each step at all nodes of the step."""
        return np.repeat(values, self.lengths)


def weighted_rise(nodes: Nodes | Segments, order: float) -> FloatArray:
    """Return exp(s L) - 1 - s (e^L - 1) at each node, times the node's weight."""
    weight, loss = np.exp(nodes.log_weight), nodes.loss

    def growth(factor: float) -> FloatArray:  # weight (exp(factor L) - 1); exp may be large where the weight is small
        exponent = factor * loss
        small = weight * np.expm1(np.minimum(exponent, 1.0))
        return np.where(exponent < 1.0, small, np.exp(nodes.log_weight + exponent) - weight)

    return growth(order) - order * growth(1.0)
