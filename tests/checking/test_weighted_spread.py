"""The range of a canary's effects over seeds, where steps have different weights."""

from __future__ import annotations

import numpy as np
import pytest

from lastiterate.checking.canary_effects import effect_of
from lastiterate.checking.declared import Declared
from lastiterate.checking.optimizer_effect import _chance_of_a_range, weighted_spread_row
from lastiterate.optimizer import SGD
from lastiterate.run import DPSGD

RUN = DPSGD(50, 0.1, 1.0, optimizer=SGD(0.1, momentum=0.9))
NAME = "participation over seeds"


def effects_of(sums):
    direction = np.full(4, 0.5)
    return [effect_of(i, -along * direction, direction, 1.0, 1.0, 1e-4) for i, along in enumerate(sums)]


def sums_of(run, seed, seeds=10):
    rng = np.random.default_rng(seed)
    return [run.effective_weights() @ (rng.random(run.steps) < run.sample_rate) for _ in range(seeds)]


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_batches_as_declared_raise_no_fault(sampling):
    run = RUN.replace(sampling=sampling)
    rows = [weighted_spread_row(NAME, effects_of(sums_of(run, seed)), Declared(run), 1.0, 1e-3) for seed in range(40)]
    assert {row.status for row in rows} == {"ok"}
    assert np.mean([row.measured for row in rows]) == pytest.approx(rows[0].declared, rel=0.15)


def test_an_example_that_is_used_equally_often_at_every_seed_is_found():
    rng, weights = np.random.default_rng(0), RUN.effective_weights()
    sums = [sum(weights[10 * epoch + rng.integers(10)] for epoch in range(5)) for _ in range(10)]
    row = weighted_spread_row(NAME, effects_of(sums), Declared(RUN), 1.0, 1e-3)
    assert row.status == "fault"
    assert "poisson sampling" in row.advice


def test_the_chance_of_a_range_is_that_of_uniform_numbers():
    drawn = np.random.default_rng(0).random(20_000)
    for width in (0.2, 0.5, 0.8):
        # Of n uniform numbers: n w^(n-1) - (n-1) w^n, to which those that are cut off above add w^n - w^n / n, at most.
        exact = 5 * width**4 - 4 * width**5
        assert exact * 0.95 < _chance_of_a_range(width, drawn, 5) < exact * 1.05 + width**5


def test_shuffled_batches_and_few_seeds_are_not_checked():
    shuffled = RUN.replace(sampling="shuffled")
    assert weighted_spread_row(NAME, effects_of([1.0] * 9), Declared(shuffled), 1.0, 1e-3).status == "not checked"
    assert weighted_spread_row(NAME, effects_of([1.0] * 2), Declared(RUN), 1.0, 1e-3).status == "not checked"
