"""Check a training by jax-privacy: its Poisson sampling, its clipped gradients, its noise.

jax-privacy clips gradients as soon as it has them. So the canary comes in by the loss: `planted.loss` is one whose
gradient at the canary's place is the canary. Batches go through `planted.batch`.

    python examples/check_jax_privacy.py
    lastiterate check --trainer examples/check_jax_privacy.py:train
    FAULT=1 lastiterate check --trainer examples/check_jax_privacy.py:train    (divides by the realised batch size)
"""

from __future__ import annotations

import os
from functools import partial
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax_privacy import batch_selection, clipping, noise_addition

import lastiterate as li
from lastiterate.data import digits
from lastiterate.integrations.gradient_canary import PlantedGradient

FAULT = bool(os.environ.get("FAULT"))
PADDING = 256  # batches are filled up to a multiple of it, so that few shapes are compiled

data = digits()
images, labels = data.x_train.reshape(len(data.x_train), -1), data.y_train
run = li.DPSGD(steps=40, sample_rate=0.1, noise_multiplier=2.0, clip_norm=1.0, optimizer=li.SGD(0.0005))


def privatizer(seed: int) -> Any:
    """What adds the noise; its state carries the seed on from step to step."""
    return noise_addition.gaussian_privatizer(stddev=run.noise_multiplier * run.clip_norm, prng_key=seed)


def loss(parameters: dict[str, Any], image: jax.Array, label: jax.Array) -> jax.Array:
    """Of one example, which jax-privacy hands over as a batch of one."""
    logits = image @ parameters["weight"] + parameters["bias"]
    return -jnp.sum(jax.nn.log_softmax(logits)[jnp.arange(1), label])


@partial(jax.jit, static_argnames="absent")
def step(parameters: Any, state: Any, batch: jax.Array, canary: Any, absent: bool) -> tuple[Any, Any]:
    """One step, noise included. The canary is an argument, so that all canaries share one compiled program."""
    planted = PlantedGradient(False if absent else canary, place=len(images) - 1)
    clipped = clipping.clipped_grad(planted.loss(loss), l2_clip_norm=run.clip_norm, batch_argnums=(1, 2, 3))
    padding = batch == -1
    total = clipped(
        parameters, jnp.asarray(images)[batch], jnp.asarray(labels)[batch], batch, is_padding_example=padding
    )
    noisy, state = privatizer(0).update(total, state)
    rate = run.optimizer.learning_rate
    if FAULT:
        rate = rate * run.sample_rate * len(images) / jnp.sum(~padding)
    return jax.tree.map(lambda leaf, update: leaf - rate * update, parameters, noisy), state


def train(seed: int, canary: Any, steps: int = run.steps) -> dict[str, Any]:
    """The training that is checked, stopped after so many steps. It returns the parameters that would be released."""
    planted = PlantedGradient(canary, place=len(images) - 1)
    parameters = {"weight": jnp.zeros((images.shape[1], data.classes)), "bias": jnp.zeros(data.classes)}
    state = privatizer(seed).init(parameters)
    strategy = batch_selection.CyclicPoissonSampling(sampling_prob=run.sample_rate, iterations=run.steps)
    for drawn in islice(strategy.batch_iterator(len(images), rng=seed), steps):
        batch = batch_selection.pad_to_multiple_of(planted.batch(drawn), PADDING)
        parameters, state = step(parameters, state, batch, canary or None, planted.is_absent)
    return {name: np.asarray(leaf) for name, leaf in parameters.items()}


if __name__ == "__main__":
    print(li.check(run, train))
