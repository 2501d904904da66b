"""Convolutional networks in the trainer, and one example at a time by autograd, take the same two steps."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.training import Moment, Problem, Trainer
from lastiterate.training.draws import loss_keys, model_keys
from lastiterate.training.models import CNN, WideResNet, augmentation_multiplicity, cross_entropy
from tests.training.test_against_numpy import SEED, batches_of, flat, noise_of, released_by

EXAMPLES = 12


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


CASES = {
    "CNN 8x8": ((8, 8, 1), lambda key: CNN((8, 8, 1), 10, key), cross_entropy),
    "CNN 28x28": ((28, 28, 1), lambda key: CNN((28, 28, 1), 10, key), cross_entropy),
    "WideResNet, augmented": (
        (8, 8, 3),
        lambda key: WideResNet(10, 1, 10, key),
        augmentation_multiplicity(cross_entropy, 2),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_two_steps_equal_those_of_autograd_one_example_at_a_time(case):
    shape, make, loss = case
    generator = np.random.default_rng(2)
    x = generator.normal(size=(EXAMPLES, *shape)) * np.exp(generator.normal(size=(EXAMPLES, 1, 1, 1)))
    y = generator.integers(0, 10, EXAMPLES)
    model = make(jax.random.key(0))
    problem = Problem(model, (x, y), loss)
    gradient = jax.jit(jax.grad(loss))
    first = Moment(jnp.int32(0), jax.random.key(1))
    clip_norm = float(
        np.median([np.linalg.norm(flat(gradient(model, pair, first))) for pair in zip(x, y, strict=True)])
    )
    run = li.DPSGD(2, 0.5, 0.1, clip_norm=clip_norm, optimizer=li.SGD(0.05, momentum=0.5))
    trainer = Trainer(run, problem, chunk_size=2)
    released = released_by(trainer, [0, 1], [False, False])
    for number in range(2):
        batches, noise = batches_of(trainer, number, False), noise_of(problem, 2, number, False)
        keys = model_keys(SEED, np.array([number]), np.array([False])).loss
        theta, buffer, clipped = flat(model), 0.0, []
        for step in range(2):
            total = run.noise_multiplier * clip_norm * noise[step]
            for slot in batches[step]:
                current = like(model, theta)
                key = loss_keys(keys, jnp.int32(step), jnp.array([[slot]]))[0, 0]
                one = flat(gradient(current, (x[slot], y[slot]), Moment(jnp.int32(step), key)))
                clipped.append(np.linalg.norm(one) > clip_norm)
                total = total + one / max(1.0, np.linalg.norm(one) / clip_norm)
            buffer = 0.5 * buffer + total
            theta = theta - 0.05 * buffer
        assert 0 < np.mean(clipped) < 1
        assert released[number] == pytest.approx(theta, rel=1e-9, abs=1e-9)


def like(model, vector):
    leaves, structure = jax.tree.flatten(eqx.filter(model, eqx.is_inexact_array))
    parts = np.split(vector, np.cumsum([leaf.size for leaf in leaves])[:-1])
    arrays = jax.tree.unflatten(
        structure, [jnp.asarray(part.reshape(leaf.shape)) for part, leaf in zip(parts, leaves, strict=True)]
    )
    return eqx.combine(arrays, model)
