"""The best of many bounds for the last iterate of convex training (docs/method.md, "Convex losses").

Each bound is a window: the last tau steps. The adversary is told which batches before the window had the canary, so the
distance of the two trainings is known. Within the window the noise hides both the distance and the canary. The longest
window is composition itself. A canary in every batch reveals at least as much as a sampled canary, so that pair is a
bound too. A curve is the least of all these bounds, and every query searches for the least bound in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from lastiterate.privacy.convex.distances import Distances, distances, geometric_sum
from lastiterate.privacy.convex.shifted_loss import ALLOWANCE, ShiftedLoss, shifted_cumulant
from lastiterate.privacy.convex.smoothed_line import SmoothedLoss, smoothed
from lastiterate.privacy.losses.step_loss import Loss, moments_of
from lastiterate.privacy.mixtures.fourier import Effort, Unreliable
from lastiterate.privacy.mixtures.solve import each

if TYPE_CHECKING:
    from lastiterate.common.types import FloatArray, Floats, IntArray
    from lastiterate.privacy.curve import Pair

_RATIO = 1.25  # of the lengths of one window and the next
_TILTS = np.geomspace(0.1, 300.0, 33)  # tilts of Chernoff's bounds, which rank the windows
_SMALL_SHIFT = 0.05
_FORGOTTEN = 1e-7  # share of a distance below which the distance is forgotten
_LOG_RARE = math.log(1e-4)  # log of the delta that selects the window and the thresholds for a false negative rate
_TRIALS = 14  # thresholds tried: near the best threshold the rate changes quadratically
_MOST_WINDOWS = 8  # windows tried for one query
_MOST_EFFORT = 1.5e7  # numbers computed for one query, a few seconds; other bounds hold anyway
_LARGEST = 600.0  # largest threshold whose exponential is a float
_ROUNDING = 1e-11  # of max(1, epsilon), in the bisection on a line


_Window: TypeAlias = tuple[tuple[SmoothedLoss, SmoothedLoss], float]


@dataclass(frozen=True, eq=False)
class ConvexPair:
    """Bounds on the pair of last iterates; every query returns the least bound. 0 < rate < 1.

    ``most`` is the largest possible distance, in units of learning rate times clipping norm. ``composition`` is the
    pair of all iterates. ``always_in`` is the pair of a canary in every batch, which reveals more.
    """

    steps: int
    rate: float
    sigma: float
    contraction: float
    most: float
    composition: Pair
    always_in: Pair

    def epsilon(self, log_delta: Floats) -> Floats:
        return each(lambda value: self._answer(self._least_epsilon, float(value)), log_delta)

    def log_delta(self, epsilon: Floats) -> Floats:
        return each(lambda value: self._answer(self._least_log_delta, float(value)), epsilon)

    def fnr(self, fpr: Floats) -> Floats:
        return each(lambda value: self._answer(self._largest_fnr, float(value)), fpr)

    def bracket(self, log_delta: Floats) -> tuple[Floats, Floats]:
        """Return a bracket of the least bound: one end adds all numerical errors, the other subtracts them."""
        value = self.epsilon(log_delta)
        lower, upper = (
            each(lambda at: self._answer(self._lower_end, float(at)), log_delta),
            each(lambda at: self._answer(self._upper_end, float(at)), log_delta),
        )
        return np.minimum(lower, value)[()], np.maximum(upper, value)[()]

    def _answer(self, question: Callable[[float], float], value: float) -> float:
        """Answer a query with limited effort. Answers are cached, so a repeated query has the same answer."""
        key = question.__name__, value
        if key not in self._known_answers:
            self._effort.left = _MOST_EFFORT
            self._known_answers[key] = question(value)
        return self._known_answers[key]

    def _lower_end(self, log_delta: float) -> float:
        return self._end(log_delta, 0)

    def _upper_end(self, log_delta: float) -> float:
        return self._end(log_delta, 1)

    def _end(self, log_delta: float, end: int) -> float:
        others = [float(pair.bracket(np.float64(log_delta))[end]) for pair in (self.composition, self.always_in)]
        side = 2.0 * end - 1.0
        of_windows = self._of_windows(log_delta, side)
        return min(*others, of_windows + side * _ROUNDING * max(1.0, of_windows))

    def _least_epsilon(self, log_delta: float) -> float:
        least = min(float(pair.epsilon(np.float64(log_delta))) for pair in (self.composition, self.always_in))
        return min(least, self._of_windows(log_delta, least=least)) if least > 0.0 else least

    def _of_windows(self, log_delta: float, side: float = 1.0, least: float = math.inf) -> float:
        foretold = np.min((self._exponents - log_delta) / _TILTS[:, None], axis=0)
        return self._least(foretold, lambda index, least: self._epsilon_of(index, log_delta, side, least), least)

    def _least_log_delta(self, epsilon: float) -> float:
        least = min(float(pair.log_delta(np.float64(epsilon))) for pair in (self.composition, self.always_in))
        foretold = np.min(self._exponents - _TILTS[:, None] * epsilon, axis=0)
        return min(least, self._least(foretold, lambda index, least: self._log_delta_of(index, epsilon, least), least))

    def _largest_fnr(self, fpr: float) -> float:
        others = [float(pair.fnr(np.float64(fpr))) for pair in (self.composition, self.always_in)]
        if not self._lengths.size:
            return max(others)
        foretold = np.min((self._exponents - _LOG_RARE) / _TILTS[:, None], axis=0)
        return max(*others, self._fnr_of(int(np.argmin(foretold)), fpr))

    def _least(self, foretold: FloatArray, cost: Callable[[int, float], float], least: float) -> float:
        """Find the least cost of all windows, by descent from the window with the least predicted cost.

        ``cost`` receives the ``least`` cost so far. For a window that costs more, ``cost`` may return any larger value.
        """
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
        if window is None or window[1] >= log_delta - 1.0:
            return math.inf
        (remove, add), log_lost = window
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
        (remove, add), log_lost = window
        value = remove.log_delta(epsilon)
        return float(np.logaddexp(value if value > least else max(value, add.log_delta(epsilon)), log_lost))

    def _fnr_of(self, index: int, fpr: float) -> float:
        """Return the largest 1 - delta(x) - e^x fpr over all x, a lower bound on the false negative rate.

        For x < 0 delta is that of the other direction: 1 - e^x + e^x delta(-x).
        """
        window = self._window(index)
        if window is None:
            return 0.0
        (remove, add), log_lost = window

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
        """Return the privacy loss of the last steps in both directions, and the log-probability of distances left out.

        None if the loss is out of the range of floats or cannot be resolved: other bounds hold anyway.
        """
        if index not in self._known_windows:
            length = int(self._lengths[index])
            before = self._before(length).at_least_part_of_mean()
            try:
                cumulant = shifted_cumulant(length, self.rate, self.sigma, self.contraction, before, self._effort)
                self._known_windows[index] = smoothed(cumulant, ALLOWANCE), before.log_lost
            except ArithmeticError:
                self._known_windows[index] = None
        return self._known_windows[index]

    def _before(self, length: int) -> Distances:
        """Return the distance of the two trainings before a window of this length.

        If the first steps are forgotten by then, the distance after all steps is returned: an upper bound, computed
        once for all windows.
        """
        steps = self.steps - length
        if self.contraction**steps < _FORGOTTEN:
            steps = self.steps
        return distances(steps, self.rate, self.contraction, self.most)

    @cached_property
    def _lengths(self) -> IntArray:
        """Lengths of windows, all shorter than the run."""
        count = 2 + math.floor(math.log(self.steps) / math.log(_RATIO))
        lengths = np.unique(np.rint(_RATIO ** np.arange(count)).astype(np.int64))
        return lengths[lengths < self.steps]

    @cached_property
    def _exponents(self) -> FloatArray:
        """Approximate logarithms of E exp(tilt loss) of each window, a row for each tilt.

        M(a, s) is a^2 s (s - 1) / (2 sigma^2) plus a term from sampling that is nearly linear in a.
        """
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
        """M(0, s), and approximately the part of its slope in a that comes from sampling, at every tilt."""
        slope = 1.0 / self.sigma
        shifts = 0.0, _SMALL_SHIFT
        steps: list[Loss] = [ShiftedLoss(self.rate, slope, shift, True, -90.0, self._effort) for shift in shifts]
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

    @cached_property
    def _effort(self) -> Effort:
        return Effort(_MOST_EFFORT)

    @cached_property
    def _known_answers(self) -> dict[tuple[str, float], float]:
        return {}

    @cached_property
    def _known_windows(self) -> dict[int, _Window | None]:
        return {}
