"""Privacy loss of convex training: one step, and the cumulant generating function of all steps.

A step of convex training (docs/method.md, "Convex losses") is the pair (1 - q) N(a) + q N(a + 1) against N(0), in units
of learning rate times clipping norm. The noise of the step hides the part a of the distance between the two trainings.
Each of many steps has its own a, and the distance is random. Let L be the loss of a step. M(a, s) = log E exp(s L) is
interpolated in a, and

    K(z) = log E exp(sum_t M(a_t, s)).

The mean in K is over the random distance. All a are proportional to the distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import ndtr

from lastiterate.common.types import BoolArray, FloatArray
from lastiterate.privacy.convex.distances import Distances, geometric_sum
from lastiterate.privacy.losses.loss_cumulant import LossCumulant
from lastiterate.privacy.losses.step_loss import Loss, Nodes, Segments, StepLoss, moments_of
from lastiterate.privacy.mixtures.fourier import Complex, Effort, Unreliable

# Loss of one step, whose noise hides both a shift a and the canary: (1 - q) N(a) + q N(a + b) against N(0), unit noise.
# The loss a x - a^2 / 2 + log(1 - q + q exp(b (x - a) - b^2 / 2)) is a Gaussian loss plus that of `StepLoss` at x - a.

_OF_A_STEP = 3000.0  # fixed cost of a step, counted in numbers of `Effort`


@dataclass(frozen=True, eq=False)
class ShiftedLoss(StepLoss):
    """The loss of a step that also hides a ``shift``. It has no cap."""

    shift: float = field(kw_only=True)
    effort: Effort = field(default_factory=Effort, kw_only=True)

    def nodes(self, order: float, frequency: float, fineness: float = 1.0) -> Nodes:
        self.effort.spend(0.0)
        nodes = super().nodes(order, frequency, fineness)
        self.effort.spend(_OF_A_STEP + nodes.x.size)
        return nodes

    def loss(self, x: FloatArray) -> FloatArray:
        return self.shift * (x - 0.5 * self.shift) + super().loss(x - self.shift)

    @property
    def steepest(self) -> float:
        return self.slope + self.shift

    @cached_property
    def bend(self) -> float:
        return super().bend + self.shift

    @cached_property
    def _far(self) -> float:
        return super()._far + self.shift if self.remove else super()._far

    @cached_property
    def above(self) -> tuple[float, float]:
        high = self.window[1]
        without = float(ndtr(-high))
        return without, self._of_mixture(lambda centre: float(ndtr(centre - high))) - without

    @cached_property
    def outside(self) -> tuple[float, float]:
        low, _ = self.window
        without, more = self.above
        below = self._of_mixture(lambda centre: float(ndtr(low - centre)))
        return below + without + more, float(ndtr(low)) + without

    def log_error(self, nodes: Nodes, order: float, frequency: float) -> float:
        raise Unreliable  # there is no proved error bound

    def _of_mixture(self, probability: Callable[[float], float]) -> float:
        return (1.0 - self.rate) * probability(self.shift) + self.rate * probability(self.shift + self.slope)


# Cumulant of all steps: interpolation of M(a, s) in a, and the mean over distances.

_NODES = 6  # initial number of interpolation nodes in a panel
_MOST_NODES = 96
_CHECK = 0.47  # where the interpolation is checked, as a share of each panel's width
_ERROR, _ERROR_OF_SLOPES = 1e-6, 1e-3  # errors of the interpolation at real orders, relative to the largest value
_ERROR_ALONG = 1e-6  # error of K along a line, where exp(K) is not negligible
_MOST_ERRORS = 10.0  # largest error accepted, in units of _ERROR_ALONG; the allowance grows with the error
ALLOWANCE = 10.0 * _ERROR_ALONG  # for errors of K, which may be larger between the points that are checked
_VANISHED = 45.0  # a term is negligible below exp(-_VANISHED)
_CLEAR = 4.0  # largest a * frequency / noise at which log E exp(s L) keeps its digits
_MOST_PANELS = 12
_MOST_VALUES = 600_000  # largest number of values of M along a line
_CONVERGES = 8.0  # doubling the nodes lowers the error at least by this factor if the interpolation converges
_SMOOTHING = 0.1  # mu of one additional Gaussian release, in units of the standard deviation of the loss
_QUICKER = 10.0  # an interpolation weight costs this many times less than an interpolated value
_GROUPS = 200  # largest number of groups of steps; the a of a group are rounded up to the largest of them


@dataclass(frozen=True, eq=False)
class ShiftedCumulant(LossCumulant):
    """K(z) of P over Q (``remove``) or of Q over P, for steps of the same rate and noise.

    At the largest distance, ``group_counts[j]`` steps have a = ``shifts[j]``. ``relative`` holds the distances in units
    of the largest distance, and ``log_mass`` their log-probabilities.
    """

    shifts: FloatArray = field(kw_only=True)
    group_counts: FloatArray = field(kw_only=True)
    relative: FloatArray = field(kw_only=True)
    log_mass: FloatArray = field(kw_only=True)
    smoothing: float = field(kw_only=True)
    effort: Effort = field(default_factory=Effort, kw_only=True)
    _usual_nodes: dict[int, int] = field(default_factory=dict, init=False, repr=False)  # by number of panels
    _known_table: dict[tuple[int, int], _Table] = field(default_factory=dict, init=False, repr=False)

    def other_direction(self) -> ShiftedCumulant:
        """Return K(z) of Q over P. There is no cap, because losses are unbounded."""
        return replace(self, remove=False)

    @property
    def _cannot_be_capped(self) -> bool:
        return True

    def largest_loss(self) -> float:
        return math.inf

    def real(self, theta: float) -> tuple[float, float, float]:
        if theta not in self._known_moments:
            table = self._table_at(self.order(theta))
            value, mean, variance = (table.shares(self) @ table.moments(self.order(theta))).T
            mean = mean if self.remove else -mean
            weight = value + self.log_mass
            top = float(weight.max())
            mass = np.exp(weight - top)
            total = float(mass.sum())
            average = float(mass @ mean) / total
            spread = float(mass @ (variance + np.square(mean - average))) / total
            square = self.smoothing**2
            self._known_moments[theta] = (
                math.log(total) + top + 0.5 * square * theta * (theta + 1.0),
                average + square * (theta + 0.5),
                spread + square,
            )
        return self._known_moments[theta]

    def along(self, theta: float, spacing: float, count: int, fineness: float = 1.0) -> Complex:
        return self.with_error(theta, spacing, count, fineness)[0]

    def with_error(self, theta: float, spacing: float, count: int, fineness: float = 1.0) -> tuple[Complex, float]:
        """Return K along a line, and its error in units of ``_ERROR_ALONG``.

        If the product of a and u is large, exp(M) is only rounding error. Panels in a keep this error away from smaller
        a.
        """
        panels = self._panels(max(spacing * (count - 1), abs(theta) / float(self.sigmas[0])))
        nodes = self._usual_nodes.get(panels, _NODES)
        while nodes > _NODES and nodes * panels * count > _MOST_VALUES:
            nodes //= 2
        u = spacing * np.arange(count)
        # The sum of the squares of all a, divided by the squares of the largest a and of the noise.
        fall = float(self.group_counts @ np.square(self.shifts)) / float(self.shifts[0] * self.sigmas[0]) ** 2
        best: tuple[Complex, float] | None = None
        while nodes <= _MOST_NODES and nodes * panels * count <= _MOST_VALUES:
            self.effort.spend((2 * nodes * panels + self.relative.size) * count)
            table = self._table(nodes, panels)
            logs, checks = (
                np.array(list(self._logs(steps, theta, spacing, count, fineness)))
                for steps in (table.steps, table.check_steps)
            )
            logs.imag = np.unwrap(logs.imag, axis=0)  # logarithms lose multiples of 2 pi, which matter between nodes
            off_by = table.between @ logs - checks  # up to multiples of 2 pi i
            turned = np.remainder(off_by.imag + math.pi, 2.0 * math.pi) - math.pi
            error = np.hypot(off_by.real, turned) * float(self.counts[0])
            squares = fall * np.square(table.checks)[:, None] + self.smoothing**2
            z = theta + 1j * u
            exponent = table.shares(self) @ logs + self.log_mass[:, None]
            top = exponent.real.max(axis=0)
            exponent -= top
            terms = np.zeros_like(exponent)
            np.exp(exponent, out=terms, where=exponent.real > -_VANISHED)
            with np.errstate(divide="ignore"):
                result = np.log(terms.sum(axis=0)) + top + 0.5 * self.smoothing**2 * z * (z + 1.0)
            fallen = np.maximum(0.5 * squares * np.square(u), result[0].real - result.real)
            off = float(np.max(error * np.exp(-np.minimum(fallen, _VANISHED)))) / _ERROR_ALONG
            if off < 1.0:
                self._usual_nodes[panels] = nodes
                return result, 1.0
            last = math.inf if best is None else best[1]
            if off < last:
                best = result, off
            if not off < last / _CONVERGES:
                break
            nodes *= 2
        if best is None or not best[1] < _MOST_ERRORS:
            raise Unreliable
        return best

    def _table_at(self, order: float) -> _Table:
        """Return the interpolation in a for a real order. A stronger tilt needs more panels and nodes."""
        panels = self._panels(abs(order) / float(self.sigmas[0]))
        nodes = self._known_nodes.get(order, _NODES)
        while order not in self._known_nodes:
            if nodes > _MOST_NODES:
                raise Unreliable
            table = self._table(nodes, panels)
            self.effort.spend(self.relative.size * self.shifts.size * nodes * panels / _QUICKER)
            values = table.moments(order)
            size = np.abs(values).max(axis=0)
            size[0] = max(size[0], size[1])
            error = np.abs(table.between @ values - moments_of(table.check_steps, order)).max(axis=0)
            if np.all(error <= (_ERROR, _ERROR_OF_SLOPES, _ERROR_OF_SLOPES) * size):
                self._known_nodes[order] = nodes
            else:
                nodes += nodes // 2
        return self._table(nodes, panels)

    def _panels(self, frequency: float) -> int:  # a times the frequency is small in the first panel
        wide = float(self.shifts[0]) * frequency / (_CLEAR * float(self.sigmas[0]))
        panels = 1 + max(0, math.ceil(math.log2(max(wide, 1e-300))))
        if panels > _MOST_PANELS:
            raise Unreliable
        return panels

    def _table(self, nodes: int, panels: int) -> _Table:
        key = nodes, panels
        if key not in self._known_table:
            self._known_table[key] = _Table(self, nodes, panels)
        return self._known_table[key]

    def shifted(self, shift: float) -> Loss:
        """Return the loss of a step with this a."""
        rate, slope = float(self.rates[0]), 1.0 / float(self.sigmas[0])
        left_out = self._left_out_of_each
        return ShiftedLoss(rate, slope, self.remove, left_out, shift=shift * slope, effort=self.effort)


class _Table:
    """Steps at the nodes of a piecewise interpolation in a. Each new panel is as wide as all before it together."""

    def __init__(self, cumulant: ShiftedCumulant, nodes: int, panels: int) -> None:
        self.nodes, self.panels, self.effort = nodes, panels, cumulant.effort
        largest = float(cumulant.shifts[0])
        self.ends = largest * np.concatenate(([0.0], 0.5 ** np.arange(panels - 1, -1, -1.0)))
        places = self.ends[:-1, None] + np.diff(self.ends)[:, None] * _places(nodes)
        self.checks = self.ends[:-1] + _CHECK * np.diff(self.ends)
        self.steps = [cumulant.shifted(shift) for shift in places.ravel().tolist()]
        self.check_steps = [cumulant.shifted(shift) for shift in self.checks.tolist()]
        self.between = self.cardinal(self.checks)
        self._known: dict[float, Segments] = {}
        self._shares: FloatArray | None = None

    def moments(self, order: float) -> FloatArray:
        result = moments_of(self.steps, order, self._known)
        self.effort.spend(max(segments.loss.size for segments in self._known.values()))
        return result

    def shares(self, cumulant: ShiftedCumulant) -> FloatArray:
        """Return, for each distance, the weight of M at each node in the sum over all steps."""
        if self._shares is None:
            relative, groups = cumulant.relative.size, cumulant.shifts.size
            rows = self.cardinal(np.multiply.outer(cumulant.relative, cumulant.shifts).ravel())
            self._shares = np.einsum("g,rgn->rn", cumulant.group_counts, rows.reshape(relative, groups, -1))
        return self._shares

    def cardinal(self, shifts: FloatArray) -> FloatArray:
        """Return, for each shift, the weight of each node in the interpolation at this shift."""
        panel = np.clip(np.searchsorted(self.ends, shifts, side="right") - 1, 0, self.panels - 1)
        place = (shifts - self.ends[panel]) / (self.ends[panel + 1] - self.ends[panel])
        result = np.zeros((shifts.size, self.panels, self.nodes))
        result[np.arange(shifts.size), panel] = _cardinal(self.nodes, place)
        return result.reshape(shifts.size, -1)


def shifted_cumulant(
    steps: int, rate: float, sigma: float, contraction: float, before: Distances, effort: Effort
) -> ShiftedCumulant:
    """Return K(z) of P over Q for the last ``steps``. ``before`` is the distance of the trainings before them."""
    together = -(-steps // _GROUPS)  # the optimal a of a step is the contraction times the a of the next step
    first = np.arange(0, steps, together)
    largest = float(before.values[-1])
    scale = contraction**steps * largest / geometric_sum(contraction * contraction, steps)
    rough = ShiftedCumulant(
        np.array([float(steps)]),
        np.array([rate]),
        np.array([sigma]),
        shifts=scale * contraction ** first.astype(np.float64),
        group_counts=np.minimum(steps - first, together).astype(np.float64),
        relative=before.values / largest,
        log_mass=before.log_mass,
        smoothing=0.0,
        effort=effort,
    )
    return replace(rough, smoothing=_SMOOTHING * math.sqrt(max(rough.real(0.0)[2], 0.0)))


@lru_cache(maxsize=64)
def _places(nodes: int) -> FloatArray:  # Chebyshev's points between 0 and 1
    return 0.5 - 0.5 * np.cos(math.pi * (np.arange(nodes) + 0.5) / nodes)


def _cardinal(nodes: int, at: FloatArray) -> FloatArray:
    """Evaluate the polynomials that are 1 at one node and 0 at all others, by the barycentric formula."""
    index = np.arange(nodes)
    weights = np.where(index % 2 == 0, 1.0, -1.0) * np.sin(math.pi * (index + 0.5) / nodes)
    distance = at[:, None] - _places(nodes)
    exact: BoolArray = np.abs(distance) < 1e-14
    terms = weights / np.where(exact, 1.0, distance)
    terms = np.where(np.any(exact, axis=1, keepdims=True), exact, terms)
    cardinal: FloatArray = terms / terms.sum(axis=1, keepdims=True)
    return cardinal
