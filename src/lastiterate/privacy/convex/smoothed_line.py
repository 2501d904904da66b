"""Upper bounds on delta and epsilon of a smoothed privacy loss, from one line integral each.

The loss is smoothed by one more noisy release, a Gaussian mechanism with a small mu (``smoothing`` of the cumulant),
which can only add to the privacy loss. So the integrand along

    delta(epsilon) = 1/pi  integral_0^inf  Re exp(K(z) - z epsilon) / (z (z + 1)) du,     z = theta + iu,  theta > 0,

falls like a Gaussian: |exp K(theta + iu)| <= exp(K(theta) - w^2 u^2 / 2), whatever the loss is (w is the smoothing).
The line ends where this bound is negligible, and not where the integrand happens to be small. With little noise, losses
lie close to a lattice, and the integrand is large again at the frequencies of the lattice.

The trapezoid rule with step h adds the positive terms e^(theta k P) delta(epsilon + k P), P = 2 pi / h, so its error is
upwards. The error of exp(K) (``error``) is added to the integrand too, so delta is an upper bound. ``side`` -1
subtracts the error instead, for the lower end of a bracket.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lastiterate.privacy.convex.shifted_loss import ShiftedCumulant
from lastiterate.privacy.mixtures.fourier import Line, Unreliable

TILTS: list[float] = np.geomspace(0.05, 400.0, 34).tolist()
_NEGLIGIBLE = 28.0  # the integral beyond the last node is below exp(-_NEGLIGIBLE) of delta
_LITTLE = 14.0  # aliases, whose error is upwards, are below exp(-_LITTLE) of delta
_LARGER = (1.04, 1.1, 1.2, 1.4)
_MOST_NODES = 4000
_TURNS = 3  # alternations between a line for an epsilon and an epsilon from the line


@dataclass(frozen=True, eq=False)
class SmoothedLoss:
    """One direction of a pair."""

    cumulant: ShiftedCumulant
    error: float = 0.0  # error of exp(K) along a line, in units of its largest value, and of K at real points

    def log_delta(self, epsilon: float) -> float:
        """Return the log of an upper bound on delta at any real epsilon; Chernoff's bound if no line is available."""
        index = self._index_for(epsilon)
        bound = self._exponent(index) - TILTS[index] * epsilon
        try:
            return min(bound, self._on_line(index, epsilon, bound, 1.0), 0.0)
        except ArithmeticError:
            return min(bound, 0.0)

    def epsilon(self, log_delta: float, side: float = 1.0) -> float:
        """Return the epsilon >= 0 at which the bound equals the given delta; with ``side`` -1 a lower bound on it."""
        index = self._best(lambda i: (self._exponent(i) - log_delta) / TILTS[i])
        value = (self._exponent(index) - log_delta) / TILTS[index]
        if value <= 0.0:
            return 0.0
        for _ in range(_TURNS):
            try:
                found = self._solve(index, log_delta, value, side)
            except ArithmeticError:
                return value
            value = found
            better = self._index_for(found)
            if better == index:
                break
            index = better
        return value

    def _index_for(self, epsilon: float) -> int:
        """Return the index of the tilt with the least Chernoff bound."""
        return self._best(lambda i: self._exponent(i) - TILTS[i] * epsilon)

    def _solve(self, index: int, log_delta: float, high: float, side: float) -> float:
        """Find epsilon on one line, by bisection. Delta falls along epsilon."""
        low, high = 0.0, high * (1.0 + 1e-9) + 1e-12
        while self._on_line(index, high, log_delta, side) > log_delta:
            low, high = high, 1.5 * high + 1e-6
            if high > 1e6:
                raise Unreliable
        if low == 0.0 and self._on_line(index, low, log_delta, side) <= log_delta:
            return 0.0
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self._on_line(index, middle, log_delta, side) > log_delta else (low, middle)
            if high - low <= 1e-12 * max(1.0, high):
                break
        return high

    def _on_line(self, index: int, epsilon: float, log_goal: float, side: float) -> float:
        line, errors = self._line(index, epsilon, log_goal)
        kernel = line.z * (line.z + 1.0)
        exponent = line.log_values - line.z * epsilon
        scale = float(exponent.real.max())
        total = float((np.exp(exponent - scale) / kernel).real.sum()) * line.spacing / math.pi
        at_zero = math.exp(self._moments(index)[0] - TILTS[index] * epsilon - scale)
        total += side * self.error * errors * at_zero * float((1.0 / np.abs(kernel)).sum()) * line.spacing / math.pi
        if not total > 1e-12:
            if side < 0.0:
                return -math.inf  # the lower bound on delta is 0
            raise Unreliable  # only rounding errors are left
        return scale + math.log(total)

    def _line(self, index: int, epsilon: float, log_goal: float) -> tuple[Line, float]:
        """Return a line, and its error in units of the usual error."""
        if index not in self._lines:
            self._lines[index] = None  # a line that fails once is not tried again
            self._lines[index] = self._new_line(index, epsilon, log_goal)
        found = self._lines[index]
        if found is None:
            raise Unreliable
        return found

    def _new_line(self, index: int, epsilon: float, log_goal: float) -> tuple[Line, float]:
        theta = TILTS[index]
        deviation = math.sqrt(max(self._moments(index)[2], 0.0))
        if not deviation > 0.0:
            raise Unreliable
        goal = min(log_goal, self._moments(index)[0] - theta * epsilon) - 4.0
        period = max((_LITTLE - goal) / theta, self._reach(theta, epsilon, goal), 8.0 * deviation)
        rise = max(self._moments(index)[0] - theta * epsilon - goal, 0.0)
        end = math.sqrt(2.0 * (_NEGLIGIBLE + rise)) / self.cumulant.smoothing
        spacing = max(2.0 * math.pi / period, end / _MOST_NODES)  # too wide a spacing makes delta too high
        count = math.ceil(end / spacing) + 1
        values, errors = self.cumulant.with_error(theta, spacing, count)
        values[0] -= math.log(2.0)  # half weight: the trapezoid rule
        z = np.empty(count, dtype=np.complex128)
        z.real, z.imag = theta, spacing * np.arange(count)
        return Line(z, values, spacing), errors

    def _reach(self, theta: float, epsilon: float, goal: float) -> float:
        """Return the distance above epsilon within which losses matter, by Chernoff's bound with larger tilts."""
        best = math.inf
        for larger in (theta * factor for factor in _LARGER):
            try:
                value = self.cumulant.real(larger)[0]
            except ArithmeticError:
                break
            best = min(best, (value - larger * epsilon + _LITTLE - goal) / (larger - theta))
        return best

    def _exponent(self, index: int) -> float:
        """Return the log of Chernoff's bound on delta at epsilon = 0 with this tilt."""
        theta = TILTS[index]
        value = self._moments(index)[0]
        return value + self.error * max(1.0, value) + theta * math.log(theta) - (1.0 + theta) * math.log1p(theta)

    def _moments(self, index: int) -> tuple[float, float, float]:
        try:
            value = self.cumulant.real(TILTS[index])
        except ArithmeticError:
            return math.inf, 0.0, 0.0
        return value if math.isfinite(value[0]) else (math.inf, 0.0, 0.0)

    def _best(self, cost: Callable[[int], float]) -> int:
        """Return the index of least cost. The cost falls and then rises along the index."""
        low, high = 0, len(TILTS) - 1
        while high - low > 2:
            left = low + (high - low) // 3
            right = high - (high - low) // 3
            low, high = (low, right) if cost(left) <= cost(right) else (left, high)
        return min(range(low, high + 1), key=cost)

    @cached_property
    def _lines(self) -> dict[int, tuple[Line, float] | None]:
        return {}


def smoothed(cumulant: ShiftedCumulant, error: float) -> tuple[SmoothedLoss, SmoothedLoss]:
    """Return both directions."""
    return SmoothedLoss(cumulant, error), SmoothedLoss(cumulant.other_direction(), error)
