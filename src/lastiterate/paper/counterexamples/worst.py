"""Search for step weights whose last iterate exceeds the heuristic most, for linear losses.

Weight decay, momentum and learning rates give steps unequal weights. The last iterate can then leak more than the
largest heuristic epsilon of any shorter run. Each family of weights is searched for its worst member: first on a
lattice over the whole family, then uphill from the highest peaks of the lattice. The epsilon found is exact for its
weights, and a lower bound for the family.

Momentum beta with weight decay alpha is searched where no weight is negative: beta = (1 - a)(1 - b) and alpha = a b,
with a and b in [0, 1]. Elsewhere weights swing around zero, and the canary's steps work against each other.

The worst known schedules have one heavy step among many light ones. The heavy step alone shows the canary clearly but
seldom. The light steps together show the canary always but faintly. In the right proportion the two add up. The
heuristic sees each of the two alone. If both alone leak the same epsilon, together they leak an eighth more at
epsilon 1, and the excess grows with epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from lastiterate.common.types import FloatArray
from lastiterate.optimizer import SGD
from lastiterate.privacy.analyses.last_iterate import last_iterate
from lastiterate.privacy.analyses.max_over_steps import max_over_steps
from lastiterate.run import DPSGD, require_basic

if TYPE_CHECKING:
    from lastiterate.common.types import FloatArray, IntArray, Track


# Search: the highest point of a function with several peaks, on the unit interval or square.

_POINTS = {1: 25, 2: 13}  # lattice points along each axis, by the number of axes
_PEAKS = 3  # lattice peaks to climb from

Thing = TypeVar("Thing")


class Tried(Generic[Thing]):
    """Minus the height, as objective of an optimiser. Remembers the highest result of all calls."""

    def __init__(self, at: Callable[[FloatArray], Thing], height: Callable[[Thing], float]) -> None:
        self._at, self._height = at, height
        self._highest: Thing | None = None

    def __call__(self, place: FloatArray) -> float:
        new = self._at(place)
        if self._highest is None or self._height(new) > self._height(self._highest):
            self._highest = new
        return -self._height(new)

    def highest(self) -> Thing:
        if self._highest is None:
            raise RuntimeError("nothing was tried")
        return self._highest


def climb(at: Callable[[FloatArray], Thing], height: Callable[[Thing], float], axes: int) -> Thing:
    """Return the highest result: search a lattice, then climb from its highest local maxima."""
    from scipy.optimize import minimize

    tried = Tried(at, height)
    places = np.linspace(0.0, 1.0, _POINTS[axes])
    heights = np.array([-tried(np.array(place)) for place in product(places, repeat=axes)])
    heights = heights.reshape((places.size,) * axes)
    for peak in sorted(_peaks(heights), key=lambda index: -heights[index])[:_PEAKS]:
        start = places[list(peak)]
        aside = start + np.diag(np.where(start > 0.5, -0.5, 0.5) * places[1])
        options = {"initial_simplex": np.vstack((start, aside)), "xatol": 1e-4, "fatol": 1e-9}
        minimize(lambda place: tried(np.clip(place, 0.0, 1.0)), start, method="Nelder-Mead", options=options)
    return tried.highest()


def _peaks(heights: FloatArray) -> list[tuple[int, ...]]:
    """Return the points of a lattice that no neighbour exceeds."""
    padded = np.pad(heights, 1, constant_values=-np.inf)
    around = {index: padded[tuple(slice(i, i + 3) for i in index)].max() for index in np.ndindex(*heights.shape)}
    return [index for index, highest in around.items() if heights[index] >= highest]


_NEGLIGIBLE = 1e-18  # relative to the largest weight: even a million such steps change no digit of epsilon
_NO_MOMENTUM = 1e-12  # smaller values are rounding errors of zero
_ALL_COUNTS = 24  # heavy steps: all smaller numbers are tried, and some larger ones
_FREE = 48  # free weights of a schedule; in longer runs some steps share a weight


@dataclass(frozen=True, eq=False)
class Violation:
    """The worst weights found in a family.

    Attributes:
        family: name of the family, see `worst`.
        parameters: parameters of the family, by name.
        weights: weights of the steps, in order of time.
        epsilon: exact epsilon of the last iterate with these weights.
        largest: the heuristic's largest epsilon for at most as many steps, of equal weight.
    """

    family: str
    parameters: dict[str, float]
    weights: FloatArray
    epsilon: float
    largest: float

    @property
    def ratio(self) -> float:
        """Epsilon over the largest heuristic epsilon. Above 1 the heuristic is too low."""
        if self.largest > 0.0:
            return self.epsilon / self.largest
        return math.inf if self.epsilon > 0.0 else 1.0


@dataclass(frozen=True)
class _Case:
    """The run, the delta and the largest heuristic epsilon that all families share."""

    run: DPSGD
    delta: float
    largest: float

    def violation(self, family: str, parameters: dict[str, float], weights: FloatArray) -> Violation:
        matters = weights > _NEGLIGIBLE * weights.max()
        run = self.run.replace(steps=int(matters.sum()), weights=weights[matters])
        return Violation(family, parameters, weights, float(last_iterate(run).epsilon(self.delta)), self.largest)


def worst(run: DPSGD, delta: float, track: Track = iter) -> list[Violation]:
    """Return the worst weights of each family for a run's steps, sample rate and noise.

    The run's own weights are ignored. The families are:

    - "decay": weights (1 - alpha)^(T - t);
    - "momentum and decay";
    - "two levels": some steps of weight 1, the others of a smaller weight. This family represents learning-rate
      schedules, because steps are interchangeable;
    - "any schedule": a local search from the worst weights of the other families.
    """
    plain = _plain(run)
    case = _Case(plain, delta, float(max_over_steps(plain).epsilon(delta)))
    best: dict[str, Violation] = {}
    searches = [partial(_decay, case), partial(_momentum, case)]
    searches += [partial(_two_levels, case, count) for count in _heavy_steps(plain.steps)]
    searches += [partial(_any_schedule, case, best)]  # last, because it starts from the results of the others
    for search in track(searches):
        new = search()
        best[new.family] = max(best.get(new.family, new), new, key=_epsilon)
    return list(best.values())


def _epsilon(violation: Violation) -> float:
    return violation.epsilon


def _plain(run: DPSGD) -> DPSGD:
    """Return the run with equal weights. Raise if its steps are not interchangeable."""
    require_basic(run, "the search for the worst")
    for name in ("sample_rate", "noise_multiplier"):
        if np.ndim(getattr(run, name)):
            raise ValueError(f"{name} must be one number for all steps, got {len(getattr(run, name))} of them")
    if run.sampling == "shuffled":
        raise ValueError("sampling must not be 'shuffled': the steps of an epoch depend on each other")
    return run.replace(optimizer=None, weights=None)


def _decay(case: _Case) -> Violation:
    steps = case.run.steps

    def at(place: FloatArray) -> Violation:
        alpha = _share(place[0], steps)
        return case.violation("decay", {"alpha": alpha}, (1.0 - alpha) ** np.arange(steps, dtype=np.float64)[::-1])

    return climb(at, _epsilon, 1)


def _momentum(case: _Case) -> Violation:
    steps = case.run.steps

    def at(place: FloatArray) -> Violation:
        slow = _share(place[0], steps)
        fast = _share(place[0] + (1.0 - place[0]) * place[1], steps)  # at least ``slow``: the two are interchangeable
        momentum, decay = min((1.0 - slow) * (1.0 - fast), 1.0 - 1e-12), slow * fast
        momentum = momentum if momentum > _NO_MOMENTUM else 0.0
        weights = np.broadcast_to(SGD(1.0, momentum=momentum, weight_decay=decay).weights(steps), (steps,))
        parameters = {"momentum": momentum, "weight_decay": decay}
        return case.violation("momentum and decay", parameters, np.maximum(weights, 0.0))

    return climb(at, _epsilon, 2)


def _heavy_steps(steps: int) -> list[int]:
    """Return the numbers of heavy steps to try for two levels: all small numbers, then with gaps of a tenth."""
    gaps = 1 + round(10.0 * math.log(max(steps / _ALL_COUNTS, 1.0)))
    more = np.rint(np.geomspace(_ALL_COUNTS, max(steps, _ALL_COUNTS), 1 + gaps)).astype(np.int64)
    return [count for count in sorted({*range(1, _ALL_COUNTS), *more.tolist()}) if count <= steps]


def _two_levels(case: _Case, count: int) -> Violation:
    steps = case.run.steps

    def at(place: FloatArray) -> Violation:
        other = _share(place[0], steps)
        weights = np.where(np.arange(steps) < steps - count, other, 1.0)
        return case.violation("two levels", {"heavy_steps": count, "light_weight": other}, weights)

    return climb(at, _epsilon, 1)


def _any_schedule(case: _Case, best: dict[str, Violation]) -> Violation:
    """Search weights of any form, from the worst of each family, perturbed so that equal weights can separate."""
    from scipy.optimize import minimize

    groups = _groups(case.run.steps)
    tried = Tried(lambda weights: case.violation("any schedule", {}, weights), _epsilon)
    for start in best.values():
        tried(start.weights)
        levels = np.bincount(groups, weights=np.sort(start.weights)[::-1]) / np.bincount(groups)
        shaken = np.clip(levels / levels[0] * np.random.default_rng(0).uniform(0.8, 1.2, levels.size), 1e-3, 1.0)
        minimize(
            lambda levels: tried(np.clip(levels, 0.0, 1.0)[groups][::-1]),
            shaken,
            method="L-BFGS-B",
            bounds=[(0.0, 1.0)] * levels.size,
            options={"eps": 1e-6, "maxiter": 40},
        )
    return tried.highest()


def _groups(steps: int) -> IntArray:
    """Return the group of each step, ordered by weight. Steps of a group share a weight; lighter groups are larger."""
    ends = np.arange(1, steps + 1) if steps <= _FREE else np.unique(np.rint(np.geomspace(1, steps, _FREE)))
    return np.searchsorted(ends, np.arange(steps), side="right")


def _share(place: float, steps: int) -> float:
    """Map [0, 1] to [0, 1], with resolution for values that are small against 1 and large against 1 / T."""
    scale = 10.0 * steps
    return min(math.expm1(place * math.log1p(scale)) / scale, 1.0)
