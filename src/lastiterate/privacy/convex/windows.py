"""The best of many bounds for the last iterate of convex training (docs/method.md, "Convex losses").

Each bound belongs to a window, the last tau steps. The adversary is told which batches before the window had the
canary, so the distance of the two trainings is known. Within the window the noise hides both the distance and the
canary. The longest window is composition itself. A canary in every batch reveals at least as much as a sampled canary,
so its pair is a bound too. The curve is the smallest of all these bounds.

The bound of a window comes from one line integral of the privacy loss. The loss is smoothed by one more noisy release,
a Gaussian mechanism with a small mu (``smoothing`` of the cumulant), which can only increase delta. So the integrand of

    delta(epsilon) = 1/pi  integral_0^inf  Re exp(K(z) - z epsilon) / (z (z + 1)) du,     z = theta + iu,  theta > 0,

falls like a Gaussian: |exp K(theta + iu)| <= exp(K(theta) - w^2 u^2 / 2), whatever the loss is (w is the smoothing).
The line ends where this bound is negligible, and not where the integrand happens to be small. With little noise, losses
lie close to a lattice, and the integrand is large again at the frequencies of the lattice.

The trapezoid rule with step h adds the positive terms e^(theta k P) delta(epsilon + k P), P = 2 pi / h, so it errs
upwards. The error of exp(K) (``error``) is added to the integrand too, so delta is an upper bound. If ``side`` is -1,
the error is subtracted instead, for the lower end of a bracket.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np

from lastiterate.common.types import FloatArray, Floats, IntArray
from lastiterate.privacy.convex.distances import Distances, distances, geometric_sum
from lastiterate.privacy.convex.shifted_loss import ALLOWANCE, ShiftedCumulant, ShiftedLoss, shifted_cumulant
from lastiterate.privacy.curve import Pair
from lastiterate.privacy.gaussian_dp import find_mu, find_mu_bracket
from lastiterate.privacy.losses.step_loss import moments_of
from lastiterate.privacy.mixtures.fourier import Effort, Line, Unreliable
from lastiterate.privacy.mixtures.mixture import SinglePair
from lastiterate.privacy.mixtures.solve import each

FEW_LINES = 16  # of the polygon for mu: each takes a query
_RATIO = 1.25  # ratio of the lengths of two successive windows
_TILTS = np.geomspace(0.1, 300.0, 33)  # tilts of Chernoff's bounds, which rank the windows
_SMALL_SHIFT = 0.05
_FORGOTTEN = 1e-7  # the first steps hardly count if the contraction of all later steps is below this
_LOG_RARE = math.log(1e-4)  # log of the delta that selects the window and the thresholds for a false negative rate
_TRIALS = 14  # number of thresholds tried; few are enough, because the rate is flat near the best one
_MOST_WINDOWS = 8  # largest number of windows tried for one query
_MOST_EFFORT = 1.5e7  # largest effort for one query, a few seconds; the bounds without windows always remain
_LARGEST = 600.0  # largest threshold whose exponential is a float
_ROUNDING = 1e-11  # error of the bisection on a line, relative to max(1, epsilon)
_LINE_TILTS: list[float] = np.geomspace(0.05, 400.0, 34).tolist()
_NEGLIGIBLE = 28.0  # the integral beyond the last node is below exp(-_NEGLIGIBLE) of delta
_LITTLE = 14.0  # aliases, which only increase delta, are below exp(-_LITTLE) of delta
_LARGER = (1.04, 1.1, 1.2, 1.4)
_MOST_NODES = 4000
_LINES_TRIED = 3  # how often a line is chosen for epsilon and epsilon is computed on the line


@dataclass(frozen=True, eq=False)
class SmoothedLoss:
    """The smoothed privacy loss of P over Q, or of Q over P, in one window."""

    cumulant: ShiftedCumulant
    error: float = 0.0  # error of exp(K) along a line, in units of its largest value, and of K at real points
    _lines: dict[int, tuple[Line, float] | None] = field(default_factory=dict, init=False, repr=False)

    def log_delta(self, epsilon: float) -> float:
        """Return the log of an upper bound on delta at any real epsilon, or Chernoff's bound if no line is accurate."""
        index = self._index_for(epsilon)
        bound = self._exponent(index) - _LINE_TILTS[index] * epsilon
        try:
            return min(bound, self._on_line(index, epsilon, bound, 1.0), 0.0)
        except ArithmeticError:
            return min(bound, 0.0)

    def epsilon(self, log_delta: float, side: float = 1.0) -> float:
        """Return the epsilon >= 0 at which the bound equals the given delta, or a lower bound if ``side`` is -1."""
        index = self._best(lambda i: (self._exponent(i) - log_delta) / _LINE_TILTS[i])
        value = (self._exponent(index) - log_delta) / _LINE_TILTS[index]
        if value <= 0.0:
            return 0.0
        for _ in range(_LINES_TRIED):
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

    def _index_for(self, epsilon: float) -> int:  # the tilt with the smallest Chernoff bound
        return self._best(lambda i: self._exponent(i) - _LINE_TILTS[i] * epsilon)

    def _solve(self, index: int, log_delta: float, high: float, side: float) -> float:
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
        if index not in self._lines:
            self._lines[index] = None  # a line that fails once is not tried again
            self._lines[index] = self._new_line(index, epsilon, log_goal)
        found = self._lines[index]
        if found is None:
            raise Unreliable
        line, errors = found  # ``errors`` is in units of ``self.error``
        kernel = line.z * (line.z + 1.0)
        exponent = line.log_values - line.z * epsilon
        scale = float(exponent.real.max())
        total = float((np.exp(exponent - scale) / kernel).real.sum()) * line.spacing / math.pi
        at_zero = math.exp(self._moments(index)[0] - _LINE_TILTS[index] * epsilon - scale)
        total += side * self.error * errors * at_zero * float((1.0 / np.abs(kernel)).sum()) * line.spacing / math.pi
        if not total > 1e-12:
            if side < 0.0:
                return -math.inf  # the lower bound on delta is 0
            raise Unreliable  # only rounding errors are left
        return scale + math.log(total)

    def _new_line(self, index: int, epsilon: float, log_goal: float) -> tuple[Line, float]:
        theta = _LINE_TILTS[index]
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
        theta = _LINE_TILTS[index]
        value = self._moments(index)[0]
        return value + self.error * max(1.0, value) + theta * math.log(theta) - (1.0 + theta) * math.log1p(theta)

    def _moments(self, index: int) -> tuple[float, float, float]:
        try:
            value = self.cumulant.real(_LINE_TILTS[index])
        except ArithmeticError:
            return math.inf, 0.0, 0.0
        return value if math.isfinite(value[0]) else (math.inf, 0.0, 0.0)

    def _best(self, cost: Callable[[int], float]) -> int:
        """Return the index of the smallest cost. The cost first falls and then rises with the index."""
        low, high = 0, len(_LINE_TILTS) - 1
        while high - low > 2:
            left = low + (high - low) // 3
            right = high - (high - low) // 3
            low, high = (low, right) if cost(left) <= cost(right) else (left, high)
        return min(range(low, high + 1), key=cost)


# The losses of P over Q and of Q over P in a window, and the log-probability of distances that are left out.
_Window: TypeAlias = tuple[SmoothedLoss, SmoothedLoss, float]


@dataclass(frozen=True, eq=False)
class ConvexPair(SinglePair):
    """Bounds on the pair of last iterates for 0 < rate < 1. Every query returns the smallest bound.

    ``most`` is the largest distance, in units of learning rate times clipping norm. ``composition`` is the pair of all
    iterates. ``always_in`` is the pair of a canary in every batch, which reveals more.
    """

    steps: int
    rate: float
    sigma: float
    contraction: float
    most: float
    composition: Pair
    always_in: Pair
    _effort: Effort = field(default_factory=Effort, init=False, repr=False)
    _known_answers: dict[tuple[str, float], float] = field(default_factory=dict, init=False, repr=False)
    _known_windows: dict[int, _Window | None] = field(default_factory=dict, init=False, repr=False)

    def bracket(self, log_delta: Floats) -> tuple[Floats, Floats]:
        value = self.epsilon(log_delta)
        lower, upper = self._each(self._lower_end, log_delta), self._each(self._upper_end, log_delta)
        return np.minimum(lower, value)[()], np.maximum(upper, value)[()]

    def mu(self, smallest_error: float) -> float:
        others = (pair.mu(smallest_error) for pair in (self.composition, self.always_in))
        return min(*others, find_mu(self.epsilon, smallest_error, FEW_LINES))

    def mu_bracket(self, smallest_error: float) -> tuple[float, float]:
        bounds = [pair.mu_bracket(smallest_error) for pair in (self.composition, self.always_in)]
        bounds.append(find_mu_bracket(self.epsilon, self.bracket, smallest_error, FEW_LINES))
        return min(lower for lower, _ in bounds), min(upper for _, upper in bounds)

    def _each(self, function: Callable[[np.float64], Floats | float], values: Floats) -> Floats:
        """Limit the effort of each query. The result is stored, so that a repeated query gives the same number."""

        def answer(value: np.float64) -> float:
            key = function.__name__, float(value)
            if key not in self._known_answers:
                self._effort.left = _MOST_EFFORT
                self._known_answers[key] = float(function(value))
            return self._known_answers[key]

        return each(answer, values)

    def _lower_end(self, log_delta: float) -> float:
        return self._end(log_delta, 0)

    def _upper_end(self, log_delta: float) -> float:
        return self._end(log_delta, 1)

    def _end(self, log_delta: float, end: int) -> float:
        others = [float(pair.bracket(np.float64(log_delta))[end]) for pair in (self.composition, self.always_in)]
        side = 2.0 * end - 1.0
        of_windows = self._of_windows(log_delta, side)
        return min(*others, of_windows + side * _ROUNDING * max(1.0, of_windows))

    def _epsilon(self, log_delta: float) -> float:
        least = min(float(pair.epsilon(np.float64(log_delta))) for pair in (self.composition, self.always_in))
        return min(least, self._of_windows(log_delta, least=least)) if least > 0.0 else least

    def _of_windows(self, log_delta: float, side: float = 1.0, least: float = math.inf) -> float:
        foretold = np.min((self._exponents - log_delta) / _TILTS[:, None], axis=0)
        return self._least(foretold, lambda index, least: self._epsilon_of(index, log_delta, side, least), least)

    def _log_delta(self, epsilon: float) -> float:
        least = min(float(pair.log_delta(np.float64(epsilon))) for pair in (self.composition, self.always_in))
        foretold = np.min(self._exponents - _TILTS[:, None] * epsilon, axis=0)
        return min(least, self._least(foretold, lambda index, least: self._log_delta_of(index, epsilon, least), least))

    def _fnr(self, fpr: float) -> float:
        others = [float(pair.fnr(np.float64(fpr))) for pair in (self.composition, self.always_in)]
        if not self._lengths.size:
            return max(others)
        foretold = np.min((self._exponents - _LOG_RARE) / _TILTS[:, None], axis=0)
        return max(*others, self._fnr_of(int(np.argmin(foretold)), fpr))

    def _least(self, foretold: FloatArray, cost: Callable[[int, float], float], least: float) -> float:
        """Find the smallest cost of all windows by descent. A ``cost`` above ``least`` need not be exact."""
        if not foretold.size:
            return math.inf
        here = int(np.argmin(foretold))
        known = {here: cost(here, math.inf)}
        while len(known) < _MOST_WINDOWS and self._effort.left > 0.0:
            for beside in (here - 1, here + 1):
                if 0 <= beside < foretold.size and beside not in known:
                    known[beside] = cost(beside, min(least, *known.values()))
            best = min(known, key=lambda index: (known[index], abs(index - here)))
            if best == here:
                break
            here = best
        return min(known.values())

    def _epsilon_of(self, index: int, log_delta: float, side: float, least: float) -> float:
        window = self._window(index)
        if window is None or window[2] >= log_delta - 1.0:
            return math.inf
        remove, add, log_lost = window
        log_delta += math.log1p(-math.exp(log_lost - log_delta))
        if side > 0.0 and least < math.inf and remove.log_delta(least) > log_delta:
            return math.inf
        value = remove.epsilon(log_delta, side)
        if value >= least:
            return value
        return value if add.log_delta(value) <= log_delta else max(value, add.epsilon(log_delta, side))

    def _log_delta_of(self, index: int, epsilon: float, least: float) -> float:
        window = self._window(index)
        if window is None:
            return math.inf
        remove, add, log_lost = window
        value = remove.log_delta(epsilon)
        return float(np.logaddexp(value if value > least else max(value, add.log_delta(epsilon)), log_lost))

    def _fnr_of(self, index: int, fpr: float) -> float:
        """Return the largest 1 - delta(x) - e^x fpr over all x. For x < 0 use the delta of Q over P."""
        window = self._window(index)
        if window is None:
            return 0.0
        remove, add, log_lost = window

        def bound(x: float) -> float:
            if x >= 0.0:
                return 1.0 - math.exp(remove.log_delta(x)) - math.exp(x) * fpr
            return math.exp(x) * (1.0 - math.exp(add.log_delta(-x)) - fpr)

        high = min(remove.epsilon(_LOG_RARE) + 0.1, _LARGEST)
        low = -high
        for _ in range(_TRIALS):
            left, right = low + 0.382 * (high - low), low + 0.618 * (high - low)
            low, high = (low, right) if bound(left) >= bound(right) else (left, high)
        return bound(0.5 * (low + high)) - math.exp(log_lost)

    def _window(self, index: int) -> _Window | None:
        if index not in self._known_windows:
            length = int(self._lengths[index])
            before = self._before(length).at_least_part_of_mean()
            try:
                cumulant = shifted_cumulant(length, self.rate, self.sigma, self.contraction, before, self._effort)
                remove, add = SmoothedLoss(cumulant, ALLOWANCE), SmoothedLoss(cumulant.other_direction(), ALLOWANCE)
                self._known_windows[index] = remove, add, before.log_lost
            except ArithmeticError:
                self._known_windows[index] = None
        return self._known_windows[index]

    def _before(self, length: int) -> Distances:
        """Return the distance before a window of this length, or after all steps if the first steps hardly count."""
        steps = self.steps - length
        if self.contraction**steps < _FORGOTTEN:
            steps = self.steps
        return distances(steps, self.rate, self.contraction, self.most)

    @cached_property
    def _lengths(self) -> IntArray:
        count = 2 + math.floor(math.log(self.steps) / math.log(_RATIO))
        lengths = np.unique(np.rint(_RATIO ** np.arange(count)).astype(np.int64))
        return lengths[lengths < self.steps]

    @cached_property
    def _exponents(self) -> FloatArray:
        """Approximate log E exp(tilt * loss) by tilt (rows) and window (columns). M is taken as quadratic in a."""
        at_zero, slope = self._sampled
        squares = 0.5 * _TILTS * (_TILTS + 1.0) / self.sigma**2
        whole = self._before(0)
        mass = np.exp(whole.log_mass)
        mean = float(mass @ whole.values)
        spread = math.sqrt(max(float(mass @ np.square(whole.values - mean)), 1e-300))
        columns = []
        for length in self._lengths.tolist():
            decay, rest = self.contraction**length, self.steps - length
            size = geometric_sum(self.contraction**2, length)
            centre = self.rate * geometric_sum(self.contraction, rest)
            width = math.sqrt(self.rate * (1.0 - self.rate) * geometric_sum(self.contraction**2, rest))
            distance = np.clip(centre + width * (whole.values - mean) / spread, 0.0, self.most)
            total = decay * distance / size * geometric_sum(self.contraction, length)  # the sum of all a
            square = np.square(decay * distance) / size
            exponent = length * at_zero[:, None] + np.outer(slope, total) + np.outer(squares, square)
            columns.append(np.logaddexp.reduce(exponent + whole.log_mass, axis=1))
        return np.array(columns).T.reshape(_TILTS.size, len(columns))

    @cached_property
    def _sampled(self) -> tuple[FloatArray, FloatArray]:
        """M(0, s) at every tilt, and approximately the part of its slope in a that comes from sampling."""
        slope = 1.0 / self.sigma
        shifts = 0.0, _SMALL_SHIFT
        steps = [ShiftedLoss(self.rate, slope, True, -90.0, shift=shift, effort=self._effort) for shift in shifts]
        rows = []
        for tilt in _TILTS.tolist():
            try:
                rows.append(moments_of(steps, 1.0 + tilt)[:, 0])
            except Unreliable:
                rows.append(np.full(2, np.inf))
        at_zero, shifted = np.array(rows).T
        gaussian = 0.5 * _TILTS * (_TILTS + 1.0) * _SMALL_SHIFT**2
        with np.errstate(invalid="ignore"):
            linear = np.nan_to_num((shifted - at_zero - gaussian) / (_SMALL_SHIFT * self.sigma), nan=np.inf)
        return at_zero, linear
