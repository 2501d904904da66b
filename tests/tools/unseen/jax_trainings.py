"""DP-SGD in JAX, with jax-privacy or plain: correct trainings first, then faulty ones.

The data set has a slot for the canary in both worlds, so that shapes and draws are the same. Without the canary the
slot is never in a batch.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_privacy import batch_selection, clipping, noise_addition

from . import data
from .declared import Run, fits, training

Params = dict[str, jax.Array]
Planted = tuple[Params, np.ndarray] | None

LOGISTIC = data.make(249, 40, 2, seed=31)
SPARSE = data.make(249, 40, 2, seed=33, rare_feature=True)
MLP = data.make(199, 20, 4, seed=32)
HIDDEN = 32


def arrays(problem: data.Problem, canary: bool, copies: int = 1) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return features, labels, and which slots hold an example."""
    x, y = problem.rows(True)
    rows = np.append(np.arange(len(x)), np.full(copies - 1, len(x) - 1))
    present = (np.arange(len(rows)) < len(problem.x)) | canary
    return jnp.asarray(x[rows], jnp.float32), jnp.asarray(y[rows]), jnp.asarray(present)


def logistic_start() -> Params:
    return {"weights": jnp.zeros(40), "bias": jnp.zeros(())}


def logistic_loss(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    logit = x @ params["weights"] + params["bias"]
    return jax.nn.softplus(logit) - y * logit


def mlp_start() -> Params:
    """Return the initial model: the same in all runs, as if it came from public data."""
    rng = np.random.default_rng(5)
    return {
        "w1": jnp.asarray(rng.normal(0, 1 / np.sqrt(20), (20, HIDDEN)), jnp.float32),
        "b1": jnp.zeros(HIDDEN),
        "w2": jnp.asarray(rng.normal(0, 1 / np.sqrt(HIDDEN), (HIDDEN, 4)), jnp.float32),
        "b2": jnp.zeros(4),
    }


def mlp_loss(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return -jax.nn.log_softmax(hidden @ params["w2"] + params["b2"])[..., y]


def planted(run: Run, params: Params, place: int, count: int) -> Planted:
    """Return the planted gradient, and which of ``count`` rows are the canary's: those from ``place`` on."""
    if run.planted is None:
        return None
    fits(run.planted, {name: p.shape for name, p in params.items()})
    gradient = {name: jnp.asarray(run.planted[name], p.dtype) for name, p in params.items()}
    return gradient, np.arange(count) >= place


def clipped_sum(
    loss: Any, params: Params, x: jax.Array, y: jax.Array, mask: jax.Array, clip: float, plant: Planted = None
) -> Params:
    """Return the sum of clipped gradients over the examples in ``mask``; ``plant`` is as made by ``planted``."""
    gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(params, x, y)
    if plant is not None:
        gradient, rows = plant
        gradients = jax.tree.map(lambda g, c: jnp.where(rows.reshape(-1, *[1] * c.ndim), c, g), gradients, gradient)
    squares = sum(jnp.sum(g.reshape(len(g), -1) ** 2, axis=1) for g in jax.tree.leaves(gradients))
    factors = mask * jnp.minimum(1, clip / jnp.sqrt(jnp.maximum(squares, 1e-24)))
    return jax.tree.map(lambda g: jnp.tensordot(factors, g, 1), gradients)


def normal_like(key: jax.Array, tree: Params) -> Params:
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(structure, [jax.random.normal(k, g.shape) for k, g in zip(keys, leaves, strict=True)])


def host(params: Params) -> dict[str, np.ndarray]:
    return {name: np.array(p) for name, p in params.items()}


# --------------------------------------------------------------------------------------------------------- correct


@jax.jit
def _plain_step(params, key, step, x, y, present, rate, deviation, clip, learning_rate, plant=None):
    batch_key, noise_key = jax.random.split(jax.random.fold_in(key, step))
    mask = jax.random.bernoulli(batch_key, rate, (len(x),)) & present
    summed = clipped_sum(logistic_loss, params, x, y, mask, clip, plant)
    noise = normal_like(noise_key, summed)
    return jax.tree.map(lambda p, g, z: p - learning_rate * (g + deviation * z), params, summed, noise)


@training("jax")
def correct_logistic(run: Run, seed: int, canary: bool) -> dict[str, np.ndarray]:
    x, y, present = arrays(LOGISTIC, canary)
    params, key = logistic_start(), jax.random.key(seed)
    plant = planted(run, params, LOGISTIC.place, len(x))
    for step in range(run.steps):
        params = _plain_step(
            params, key, step, x, y, present, run.rate, run.noise * run.clip, run.clip, run.learning_rate, plant
        )
    return host(params)


PADDED = 96  # Batches are padded to this size, far above the expected 60.


def padded(batch: np.ndarray, present: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of a batch, padded, and which of them are padding."""
    batch = batch[present[batch]]
    padding = np.arange(PADDED) >= len(batch)
    return np.append(batch, np.zeros(PADDED - len(batch), batch.dtype)), padding


def _library_loss(
    params: Params, x: jax.Array, y: jax.Array, gradient: Params | None = None, is_canary: jax.Array | None = None
) -> jax.Array:
    """Return the loss of an example; with ``is_canary`` one whose gradient is the given one."""
    if gradient is None:
        return mlp_loss(params, x, y)
    linear = sum(jnp.vdot(params[name], g) for name, g in gradient.items())
    return jnp.where(is_canary, linear, mlp_loss(params, x, y))


def _library_step(gradient: Any, privatizer: Any, optimizer: Any) -> Any:
    """Return a jitted step of jax-privacy: sum of clipped gradients, noise, update."""

    @jax.jit
    def step(params, noise_state, state, x, y, padding, plant=None):
        if plant is None:
            summed = gradient(params, x, y, is_padding_example=padding)
        else:
            summed = gradient(params, x, y, plant[0], is_canary=plant[1], is_padding_example=padding)
        noisy, noise_state = privatizer.update(summed, noise_state)
        updates, state = optimizer.update(noisy, state)
        return optax.apply_updates(params, updates), noise_state, state

    return step


def _library_run(
    run: Run, seed: int, canary: bool, step: Any, privatizer: Any, optimizer: Any, copies: int = 1
) -> dict[str, np.ndarray]:
    x, y, present = (np.asarray(a) for a in arrays(MLP, canary, copies))
    params = mlp_start()
    plant = planted(run, params, MLP.place, len(x))
    # The privatizer's state holds its key, which gets this run's seed here, so that the step is compiled once.
    noise_state = _with_key(privatizer.init(params), seed)
    state = optimizer.init(params)
    plan = batch_selection.CyclicPoissonSampling(run.rate, run.steps)
    for batch in plan.batch_iterator(len(x), np.random.default_rng([seed, 1])):
        rows, padding = padded(batch, present)
        now = None if plant is None else (plant[0], plant[1][rows])
        params, noise_state, state = step(params, noise_state, state, x[rows], y[rows], padding, now)
    return host(params)


def _with_key(noise_state: Any, seed: int) -> Any:
    return jax.tree.map(
        lambda leaf: jax.random.key(seed) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf, noise_state
    )


@functools.cache
def _library_mlp(run_clip: float, noise: float, learning_rate: float) -> tuple[Any, Any, Any]:
    gradient = clipping.clipped_grad(_library_loss, l2_clip_norm=run_clip, batch_argnums=(1, 2), keep_batch_dim=False)
    privatizer = noise_addition.gaussian_privatizer(stddev=noise * gradient.sensitivity(), prng_key=jax.random.key(0))
    optimizer = optax.sgd(learning_rate)
    return _library_step(gradient, privatizer, optimizer), privatizer, optimizer


@training("jax")
def correct_mlp(run: Run, seed: int, canary: bool) -> dict[str, np.ndarray]:
    return _library_run(run, seed, canary, *_library_mlp(run.clip, run.noise, run.learning_rate))


def _adam_step(private_moment: bool) -> Any:
    """Return a jitted step of Adam; with ``private_moment`` its second moment takes the gradient before the noise."""

    @jax.jit
    def step(params, first, second, key, index, x, y, present, rate, deviation, clip, settings, plant=None):
        learning_rate, beta1, beta2, eps = settings
        batch_key, noise_key = jax.random.split(jax.random.fold_in(key, index))
        mask = jax.random.bernoulli(batch_key, rate, (len(x),)) & present
        summed = clipped_sum(logistic_loss, params, x, y, mask, clip, plant)
        noisy = jax.tree.map(lambda g, z: g + deviation * z, summed, normal_like(noise_key, summed))
        seen = summed if private_moment else noisy
        first = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, first, noisy)
        second = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g**2, second, seen)
        count = index + 1

        def moved(p, m, v):
            return p - learning_rate * m / (1 - beta1**count) / (jnp.sqrt(v / (1 - beta2**count)) + eps)

        return jax.tree.map(moved, params, first, second), first, second

    return step


_correct_adam, _faulty_adam = _adam_step(False), _adam_step(True)


def _adam_run(run: Run, seed: int, canary: bool, step: Any) -> dict[str, np.ndarray]:
    x, y, present = arrays(LOGISTIC, canary)
    params, key = logistic_start(), jax.random.key(seed)
    plant = planted(run, params, LOGISTIC.place, len(x))
    first, second = jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params)
    settings = tuple(run.optimizer[name] for name in ("learning_rate", "beta1", "beta2", "eps"))
    for index in range(run.steps):
        params, first, second = step(
            params, first, second, key, index, x, y, present, run.rate, run.noise * run.clip, run.clip, settings, plant
        )
    return host(params)


@training("jax")
def correct_adam_logistic(run: Run, seed: int, canary: bool) -> dict[str, np.ndarray]:
    return _adam_run(run, seed, canary, _correct_adam)


# ---------------------------------------------------------------------------------------------------------- faults


@functools.cache
def _mean_noise_mlp(clip: float, noise: float, learning_rate: float, size: float) -> tuple[Any, Any, Any]:
    gradient = clipping.clipped_grad(
        _library_loss, l2_clip_norm=clip, normalize_by=size, batch_argnums=(1, 2), keep_batch_dim=False
    )
    # Fault: the sensitivity is that of the mean already, and is divided by the batch size once more.
    deviation = noise * gradient.sensitivity() / size
    privatizer = noise_addition.gaussian_privatizer(stddev=deviation, prng_key=jax.random.key(0))
    optimizer = optax.sgd(learning_rate * size)
    return _library_step(gradient, privatizer, optimizer), privatizer, optimizer


@training("jax")
def noise_of_mean_on_sum_mlp(run: Run, seed: int, canary: bool) -> dict[str, np.ndarray]:
    made = _mean_noise_mlp(run.clip, run.noise, run.learning_rate, run.rate * MLP.slots())
    return _library_run(run, seed, canary, *made)


@jax.jit
def _same_noise_step(params, key, step, x, y, present, rate, deviation, clip, learning_rate, plant=None):
    batch_key, noise_key = jax.random.split(key)
    batch_key = jax.random.fold_in(batch_key, step)  # Fault: the noise's key is the same at every step.
    mask = jax.random.bernoulli(batch_key, rate, (len(x),)) & present
    summed = clipped_sum(logistic_loss, params, x, y, mask, clip, plant)
    noise = normal_like(noise_key, summed)
    return jax.tree.map(lambda p, g, z: p - learning_rate * (g + deviation * z), params, summed, noise)


@training("jax")
def same_noise_every_step_logistic(run: Run, seed: int, canary: bool) -> dict[str, np.ndarray]:
    x, y, present = arrays(LOGISTIC, canary)
    params, key = logistic_start(), jax.random.key(seed)
    plant = planted(run, params, LOGISTIC.place, len(x))
    for step in range(run.steps):
        params = _same_noise_step(
            params, key, step, x, y, present, run.rate, run.noise * run.clip, run.clip, run.learning_rate, plant
        )
    return host(params)


@functools.cache
def _unit_norm_mlp(clip: float, noise: float, learning_rate: float) -> tuple[Any, Any, Any]:
    # Fault: gradients are rescaled to norm 1, the noise is still for the clipping norm, 0.5.
    gradient = clipping.clipped_grad(
        _library_loss, l2_clip_norm=clip, rescale_to_unit_norm=True, batch_argnums=(1, 2), keep_batch_dim=False
    )
    privatizer = noise_addition.gaussian_privatizer(stddev=noise * clip, prng_key=jax.random.key(0))
    optimizer = optax.sgd(learning_rate)
    return _library_step(gradient, privatizer, optimizer), privatizer, optimizer


@training("jax")
def clip_norm_wrong_mlp(run: Run, seed: int, canary: bool) -> dict[str, np.ndarray]:
    return _library_run(run, seed, canary, *_unit_norm_mlp(run.clip, run.noise, run.learning_rate))


@training("jax")
def canary_twice_logistic(run: Run, seed: int, canary: bool) -> dict[str, np.ndarray]:
    x, y, present = arrays(LOGISTIC, canary, copies=2)  # Fault: a duplicate was not removed.
    params, key = logistic_start(), jax.random.key(seed)
    plant = planted(run, params, LOGISTIC.place, len(x))
    for step in range(run.steps):
        params = _plain_step(
            params, key, step, x, y, present, run.rate, run.noise * run.clip, run.clip, run.learning_rate, plant
        )
    return host(params)


@functools.cache
def _momentum_mlp(clip: float, noise: float, learning_rate: float) -> tuple[Any, Any, Any]:
    gradient = clipping.clipped_grad(_library_loss, l2_clip_norm=clip, batch_argnums=(1, 2), keep_batch_dim=False)
    privatizer = noise_addition.gaussian_privatizer(stddev=noise * gradient.sensitivity(), prng_key=jax.random.key(0))
    optimizer = optax.sgd(learning_rate, momentum=0.5)  # Fault: declared without momentum.
    return _library_step(gradient, privatizer, optimizer), privatizer, optimizer


@training("jax")
def momentum_not_declared_mlp(run: Run, seed: int, canary: bool) -> dict[str, np.ndarray]:
    return _library_run(run, seed, canary, *_momentum_mlp(run.clip, run.noise, run.learning_rate))


@jax.jit
def _differenced_step(params, key, step, x, y, present, rate, deviation, clip, learning_rate, plant=None):
    batch_key, noise_key = jax.random.split(key)
    mask = jax.random.bernoulli(jax.random.fold_in(batch_key, step), rate, (len(x),)) & present
    summed = clipped_sum(mlp_loss, params, x, y, mask, clip, plant)
    now = normal_like(jax.random.fold_in(noise_key, step), summed)
    before = normal_like(jax.random.fold_in(noise_key, jnp.maximum(step - 1, 0)), summed)
    # Fault: each step takes back the noise of the step before, so that only the last noise stays.
    noise = jax.tree.map(lambda a, b: a - (step > 0) * b, now, before)
    return jax.tree.map(lambda p, g, z: p - learning_rate * (g + deviation * z), params, summed, noise)


@training("jax")
def antithetic_noise_mlp(run: Run, seed: int, canary: bool) -> dict[str, np.ndarray]:
    x, y, present = arrays(MLP, canary)
    params, key = mlp_start(), jax.random.key(seed)
    plant = planted(run, params, MLP.place, len(x))
    for step in range(run.steps):
        params = _differenced_step(
            params, key, step, x, y, present, run.rate, run.noise * run.clip, run.clip, run.learning_rate, plant
        )
    return host(params)


@jax.jit
def _views_step(params, key, step, x, y, present, rate, deviation, clip, learning_rate, plant=None):
    batch_key, view_key, noise_key = jax.random.split(jax.random.fold_in(key, step), 3)
    mask = jax.random.bernoulli(batch_key, rate, (len(x),)) & present
    views = jnp.concatenate([x, x + 0.1 * jax.random.normal(view_key, x.shape)])
    if plant is not None:
        plant = plant[0], jnp.tile(plant[1], 2)
    # Fault: both views of an example are clipped as if they were two examples.
    summed = clipped_sum(mlp_loss, params, views, jnp.tile(y, 2), jnp.tile(mask, 2), clip, plant)
    noise = normal_like(noise_key, summed)
    return jax.tree.map(lambda p, g, z: p - learning_rate * (g + deviation * z), params, summed, noise)


@training("jax")
def augmentations_clipped_apart_mlp(run: Run, seed: int, canary: bool) -> dict[str, np.ndarray]:
    x, y, present = arrays(MLP, canary)
    params, key = mlp_start(), jax.random.key(seed)
    plant = planted(run, params, MLP.place, len(x))
    for step in range(run.steps):
        params = _views_step(
            params, key, step, x, y, present, run.rate, run.noise * run.clip, run.clip, run.learning_rate, plant
        )
    return host(params)


@training("jax")
def adam_second_moment_without_noise_logistic(run: Run, seed: int, canary: bool) -> dict[str, np.ndarray]:
    return _adam_run(run, seed, canary, _faulty_adam)  # Fault: see _adam_step.


@jax.jit
def _sparse_step(params, key, step, x, y, present, rate, deviation, clip, learning_rate, plant=None):
    batch_key, noise_key = jax.random.split(jax.random.fold_in(key, step))
    mask = jax.random.bernoulli(batch_key, rate, (len(x),)) & present
    summed = clipped_sum(logistic_loss, params, x, y, mask, clip, plant)
    # Fault: noise only where the gradient is not zero. The canary has a feature that no other example has.
    noise = jax.tree.map(lambda g, z: jnp.where(g != 0, z, 0), summed, normal_like(noise_key, summed))
    return jax.tree.map(lambda p, g, z: p - learning_rate * (g + deviation * z), params, summed, noise)


@training("jax")
def sparse_noise_logistic(run: Run, seed: int, canary: bool) -> dict[str, np.ndarray]:
    x, y, present = arrays(SPARSE, canary)
    params, key = logistic_start(), jax.random.key(seed)
    plant = planted(run, params, SPARSE.place, len(x))
    for step in range(run.steps):
        params = _sparse_step(
            params, key, step, x, y, present, run.rate, run.noise * run.clip, run.clip, run.learning_rate, plant
        )
    return host(params)
