"""Checks of trainings whose noise is correlated: correct ones are not accused, and faults of the filter are found."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate.checking.declared import Declared
from tests.tools.correct import count, random_correlated_training
from tests.tools.trainers import Numpy, short

FILTERS = [(1.0, -0.5, -0.125), (1.0, 0.8, 0.3)]
LARGER = dict(features=64, classes=10, examples=300)


@pytest.mark.parametrize("filter_", FILTERS)
@pytest.mark.parametrize("changes", [{}, {"optimizer": li.SGD(0.002, momentum=0.9, averaging="uniform")}])
def test_a_correct_training_passes(filter_, changes):
    run = short(sample_rate=0.1, noise_filter=filter_, **changes)
    assert not li.check(run, Numpy(run, **LARGER), seed=1).faults


@pytest.mark.parametrize("filter_", FILTERS)
@pytest.mark.parametrize(("fault", "size"), [("no filter", 1), ("noise", 0.7), ("noise", 2.0), ("no noise", 1)])
def test_noise_that_is_not_that_of_the_filter_is_a_fault(filter_, fault, size):
    run = short(sample_rate=0.1, noise_filter=filter_)
    result = li.check(run, Numpy(run, fault=fault, size=size, **LARGER), models=32)
    assert any("noise" in row.name for row in result.faults), str(result)


@pytest.mark.parametrize("filter_", FILTERS)
def test_a_filter_that_is_not_declared_is_a_fault(filter_):
    run = short(sample_rate=0.1, noise_filter=filter_)
    result = li.check(run.replace(noise_filter=None), Numpy(run, **LARGER), models=32)
    assert any("noise" in row.name for row in result.faults), str(result)


def test_correct_trainings_with_curvature_are_not_accused():
    """Twelve of what `python -m tests.tools.correct --correlated` does."""
    assert count(12, first=20, kind=random_correlated_training)["fault"] == 0


class InTurns(Numpy):
    """Groups of examples take turns, and are sampled at a rate that many times as large."""

    def batches(self, rng, step, order):
        places, apart = self.examples + 1, self.run.min_separation
        if step == 0:
            order[:] = rng.integers(0, apart, places)
        drawn = np.flatnonzero((order == step % apart) & (rng.random(places) < apart * self.run.sample_rate))
        return drawn[drawn != self.examples], int(np.any(drawn == self.examples))


def test_batches_that_keep_an_example_apart_are_not_compared_with_independent_ones():
    run = short(steps=12, sample_rate=0.25, noise_filter=FILTERS[0], min_separation=4)  # as often at every seed
    assert not li.check(run, InTurns(run, **LARGER)).faults
    declared = run.replace(min_separation=1)
    names = {row.name for row in li.check(declared, InTurns(run, **LARGER), models=32).faults}
    assert "participation over seeds" in names


def test_the_declared_variance_is_that_of_the_filter():
    run = short(noise_filter=FILTERS[0], clip_norm=2.0, weights=np.arange(1.0, 11.0), optimizer=None)
    matrix = sum(np.diag(np.full(10 - j, c), -j) for j, c in enumerate(FILTERS[0]))
    influence = matrix.T @ run.weights
    assert Declared(run).variance == pytest.approx(4.0 * influence @ influence, rel=1e-12)
