"""Privacy loss of convex training: one step, and the cumulant generating function of all steps.

A step of convex training (docs/method.md, "Convex losses") is the pair (1 - q) N(a) + q N(a + 1) against N(0), in units
of learning rate times clipping norm. The noise of the step hides the part a of the distance between the two trainings.
Each of many steps has its own a, and the distance is random. So M(a, s) = log E exp(s L) is interpolated in a, and

    K(z) = log E exp(sum_t M(a_t, s)).

The mean is over the distance, to which all a are proportional.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import ndtr, ndtri_exp

from lastiterate.common.types import BoolArray, FloatArray
from lastiterate.privacy.convex.distances import Distances, geometric_sum
from lastiterate.privacy.losses.loss_cumulant import LossCumulant
from lastiterate.privacy.losses.step_loss import BEND, RISE, TURN, Loss, Nodes, Segments, StepLoss, moments_of
from lastiterate.privacy.mixtures.fourier import Complex, Effort, Unreliable

# Loss of one step: (1 - q) N(a) + q N(a + b) against N(0) at unit noise hides a shift and the canary at once.
# The loss a x - a^2 / 2 + log(1 - q + q exp(b (x - a) - b^2 / 2)) is Gaussian plus that of `step_loss` moved by a.

_OF_A_STEP = 3000.0  # fixed cost of a step, counted in numbers of `Effort`


@dataclass(frozen=True, eq=False)
class ShiftedLoss(Loss):
    """The loss of a step with a ``shift``; the other fields are those of `StepLoss`. There is no cap."""

    rate: float
    slope: float
    shift: float
    remove: bool
    log_left_out: float
    effort: Effort = field(default_factory=Effort)

    def nodes(self, order: float, frequency: float, fineness: float = 1.0) -> Nodes:
        self.effort.spend(0.0)
        nodes = super().nodes(order, frequency, fineness)
        self.effort.spend(_OF_A_STEP + nodes.x.size)
        return nodes

    def loss(self, x: FloatArray) -> FloatArray:
        return self.shift * (x - 0.5 * self.shift) + self._sampled.loss(x - self.shift)

    def moved(self, x: FloatArray) -> FloatArray:
        return 2.0 * np.abs(x) * self.shift + self._sampled.moved(x - self.shift)

    @property
    def steepest(self) -> float:
        return self.slope + self.shift

    @cached_property
    def window(self) -> tuple[float, float]:
        log_half, log_quarter = (self.log_left_out - math.log(parts) for parts in (2.0, 4.0))
        low, far = float(ndtri_exp(log_half)), -float(ndtri_exp(log_quarter))
        if not self.remove:
            return low, far
        rare = min(log_quarter - math.log(self.rate), -math.log(2.0))
        with_canary = self.slope - float(ndtri_exp(rare))
        # A smooth maximum, as in `step_loss`, because losses are interpolated in the shift.
        return low, self.shift + 0.5 * (far + with_canary + math.hypot(far - with_canary, 0.5))

    @property
    def is_capped(self) -> bool:
        return False

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

    @property
    def left_out(self) -> float:
        return self.outside[0 if self.remove else 1]

    def log_error(self, nodes: Nodes, order: float, frequency: float) -> float:
        raise Unreliable  # nothing is proved here

    def _places(self, size: float) -> tuple[FloatArray, FloatArray]:
        low, high = self.window
        bend, width = self._sampled.bend + self.shift, math.pi / self.slope
        reach = math.asinh((high - low + abs(bend)) / width)
        near = bend + width * np.sinh(np.linspace(-reach, reach, 61))
        x = np.concatenate((np.linspace(low, high, 81), near[(near > low) & (near < high)]))
        x.sort()
        turned = size * self.loss(x) + 0.5 * x * np.abs(x) + 4.0 * x
        rising = self.slope * (x - bend)
        risen = np.logaddexp(0.0, rising + math.log1p(size)) - np.logaddexp(0.0, rising)
        return x, turned / (2.0 * TURN) + np.arcsinh((x - bend) / width) / BEND + risen / RISE

    @cached_property
    def _sampled(self) -> StepLoss:
        return StepLoss(self.rate, self.slope, self.remove, self.log_left_out)

    def _of_mixture(self, probability: Callable[[float], float]) -> float:
        return (1.0 - self.rate) * probability(self.shift) + self.rate * probability(self.shift + self.slope)


# Cumulant of all steps: interpolation of M(a, s) in a, and the mean over distances.

_NODES = 6  # initial number of interpolation nodes in a panel
_MOST_NODES = 96
_CHECK = 0.47  # where the interpolation is checked, as a share of each panel's width
_ERROR, _ERROR_OF_SLOPES = 1e-6, 1e-3  # of the interpolation at real orders, relative to the largest value
_ERROR_ALONG = 1e-6  # of K along a line, where exp(K) is not negligible
_MOST_ERRORS = 10.0  # largest error accepted, in units of _ERROR_ALONG; the allowance grows with the error
ALLOWANCE = 10.0 * _ERROR_ALONG  # for errors of K, which may be larger between the checked places
_VANISHED = 45.0  # minus the log below which a term is negligible
_CLEAR = 4.0  # frequency times a, in units of the noise, up to which log E exp(sL) keeps its digits
_MOST_PANELS = 12
_MOST_VALUES = 600_000  # values of M along a line
_CONVERGES = 8.0  # doubling the nodes lowers the error at least by this factor if the interpolation converges
_SMOOTHING = 0.1  # mu of one additional Gaussian release, in units of the standard deviation of the loss
_QUICKER = 10.0  # an interpolation weight costs this many times less than an interpolated value
_GROUPS = 200  # largest number of groups of steps; the a of a group are rounded up to the largest of them


@dataclass(frozen=True, eq=False)
class ShiftedCumulant(LossCumulant):
    """K(z) for one direction: ``counts`` are all steps, of the same rate and noise.

    ``shifts`` holds a of each group of steps at the largest distance, and ``group_counts`` the number of steps in each
    group. ``relative`` holds the distances in units of the largest, and ``log_mass`` their log-probabilities.
    """

    shifts: FloatArray = field(kw_only=True)
    group_counts: FloatArray = field(kw_only=True)
    relative: FloatArray = field(kw_only=True)
    log_mass: FloatArray = field(kw_only=True)
    smoothing: float = field(kw_only=True)
    effort: Effort = field(default_factory=Effort, kw_only=True)

    def other_direction(self) -> ShiftedCumulant:
        """Return the cumulant of Q over P. Losses are unbounded here, so no cap can leave any out."""
        return replace(self, remove=False)

    @property
    def _cannot_be_capped(self) -> bool:
        return True

    def largest_loss(self) -> float:
        return math.inf

    def real(self, theta: float) -> tuple[float, float, float]:
        """Return K, K' and K'' at a real point."""
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
        """Return K(theta + iu) at u = 0, spacing, ..., (count - 1) spacing. A larger ``fineness`` refines the grids."""
        return self.with_error(theta, spacing, count, fineness)[0]

    def with_error(self, theta: float, spacing: float, count: int, fineness: float = 1.0) -> tuple[Complex, float]:
        """Return K along a line, and its error in units of the usual error.

        The interpolation converges slowly near zeros of exp(M). Where a u is large, exp(M) has vanished and only
        rounding errors are left. Panels in a keep these rounding errors from spoiling smaller a.
        """
        panels = self._panels(max(spacing * (count - 1), abs(theta) / float(self.sigmas[0])))
        nodes = self._usual_nodes.get(panels, _NODES)
        while nodes > _NODES and nodes * panels * count > _MOST_VALUES:
            nodes //= 2
        u = spacing * np.arange(count)
        best: tuple[Complex, float] | None = None
        while nodes <= _MOST_NODES and nodes * panels * count <= _MOST_VALUES:
            self.effort.spend((2 * nodes * panels + self.relative.size) * count)
            table = self._table(nodes, panels)
            logs, checks = (
                np.array(list(self._logs(steps, theta, spacing, count, fineness)))
                for steps in (table.steps, table.check_steps)
            )
            logs.imag = np.unwrap(logs.imag, axis=0)  # logarithms lose multiples of 2 pi, which matter between nodes
            error = _distance_on_sheets(table.between @ logs, checks) * float(self.counts[0])
            squares = self._fall * np.square(table.checks)[:, None] + self.smoothing**2
            z = theta + 1j * u
            result = self._mean_over_distances(table.shares(self), logs) + 0.5 * self.smoothing**2 * z * (z + 1.0)
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

    @property
    def _fall(self) -> float:
        """The sum of squares of all a, in units of the largest a and of the noise."""
        scale = float(self.shifts[0] * self.sigmas[0])
        return float(self.group_counts @ np.square(self.shifts)) / scale**2

    def _mean_over_distances(self, shares: FloatArray, logs: Complex) -> Complex:
        exponent = shares @ logs + self.log_mass[:, None]
        top = exponent.real.max(axis=0)
        exponent -= top
        kept = exponent.real > -_VANISHED
        terms = np.zeros_like(exponent)
        np.exp(exponent, out=terms, where=kept)
        with np.errstate(divide="ignore"):
            result: Complex = np.log(terms.sum(axis=0)) + top
        return result

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

    def _panels(self, frequency: float) -> int:
        """Return the number of panels that makes a times the frequency small in the first panel."""
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
        sigma = float(self.sigmas[0])
        rate, slope = float(self.rates[0]), 1.0 / sigma
        return ShiftedLoss(rate, slope, shift * slope, self.remove, self._left_out_of_each, self.effort)

    @cached_property
    def _usual_nodes(self) -> dict[int, int]:
        """The number of nodes that the last line needed, by number of panels. Neighbouring lines need about as many."""
        return {}

    @cached_property
    def _known_table(self) -> dict[tuple[int, int], _Table]:
        return {}


class _Table:
    """Steps at the nodes of a piecewise interpolation in a.

    Each panel but the first is as wide as all panels before it together.
    """

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
        """Return log E exp(s L), and mean and variance of L under the tilt, at every node."""
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
        """Return, for each shift, the weights of the nodes that interpolate there."""
        panel = np.clip(np.searchsorted(self.ends, shifts, side="right") - 1, 0, self.panels - 1)
        place = (shifts - self.ends[panel]) / (self.ends[panel + 1] - self.ends[panel])
        result = np.zeros((shifts.size, self.panels, self.nodes))
        result[np.arange(shifts.size), panel] = _cardinal(self.nodes, place)
        return result.reshape(shifts.size, -1)


def shifted_cumulant(
    steps: int, rate: float, sigma: float, contraction: float, before: Distances, effort: Effort
) -> ShiftedCumulant:
    """Return the direction "remove" of the last ``steps``; ``before`` is the distance of the two trainings before them.

    The optimal a fall by the contraction from each step to the step before it (docs/method.md).
    """
    together = -(-steps // _GROUPS)
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


def _distance_on_sheets(first: Complex, second: Complex) -> FloatArray:
    """Return the distance of two logarithms, up to multiples of 2 pi i."""
    difference = first - second
    return np.hypot(difference.real, np.remainder(difference.imag + math.pi, 2.0 * math.pi) - math.pi)


@lru_cache(maxsize=64)
def _places(nodes: int) -> FloatArray:
    """Return Chebyshev's points between 0 and 1."""
    places: FloatArray = 0.5 - 0.5 * np.cos(math.pi * (np.arange(nodes) + 0.5) / nodes)
    return places


def _cardinal(nodes: int, at: FloatArray) -> FloatArray:
    """Evaluate the polynomials that are 1 at one node and 0 at all others, one row for each place.

    Uses the barycentric formula.
    """
    index = np.arange(nodes)
    weights = np.where(index % 2 == 0, 1.0, -1.0) * np.sin(math.pi * (index + 0.5) / nodes)
    distance = at[:, None] - _places(nodes)
    exact: BoolArray = np.abs(distance) < 1e-14
    terms = weights / np.where(exact, 1.0, distance)
    terms = np.where(np.any(exact, axis=1, keepdims=True), exact, terms)
    cardinal: FloatArray = terms / terms.sum(axis=1, keepdims=True)
    return cardinal
