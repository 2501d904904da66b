"""A regulariser that erases the past: the last iterate is a single step, whatever came before.

The gradient of r(m) = ||m||^2 / (2 eta) removes the whole model at every step. This is the quadratic regulariser with
alpha = 1. The heuristic is not monotone in the number of steps. It is too low where it is below its value for one step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.paper.counterexamples.quadratic import find_epsilon
from lastiterate.paper.counterexamples.setting import Probe, Setting, predict, required
from lastiterate.privacy.analyses.last_iterate import last_iterate_epsilon

if TYPE_CHECKING:
    from lastiterate.common.types import BoolArray, IntArray, Row, Track

TAKES = ()
DEFAULTS = Setting(steps=None, sample_rate=0.01, noise_multiplier=0.5, delta=1e-6, models=100_000)
MOST_STEPS = 10**9  # end of the search for a region
_EVERY = 1000  # steps; every smaller number is tried
_SPARSE = 400  # larger numbers of steps that are tried, about 3.5% apart
_EQUAL = 1e-9  # accuracy of the heuristic, relative to max(1, epsilon): closer values are equal
_MOST_TRAINED = 100  # steps that the example chooses at most, if the region allows
_NOWHERE = 10  # steps if there is no region to choose from
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
    """Return the region where the heuristic is below its value for one step, or None.

    All numbers of steps up to 1,000 are tried, and then a geometric grid. Between two grid neighbours the heuristic is
    assumed to cross its value for one step at most once, and the crossing is bisected. The ends are therefore exact
    unless the heuristic dips and recovers within 3.5% of its steps. No gap within a region has been found.
    """

    def is_below(steps: IntArray) -> BoolArray:
        epsilons = last_iterate_epsilon(np.append(steps, 1), sample_rate, noise_multiplier, delta)
        below: BoolArray = epsilons[-1] - epsilons[:-1] > _EQUAL * max(1.0, epsilons[-1])
        return below

    tried = _tried_steps()
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


def _tried_steps() -> IntArray:
    sparse = np.rint(np.geomspace(_EVERY, MOST_STEPS, _SPARSE)).astype(np.int64)
    return np.concatenate((np.arange(1, _EVERY), sparse))


def _edge(is_below: Callable[[IntArray], BoolArray], inside: int, outside: int) -> int:
    """Return the last number of steps inside the region on the way to one outside."""
    while abs(outside - inside) > 1:
        middle = (inside + outside) // 2
        if is_below(np.array([middle]))[0]:
            inside = middle
        else:
            outside = middle
    return inside


def probe(setting: Setting, track: Track = iter) -> Probe:
    """Find where the heuristic is too low for the erasing regulariser, and audit a run there."""
    noise = required("noise_multiplier", setting.noise_multiplier)
    region = find_region(setting.sample_rate, noise, setting.delta)
    steps = _telling_steps(setting, noise, region) if setting.steps is None else setting.steps
    run = setting.run(steps, noise)
    predictions = predict(run, setting.delta)
    case = find_epsilon(setting, run, 1.0, "zeroing")
    rows = _rows(setting, noise, _drawn_steps(steps, region))
    return Probe("zeroing", setting, run, predictions, (case,), rows, _fields(region))


def _telling_steps(setting: Setting, noise: float, region: Region | None) -> int:
    """Return the number of steps with the lowest heuristic, among few enough steps to train."""
    if region is None:
        return _NOWHERE
    steps = np.arange(region.first, max(region.first, min(region.last or MOST_STEPS, _MOST_TRAINED)) + 1)
    return int(steps[np.argmin(last_iterate_epsilon(steps, setting.sample_rate, noise, setting.delta))])


def _drawn_steps(trained: int, region: Region | None) -> IntArray:
    """Return numbers of steps from one to beyond the region and the run."""
    last = 3 * trained if region is None else 3 * region.last if region.last else MOST_STEPS
    return np.unique(np.rint(np.geomspace(1, max(last, 3 * trained), _DRAWN)).astype(np.int64))


def _rows(setting: Setting, noise: float, steps: IntArray) -> list[Row]:
    epsilons = last_iterate_epsilon(steps, setting.sample_rate, noise, setting.delta)
    pairs = zip(steps.tolist(), epsilons.tolist(), strict=True)
    return [{"steps": count, "last_iterate": epsilon} for count, epsilon in pairs]


def _fields(region: Region | None) -> Row:
    if region is None:
        names = ("region_first", "region_last", "lowest_steps")
        reason = f"the heuristic is nowhere below that of one step, up to {MOST_STEPS:,} steps"
        return {key: value for name in names for key, value in ((name, None), (f"{name}_reason", reason))}
    fields: Row = {"region_first": region.first, "region_last": region.last, "lowest_steps": region.lowest}
    if region.last is None:
        fields["region_last_reason"] = f"larger than {MOST_STEPS:,} steps, up to which it was looked for"
    return fields
