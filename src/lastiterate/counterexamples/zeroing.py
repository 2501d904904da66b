"""A regulariser that erases the past: the last iterate is a single step, whatever came before.

With r(m) = ||m||^2 / (2 eta) its gradient takes back the whole model at every step: the quadratic regulariser with
alpha = 1. The heuristic is not monotone in the number of steps, and where it is below that of one step it is too low.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lastiterate.arrays import BoolArray, IntArray
from lastiterate.counterexamples.probe import Case, Probe, Setting, predict, required
from lastiterate.counterexamples.quadratic import find_epsilon
from lastiterate.counterexamples.words import compare, known, tell_found, tell_steps
from lastiterate.plot.probe import level, lines, picture, points
from lastiterate.plot.style import EXACT, Row, Track, chart_of, epsilon_y, log_x, long
from lastiterate.privacy.analyses.grid import last_iterate_epsilon
from lastiterate.wording import CAVEAT, spell

TITLE = "Zeroing: the last iterate is a single step"
STORY = (
    "An unclipped regulariser takes back the whole model at every step, and only the last step's canary and noise are "
    "left. With small noise one step leaks more than many, whose noise adds up before their signal does: the heuristic "
    "for many steps is then too low."
)
TAKES = ()
DEFAULTS = Setting(steps=None, sample_rate=0.01, noise_multiplier=0.5, delta=1e-6, models=100_000)
MOST_STEPS = 10**9  # up to which a region is looked for
_EVERY = 1000  # steps up to which each number is tried
_SPARSE = 400  # numbers beyond, about 3.5% apart
_EQUAL = 1e-9  # the heuristic's accuracy, relative to max(1, epsilon): closer values are equal
_MOST_TRAINED = 100  # steps, where the example chooses
_NOWHERE = 10  # steps where there is no region to choose from
_DRAWN = 160


@dataclass(frozen=True)
class Region:
    """The numbers of steps from ``first`` to ``last`` for which the heuristic is below that of one step.

    ``last`` is None where it is beyond ``MOST_STEPS``; ``lowest`` is where the heuristic is lowest.
    """

    first: int
    last: int | None
    lowest: int


def find_region(sample_rate: float, noise_multiplier: float, delta: float) -> Region | None:
    """Where the heuristic is below that of one step, if anywhere.

    All numbers of steps up to 1,000 are tried. Beyond, those of a geometric grid: between two of its neighbours the
    heuristic is taken to cross that of one step at most once, and the crossing is bisected. So the ends are exact
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
    """The last number of steps inside the region on the way to one outside."""
    while abs(outside - inside) > 1:
        middle = (inside + outside) // 2
        if is_below(np.array([middle]))[0]:
            inside = middle
        else:
            outside = middle
    return inside


def probe(setting: Setting, track: Track = iter) -> Probe:
    """Where the heuristic is too low for the erasing regulariser, and an audit of it there."""
    noise = required("noise_multiplier", setting.noise_multiplier)
    region = find_region(setting.sample_rate, noise, setting.delta)
    steps = _telling_steps(setting, noise, region) if setting.steps is None else setting.steps
    run = setting.run(steps, noise)
    predictions = predict(run, setting.delta)
    case = find_epsilon(setting, run, 1.0, "zeroing")
    rows = _rows(setting, noise, _drawn_steps(steps, region))
    sentences = _sentences(steps, case, known(predictions["last_iterate"]), region)
    return Probe("zeroing", setting, run, predictions, (case,), sentences, rows, _fields(region))


def _telling_steps(setting: Setting, noise: float, region: Region | None) -> int:
    """Where the heuristic is lowest, among few enough steps to be trained."""
    if region is None:
        return _NOWHERE
    steps = np.arange(region.first, max(region.first, min(region.last or MOST_STEPS, _MOST_TRAINED)) + 1)
    return int(steps[np.argmin(last_iterate_epsilon(steps, setting.sample_rate, noise, setting.delta))])


def _drawn_steps(trained: int, region: Region | None) -> IntArray:
    """From one step to beyond the region, and beyond the run."""
    last = 3 * trained if region is None else 3 * region.last if region.last else MOST_STEPS
    return np.unique(np.rint(np.geomspace(1, max(last, 3 * trained), _DRAWN)).astype(np.int64))


def _rows(setting: Setting, noise: float, steps: IntArray) -> list[Row]:
    epsilons = last_iterate_epsilon(steps, setting.sample_rate, noise, setting.delta)
    pairs = zip(steps.tolist(), epsilons.tolist(), strict=True)
    return [{"steps": count, "last_iterate": epsilon} for count, epsilon in pairs]


def _fields(region: Region | None) -> dict[str, Any]:
    if region is None:
        names = ("region_first", "region_last", "lowest_steps")
        reason = f"the heuristic is nowhere below that of one step, up to {MOST_STEPS:,} steps"
        return {key: value for name in names for key, value in ((name, None), (f"{name}_reason", reason))}
    fields: dict[str, Any] = {"region_first": region.first, "region_last": region.last, "lowest_steps": region.lowest}
    if region.last is None:
        fields["region_last_reason"] = f"larger than {MOST_STEPS:,} steps, up to which it was looked for"
    return fields


def _sentences(steps: int, case: Case, predicted: float, region: Region | None) -> tuple[str, ...]:
    exact = known(case.exact)
    if region is None:
        where = (
            "With this sample rate and noise the heuristic is nowhere below that of one step: the regulariser only "
            "makes the model forget, and this is no counterexample."
        )
    else:
        end = f"{region.last:,}" if region.last else f"more than {MOST_STEPS:,}"
        where = (
            f"The heuristic is below that of one step for {region.first:,} to {end} steps, and lowest at "
            f"{region.lowest:,}. The largest heuristic of any shorter run, which includes one step, is not too low."
        )
    return (
        f"Only the last step is left in the model, so that it leaks what one step leaks, epsilon {spell(exact)}, after "
        f"{tell_steps(steps)} as after any number; {tell_found(case)}.",
        f"The heuristic predicts {spell(predicted)} for {tell_steps(steps)}: {compare(exact, predicted)}.",
        where,
        f"{CAVEAT} The example needs an unclipped regulariser that erases the whole model at every step, which no "
        "ordinary training has.",
    )


def chart(found: Probe) -> Any:
    """The heuristic over the number of steps against what the run with the regulariser leaks at each."""
    case = found.cases[-1]
    exact, last = known(case.exact), found.rows[-1]["steps"]
    top = 1.6 * max(exact, case.empirical)
    x = log_x("steps", "steps T (log scale)", 1, last)
    y = epsilon_y(found.setting.delta, between=(0.0, top))
    layers = [
        *_shade(found.fields["region_first"], found.fields["region_last"] or last, top, x, y),
        lines(long(found.rows, "epsilon", ["last_iterate"]) + level("steps", (1, last), EXACT, exact), x, y),
        points([{"steps": found.run.steps, "epsilon": case.empirical}], x, y),
    ]
    return picture(found, TITLE, layers)


def _shade(first: int | None, last: int, top: float, x: Any, y: Any) -> list[Any]:
    """The region, where there is one."""
    if first is None:
        return []
    area = chart_of([{"steps": first, "end": last}]).mark_rect(color="#F0E442", opacity=0.25)
    middle = chart_of([{"steps": math.sqrt(first * last), "epsilon": top}])
    text = middle.mark_text(text="the heuristic is too low here", dy=16, fontSize=13, color="#444")
    return [area.encode(x=x, x2="end:Q"), text.encode(x=x, y=y)]
