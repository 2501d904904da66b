"""The configurations that ship keep their promises of privacy and of utility."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

import lastiterate as li
from lastiterate.data import Dataset, load_npz
from lastiterate.training import problems, recipes, train
from lastiterate.training.models import accuracy

SHARED = Path(__file__).parents[3] / "shared" / "data"


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


def test_the_recipe_for_small_images_is_calibrated_by_composition():
    recipe = recipes.small_cnn(images(28, 1, 3000), epsilon=4.0, delta=1e-6)
    assert li.composition(recipe.run).epsilon(1e-6) == pytest.approx(4, rel=1e-6)
    assert recipe.run.epochs == pytest.approx(8, rel=0.05)


def test_the_wide_resnet_of_the_paper_has_the_heuristic_that_the_paper_states():
    """Batch 4,096 of 50,000, of which the paper reports 6.34."""
    run = recipes.wide_resnet(images(32, 3, 10)).run.replace(sample_rate=4096 / 50_000, optimizer=None)
    assert li.last_iterate(run).epsilon(1e-5) == pytest.approx(6.3465, abs=1e-4)


def test_accuracy_counts_the_labels_that_are_hit():
    x, y = np.eye(10, dtype=np.float32), np.array([0, 1, 2, 3, 4, 5, 6, 7, 9, 8])
    assert accuracy(lambda example: 2.0 * example, np.tile(x, (70, 1)), np.tile(y, 70)) == 0.8


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "cifar10_small.npz").exists(), reason="CIFAR-10 images are not there")
def test_the_wide_resnet_trains_for_two_steps_on_real_images():
    dataset = load_npz(SHARED / "cifar10_small.npz").take(train=64, test=8)
    problem = problems.wide_resnet(dataset, augmentations=2)
    run = recipes.wide_resnet(dataset).run.replace(steps=2, sample_rate=2 / 64)
    trained = train(run, problem, models=1, seed=0)
    assert trained.flat().shape == (1, 2_753_818)
    assert np.isfinite(trained.flat()).all()
    moved = trained.flat()[0] - np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(problem.trainable)])
    # Two noisy steps, averaged: the decay leaves 0.002 of the first iterate's move, and of both together.
    expected = 4.0 / 64 * 3.0 * np.sqrt((0.002 * 1.998) ** 2 + 0.002**2)
    assert moved.std() == pytest.approx(expected, rel=0.05)
