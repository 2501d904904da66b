"""The configurations that ship keep their promises of privacy and of utility."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate.data import Dataset
from lastiterate.training import recipes, train


def images(side: int, channels: int, count: int) -> Dataset:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (count, side, side, channels)).astype(np.uint8)
    labels = np.arange(count) % 10
    return Dataset.from_arrays("random", pixels, labels, pixels[:20], labels[:20])


@pytest.mark.slow
def test_digits_reach_88_percent_at_standard_epsilon_8():
    recipe = recipes.digits_mlp()
    assert li.composition(recipe.run).epsilon(1e-5) == pytest.approx(8, rel=1e-6)
    assert li.composition(recipe.run).epsilon(1e-5) <= 8
    trained = train(recipe.run, recipe.problem, models=64, seed=0)
    accuracies = recipe.accuracies(trained)
    assert accuracies.shape == (64,)
    assert accuracies.mean() > 0.94  # 0.951 when it was written; 0.88 is promised
    assert accuracies.min() > 0.88


def test_the_wide_resnet_of_the_paper_has_the_heuristic_that_the_paper_states():
    """Batch 4,096 of 50,000, of which the paper reports 6.34."""
    run = recipes.wide_resnet(images(32, 3, 10)).run.replace(sample_rate=4096 / 50_000, optimizer=None)
    assert li.last_iterate(run).epsilon(1e-5) == pytest.approx(6.3465, abs=1e-4)
