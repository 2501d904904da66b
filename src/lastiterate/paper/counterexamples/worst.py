"""Search for the step weights at which the last iterate exceeds the heuristic most, for linear losses.

The search covers several families of weights. In each family it tries a grid over all parameters, and then climbs from
the highest grid points. The epsilon found is exact for its weights, and a lower bound on the worst of the family.

Momentum beta with weight decay alpha is searched where no weight is negative: beta = (1 - a)(1 - b) and alpha = a b,
with a and b in [0, 1]. Elsewhere weights change sign, and the canary's contributions cancel each other.

The worst known schedules have one heavy step among many light ones. The heavy step reveals the canary clearly but
rarely. The light steps together reveal the canary always but faintly. If both have the same epsilon by themselves,
their joint epsilon is an eighth larger at epsilon 1, and the excess grows with epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
from scipy.optimize import minimize

from lastiterate.common.types import FloatArray, Track
from lastiterate.optimizer import SGD
from lastiterate.privacy.analyses.last_iterate import last_iterate
from lastiterate.privacy.analyses.max_over_steps import max_over_steps
from lastiterate.run import DPSGD
from lastiterate.supported_runs import BASIC, NOISE_MULTIPLIERS, SAMPLE_RATES, SHUFFLED, Support, require_supported

# Search: the highest point of a function with several peaks, on the unit interval or square.

_POINTS = {1: 25, 2: 13}  # grid points along each axis, by the number of axes
_PEAKS = 3  # number of grid peaks to climb from


class Tried:
    """The objective of an optimiser: minus epsilon. ``highest`` is the violation with the largest epsilon so far."""

    highest: Violation

    def __init__(self, at: Callable[[FloatArray], Violation]) -> None:
        self._at, self._most = at, -math.inf

    def __call__(self, place: FloatArray) -> float:
        new = self._at(place)
        if new.epsilon > self._most:
            self._most, self.highest = new.epsilon, new
        return -new.epsilon


def climb(at: Callable[[FloatArray], Violation], axes: int) -> Violation:
    """Return the violation with the largest epsilon. Search a grid, then climb from its highest local maxima."""
    tried = Tried(at)
    places = np.linspace(0.0, 1.0, _POINTS[axes])
    heights = np.array([-tried(np.array(place)) for place in product(places, repeat=axes)])
    heights = heights.reshape((places.size,) * axes)
    padded = np.pad(heights, 1, constant_values=-np.inf)
    around = {index: padded[tuple(slice(i, i + 3) for i in index)].max() for index in np.ndindex(*heights.shape)}
    peaks = [index for index, highest in around.items() if heights[index] >= highest]
    for peak in sorted(peaks, key=lambda index: -heights[index])[:_PEAKS]:
        start = places[list(peak)]
        aside = start + np.diag(np.where(start > 0.5, -0.5, 0.5) * places[1])
        options = {"initial_simplex": np.vstack((start, aside)), "xatol": 1e-4, "fatol": 1e-9}
        minimize(lambda place: tried(np.clip(place, 0.0, 1.0)), start, method="Nelder-Mead", options=options)
    return tried.highest


_NEGLIGIBLE = 1e-18  # relative to the largest weight: even a million such steps change no digit of epsilon
_NO_MOMENTUM = 1e-12  # smaller values are rounding errors of zero
_ALL_COUNTS = 24  # every smaller number of heavy steps is tried, and some larger ones
_FREE = 48  # number of free weights of a schedule; in longer runs some steps share a weight


@dataclass(frozen=True, eq=False)
class Violation:
    """The worst weights found in a family."""

    family: str  # see `worst`
    parameters: dict[str, float]  # the parameters of the family that give ``weights``
    weights: FloatArray  # weight of each step, in order of time
    epsilon: float  # exact epsilon of the last iterate with these weights
    largest: float  # largest heuristic epsilon of runs with equal weights that have the same number of steps or fewer

    @property
    def ratio(self) -> float:
        """Epsilon over the largest heuristic epsilon. Above 1 the heuristic is too low."""
        if self.largest > 0.0:
            return self.epsilon / self.largest
        return math.inf if self.epsilon > 0.0 else 1.0


@dataclass(frozen=True)
class _Case:
    run: DPSGD
    delta: float
    largest: float

    def violation(self, family: str, parameters: dict[str, float], weights: FloatArray) -> Violation:
        matters = weights > _NEGLIGIBLE * weights.max()
        run = self.run.replace(steps=int(matters.sum()), weights=weights[matters])
        return Violation(family, parameters, weights, float(last_iterate(run).epsilon(self.delta)), self.largest)


_INTERCHANGEABLE = Support(
    "the search for the worst weights",
    BASIC - {SAMPLE_RATES, NOISE_MULTIPLIERS, SHUFFLED},
    {SHUFFLED: "the steps of an epoch depend on each other"},
)


def worst(run: DPSGD, delta: float, track: Track = iter) -> list[Violation]:
    """Return the worst weights of each family for a run's steps, sample rate and noise.

    The run's own weights are ignored. The families are:

    - "decay": weights (1 - alpha)^(T - t);
    - "momentum and decay";
    - "two levels": some steps have weight 1, the others a smaller weight. This family represents learning-rate
      schedules, because the order of steps does not matter;
    - "any schedule": a local search from the worst weights of the other families.
    """
    require_supported(run, _INTERCHANGEABLE)
    plain = run.replace(optimizer=None, weights=None)
    case = _Case(plain, delta, float(max_over_steps(plain).epsilon(delta)))
    best: dict[str, Violation] = {}
    searches = [partial(climb, partial(_decay, case), 1), partial(climb, partial(_momentum, case), 2)]
    searches += [partial(climb, partial(_two_levels, case, count), 1) for count in _heavy_steps(plain.steps)]
    searches += [partial(_any_schedule, case, best)]  # last, because it starts from the results of the others
    for search in track(searches):
        new = search()
        best[new.family] = max(best.get(new.family, new), new, key=lambda violation: violation.epsilon)
    return list(best.values())


def _decay(case: _Case, place: FloatArray) -> Violation:
    alpha = _share(place[0], case.run.steps)
    weights = (1.0 - alpha) ** np.arange(case.run.steps, dtype=np.float64)[::-1]
    return case.violation("decay", {"alpha": alpha}, weights)


def _momentum(case: _Case, place: FloatArray) -> Violation:
    steps = case.run.steps
    slow = _share(place[0], steps)
    fast = _share(place[0] + (1.0 - place[0]) * place[1], steps)  # at least ``slow``: the two are interchangeable
    momentum, decay = min((1.0 - slow) * (1.0 - fast), 1.0 - 1e-12), slow * fast
    momentum = momentum if momentum > _NO_MOMENTUM else 0.0
    weights = np.broadcast_to(SGD(1.0, momentum=momentum, weight_decay=decay).weights(steps), (steps,))
    parameters = {"momentum": momentum, "weight_decay": decay}
    return case.violation("momentum and decay", parameters, np.maximum(weights, 0.0))


def _heavy_steps(steps: int) -> list[int]:
    """Return the numbers of heavy steps to try for two levels: all small numbers, then larger ones 10% apart."""
    gaps = 1 + round(10.0 * math.log(max(steps / _ALL_COUNTS, 1.0)))
    more = np.rint(np.geomspace(_ALL_COUNTS, max(steps, _ALL_COUNTS), 1 + gaps)).astype(np.int64)
    return [count for count in sorted({*range(1, _ALL_COUNTS), *more.tolist()}) if count <= steps]


def _two_levels(case: _Case, count: int, place: FloatArray) -> Violation:
    steps = case.run.steps
    other = _share(place[0], steps)
    weights = np.where(np.arange(steps) < steps - count, other, 1.0)
    return case.violation("two levels", {"heavy_steps": count, "light_weight": other}, weights)


def _any_schedule(case: _Case, best: dict[str, Violation]) -> Violation:
    """Search any weights. Start from the worst of each family, perturbed so that equal weights can become unequal."""
    steps = case.run.steps
    ends = np.arange(1, steps + 1) if steps <= _FREE else np.unique(np.rint(np.geomspace(1, steps, _FREE)))
    groups = np.searchsorted(ends, np.arange(steps), side="right")  # lighter steps are in larger groups
    tried = Tried(lambda weights: case.violation("any schedule", {}, weights))
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
    return tried.highest


def _share(place: float, steps: int) -> float:
    """Map [0, 1] to [0, 1], on a scale that is nearly logarithmic above 1 / T."""
    scale = 10.0 * steps
    return min(math.expm1(place * math.log1p(scale)) / scale, 1.0)
