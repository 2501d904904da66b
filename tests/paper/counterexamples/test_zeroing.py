"""The regulariser that erases the past: where one step leaks more than the heuristic says of many."""

from dataclasses import replace

import numpy as np
import pytest

import lastiterate as li
from lastiterate.cli.probe import STORIES
from lastiterate.paper.counterexamples import zeroing
from lastiterate.paper.counterexamples.quadratic import Regularised
from lastiterate.paper.counterexamples.zeroing import DEFAULTS, Region, find_region
from lastiterate.plot.counterexample import counterexample_chart
from lastiterate.training import train
from lastiterate.training.draws import model_keys, normals


def region_by_brute_force(most, *parameters):
    steps = np.arange(1, most + 1)
    epsilons = li.last_iterate_epsilon(steps, *parameters)
    inside = steps[epsilons < epsilons[0] - 1e-9 * max(1.0, epsilons[0])]
    assert inside.size == inside[-1] - inside[0] + 1, "the region has gaps"
    return Region(inside[0], inside[-1], 1 + np.argmin(epsilons))


@pytest.mark.parametrize(
    ("parameters", "most"),
    [((0.01, 0.5, 1e-6), 3_000), ((0.0244, 0.2276, 1.48e-7), 3_000), ((0.0025, 0.266, 1.2e-9), 100_000)],
)
def test_region_is_that_of_brute_force(parameters, most):
    assert find_region(*parameters) == region_by_brute_force(most, *parameters)


def test_a_region_may_end_beyond_what_is_tried():
    region = find_region(1e-5, 0.2, 1e-8)
    assert region.last is None
    one, most = li.last_iterate_epsilon([1, zeroing.MOST_STEPS], 1e-5, 0.2, 1e-8)
    assert most < one


def test_nothing_but_the_last_step_is_left():
    run = li.DPSGD(5, 0.5, 0.7, clip_norm=2.0, optimizer=li.SGD(0.5))
    armed = Regularised(1.0).arm(run, None, {})
    absent = np.zeros(32, bool)
    trained = train(run, armed.problem, armed.canary, models=32, present=absent, seed=4, progress=False).flat()
    last_noise = normals(model_keys(4, np.arange(32), absent).noise, np.int32(4), (1,))
    assert trained == pytest.approx(-0.5 * 0.7 * 2.0 * np.asarray(last_noise), rel=1e-4, abs=1e-5)


def test_probe_refutes_the_heuristic():
    found = zeroing.probe(replace(DEFAULTS, models=20_000))
    (case,) = found.cases
    one_step = li.last_iterate(li.DPSGD(1, 0.01, 0.5)).epsilon(1e-6)
    assert found.run.steps == 21
    assert found.fields == {"region_first": 2, "region_last": 1595, "lowest_steps": 21}
    assert case.exact.value == pytest.approx(one_step, rel=1e-9)
    assert found.predictions["last_iterate"].value < case.empirical < one_step
    said = STORIES["zeroing"].sentences(found)[2]
    assert "2 to 1,595 steps is below the heuristic of one step. It is lowest at 21" in said
    assert "4.23 times as much" in STORIES["zeroing"].sentences(found)[1]
    assert "the heuristic is too low here" in str(counterexample_chart(found, "A title").to_dict())
