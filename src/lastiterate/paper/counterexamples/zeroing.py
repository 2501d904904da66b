"""A regulariser that erases the past: the last iterate depends on the last step only.

The gradient of r(m) = ||m||^2 / (2 eta) removes the whole model at every step. This is the quadratic regulariser with
alpha = 1. The heuristic is not monotone in the number of steps. It is too low where it is below its value for one step.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lastiterate.common.search import bisect
from lastiterate.common.types import BoolArray, IntArray, Row, Track
from lastiterate.paper.counterexamples.quadratic import find_epsilon
from lastiterate.paper.counterexamples.setting import Probe, Setting, required
from lastiterate.privacy.analyses.last_iterate import last_iterate_epsilon

TAKES = ()
DEFAULTS = Setting(steps=None, sample_rate=0.01, noise_multiplier=0.5, delta=1e-6, models=100_000)
MOST_STEPS = 10**9  # largest number of steps in the search for a region
_EVERY = 1000  # every smaller number of steps is tried
_SPARSE = 400  # how many larger numbers of steps are tried, about 3.5% apart
_EQUAL = 1e-9  # accuracy of the heuristic, relative to max(1, epsilon): closer values count as equal
_MOST_TRAINED = 100  # largest default of the number of steps, if the region allows it
_NOWHERE = 10  # default of the number of steps if there is no region
_DRAWN = 160


@dataclass(frozen=True)
class Region:
    """The numbers of steps from ``first`` to ``last`` for which the heuristic is below its value for one step.

    ``last`` is None if it is above ``MOST_STEPS``. ``lowest`` is the number of steps with the lowest heuristic.
    """

    first: int
    last: int | None
    lowest: int


def find_region(sample_rate: float, noise_multiplier: float, delta: float) -> Region | None:
    """Return the region where the heuristic is below its value for one step, or None if there is no such region.

    All numbers of steps up to 1,000 are tried, and then a geometric grid. Bisection between grid points finds the ends
    of the region. The ends are exact unless the heuristic falls and rises again between two grid points.
    """

    def is_below(steps: IntArray) -> BoolArray:
        epsilons = last_iterate_epsilon(np.append(steps, 1), sample_rate, noise_multiplier, delta)
        below: BoolArray = epsilons[-1] - epsilons[:-1] > _EQUAL * max(1.0, epsilons[-1])
        return below

    sparse = np.rint(np.geomspace(_EVERY, MOST_STEPS, _SPARSE)).astype(np.int64)
    tried = np.concatenate((np.arange(1, _EVERY), sparse))
    inside = np.flatnonzero(is_below(tried))
    if not inside.size:
        return None
    first, last = int(inside[0]), int(inside[-1])
    epsilons = last_iterate_epsilon(tried[inside], sample_rate, noise_multiplier, delta)
    return Region(
        _edge(is_below, int(tried[first]), int(tried[first - 1])),
        _edge(is_below, int(tried[last]), int(tried[last + 1])) if last + 1 < tried.size else None,
        int(tried[inside[np.argmin(epsilons)]]),
    )


def _edge(is_below: Callable[[IntArray], BoolArray], inside: int, outside: int) -> int:
    """Return the end of the region, by bisection between a number of steps inside and one outside."""
    return bisect(
        lambda steps: bool(is_below(np.array([steps]))[0]),
        outside,
        inside,
        lambda one, other: abs(one - other) <= 1,
        lambda one, other: (one + other) // 2,
    )[1]


def probe(setting: Setting, track: Track = iter) -> Probe:
    """Find numbers of steps at which the heuristic is too low for the erasing regulariser, and audit such a run."""
    noise = required("noise_multiplier", setting.noise_multiplier)
    region = find_region(setting.sample_rate, noise, setting.delta)
    steps = _telling_steps(setting, noise, region) if setting.steps is None else setting.steps
    run = setting.run(steps, noise)
    case = find_epsilon(setting, run, 1.0, "zeroing")
    last = 3 * steps if region is None else 3 * region.last if region.last else MOST_STEPS
    drawn = np.unique(np.rint(np.geomspace(1, max(last, 3 * steps), _DRAWN)).astype(np.int64))
    epsilons = last_iterate_epsilon(drawn, setting.sample_rate, noise, setting.delta)
    pairs = zip(drawn.tolist(), epsilons.tolist(), strict=True)
    rows: list[Row] = [{"steps": count, "last_iterate": epsilon} for count, epsilon in pairs]
    return Probe("zeroing", setting, run, (case,), rows, _fields(region))


def _telling_steps(setting: Setting, noise: float, region: Region | None) -> int:
    if region is None:
        return _NOWHERE
    steps = np.arange(region.first, max(region.first, min(region.last or MOST_STEPS, _MOST_TRAINED)) + 1)
    return int(steps[np.argmin(last_iterate_epsilon(steps, setting.sample_rate, noise, setting.delta))])


def _fields(region: Region | None) -> Row:
    if region is None:
        names = ("region_first", "region_last", "lowest_steps")
        reason = f"the heuristic is never below its value for one step, up to {MOST_STEPS:,} steps"
        return {key: value for name in names for key, value in ((name, None), (f"{name}_reason", reason))}
    fields: Row = {"region_first": region.first, "region_last": region.last, "lowest_steps": region.lowest}
    if region.last is None:
        fields["region_last_reason"] = f"the region continues beyond {MOST_STEPS:,} steps, where the search ended"
    return fields
