"""Augmentation shows an image moved and mirrored, each way equally often, and averages before clipping."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lastiterate.training import Moment
from lastiterate.training.models import augmentation_multiplicity

IMAGE = np.random.default_rng(0).normal(size=(10, 10, 2)).astype(np.float32)


def all_views() -> list[np.ndarray]:
    padded = np.pad(IMAGE, ((4, 4), (4, 4), (0, 0)), mode="symmetric")
    moved = [padded[i : i + 10, j : j + 10] for i in range(9) for j in range(9)]
    return moved + [view[:, ::-1] for view in moved]


def test_the_loss_of_an_example_is_the_mean_over_its_views():
    seen = []

    def loss(parameters, example, moment):
        seen.append(moment.step)
        return parameters * example[0].sum() + example[1]

    averaged = augmentation_multiplicity(loss, 2000)
    moment = Moment(jnp.int32(3), jax.random.key(5))
    found = averaged(jnp.float32(2.0), (IMAGE, jnp.float32(1.0)), moment)
    sums = np.array([view.sum() for view in all_views()])
    assert float(found) == pytest.approx(2 * sums.mean() + 1, abs=4 * 2 * sums.std() / np.sqrt(2000))
    assert int(seen[0]) == 3
    assert float(averaged(jnp.float32(2.0), (IMAGE, jnp.float32(1.0)), moment)) == float(found)
