"""DP-SGD in JAX, with jax-privacy or plain: correct trainings first, then faulty ones.

The data set has a slot for the canary in both worlds, so that shapes and draws are the same. Without the canary the
slot is never in a batch.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_privacy import batch_selection, clipping, noise_addition

from . import data
from .trainer import Trainer, declared, training

Params = dict[str, jax.Array]

LOGISTIC = declared(100, 0.1, 1.0, 1.0, 0.1 / 25)
MLP = declared(40, 0.3, 0.7, 0.5, 0.2 / 60)
HIDDEN = 32
PADDED = 96  # jax-privacy's batches are padded to this size, far above the expected 60


def logistic_loss(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    logit = x @ params["weights"] + params["bias"]
    return jax.nn.softplus(logit) - y * logit


def mlp_loss(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return -jax.nn.log_softmax(hidden @ params["w2"] + params["b2"])[..., y]


def clipped_sum(loss: Any, params: Params, x: Any, y: Any, mask: Any, clip: float, plant: Any) -> Params:
    """Return the sum of clipped gradients over ``mask``; ``plant`` is a gradient and the rows that have it, or None."""
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


class Jax(Trainer):
    """Correct; a step is compiled once for each class. Faults change the static methods, or ``advance``."""

    copies = 1

    def prepare(self) -> None:
        x, y = self.problem.rows(True)
        rows = np.append(np.arange(len(x)), np.full(self.copies - 1, len(x) - 1))
        present = (np.arange(len(rows)) < len(self.problem.x)) | self.canary
        self.x, self.y, self.present = jnp.asarray(x[rows], jnp.float32), jnp.asarray(y[rows]), jnp.asarray(present)

    def train(self) -> dict[str, np.ndarray]:
        self.params, self.plant = self.start(), None
        if self.planted is not None:
            self.fits({name: p.shape for name, p in self.params.items()})
            gradient = {name: jnp.asarray(self.planted[name], p.dtype) for name, p in self.params.items()}
            self.plant = gradient, np.arange(len(self.x)) >= self.place
        self.advance()
        return {name: np.array(p) for name, p in self.params.items()}

    def advance(self) -> None:
        run, key = self.run, jax.random.key(self.seed)
        data, numbers = (self.x, self.y, self.present), (run.sample_rate, self.deviation, run.clip_norm)
        for step in range(self.steps):
            self.params = self.compiled()(self.params, key, step, *data, *numbers, self.learning_rate, self.plant)

    @classmethod
    @functools.cache
    def compiled(cls) -> Any:
        def step(params, key, step, x, y, present, rate, deviation, clip, learning_rate, plant):
            batch_key, noise_key, views_key = cls.keys(key, step)
            mask = jax.random.bernoulli(batch_key, rate, (len(x),)) & present
            summed = clipped_sum(cls.loss, params, *cls.views(views_key, x, y, mask), clip, cls.planted_views(plant))
            noise = cls.noise(noise_key, step, summed)
            return jax.tree.map(lambda p, g, z: p - learning_rate * (g + deviation * z), params, summed, noise)

        return jax.jit(step)

    @staticmethod
    def keys(key: Any, step: Any) -> Any:
        return *jax.random.split(jax.random.fold_in(key, step)), None

    @staticmethod
    def noise(key: Any, step: Any, summed: Params) -> Params:
        return normal_like(key, summed)

    @staticmethod
    def views(key: Any, x: Any, y: Any, mask: Any) -> Any:
        return x, y, mask

    @staticmethod
    def planted_views(plant: Any) -> Any:
        return plant


class Logistic(Jax):
    problem = data.make(249, 40, 2, seed=31)
    loss = staticmethod(logistic_loss)

    def start(self) -> Params:
        return {"weights": jnp.zeros(40), "bias": jnp.zeros(())}


class Mlp(Jax):
    problem = data.make(199, 20, 4, seed=32)
    loss = staticmethod(mlp_loss)

    def start(self) -> Params:
        """Return the initial model: the same in all runs, as if it came from public data."""
        rng = np.random.default_rng(5)
        w1 = jnp.asarray(rng.normal(0, 1 / np.sqrt(20), (20, HIDDEN)), jnp.float32)
        w2 = jnp.asarray(rng.normal(0, 1 / np.sqrt(HIDDEN), (HIDDEN, 4)), jnp.float32)
        return {"w1": w1, "b1": jnp.zeros(HIDDEN), "w2": w2, "b2": jnp.zeros(4)}


def _library_loss(params: Params, x: Any, y: Any, gradient: Any = None, is_canary: Any = None) -> jax.Array:
    """Return the loss of an example; with ``is_canary`` one whose gradient is the given one."""
    if gradient is None:
        return mlp_loss(params, x, y)
    linear = sum(jnp.vdot(params[name], g) for name, g in gradient.items())
    return jnp.where(is_canary, linear, mlp_loss(params, x, y))


class Library(Mlp):
    """Correct, with the clipping, noise and batches of jax-privacy, and the optimizer of optax."""

    options: dict[str, Any] = {}  # noqa: RUF012 - of the clipping
    sensitivity: float | None = None
    of_mean, momentum = False, None

    @classmethod
    @functools.cache
    def compiled(cls) -> Any:
        size = cls.run.sample_rate * cls.problem.slots() if cls.of_mean else 1.0
        options = {"normalize_by": size, **cls.options} if cls.of_mean else cls.options
        gradient = clipping.clipped_grad(
            _library_loss, l2_clip_norm=cls.run.clip_norm, batch_argnums=(1, 2), keep_batch_dim=False, **options
        )
        deviation = cls.run.noise_multiplier * (cls.sensitivity or gradient.sensitivity()) / size
        privatizer = noise_addition.gaussian_privatizer(stddev=deviation, prng_key=jax.random.key(0))
        optimizer = optax.sgd(cls.run.optimizer.learning_rate * size, momentum=cls.momentum)

        @jax.jit
        def step(params, noise_state, state, x, y, padding, plant):
            more = () if plant is None else (plant[0],)
            which = {} if plant is None else {"is_canary": plant[1]}
            summed = gradient(params, x, y, *more, **which, is_padding_example=padding)
            noisy, noise_state = privatizer.update(summed, noise_state)
            updates, state = optimizer.update(noisy, state)
            return optax.apply_updates(params, updates), noise_state, state

        return step, privatizer, optimizer

    def advance(self) -> None:
        step, privatizer, optimizer = self.compiled()
        x, y, present = (np.asarray(a) for a in (self.x, self.y, self.present))
        state = optimizer.init(self.params)
        # The privatizer's state holds its key, which gets this run's seed here, so that the step is compiled once.
        noise_state = jax.tree.map(
            lambda leaf: jax.random.key(self.seed) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf,
            privatizer.init(self.params),
        )
        plan = batch_selection.CyclicPoissonSampling(self.run.sample_rate, self.steps)
        for batch in plan.batch_iterator(len(x), np.random.default_rng([self.seed, 1])):
            batch = batch[present[batch]]
            padding = np.arange(PADDED) >= len(batch)
            rows = np.append(batch, np.zeros(PADDED - len(batch), batch.dtype))
            now = None if self.plant is None else (self.plant[0], self.plant[1][rows])
            self.params, noise_state, state = step(self.params, noise_state, state, x[rows], y[rows], padding, now)


class Adam(Logistic):
    """Correct, with Adam, declared."""

    private_moment = False

    @classmethod
    @functools.cache
    def compiled(cls) -> Any:
        def step(params, first, second, key, index, x, y, present, rate, deviation, clip, settings, plant):
            learning_rate, beta1, beta2, eps = settings
            batch_key, noise_key, _ = cls.keys(key, index)
            mask = jax.random.bernoulli(batch_key, rate, (len(x),)) & present
            summed = clipped_sum(logistic_loss, params, x, y, mask, clip, plant)
            noisy = jax.tree.map(lambda g, z: g + deviation * z, summed, normal_like(noise_key, summed))
            seen = summed if cls.private_moment else noisy
            first = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, first, noisy)
            second = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g**2, second, seen)
            count = index + 1

            def moved(p, m, v):
                return p - learning_rate * m / (1 - beta1**count) / (jnp.sqrt(v / (1 - beta2**count)) + eps)

            return jax.tree.map(moved, params, first, second), first, second

        return jax.jit(step)

    def advance(self) -> None:
        run, key, adam = self.run, jax.random.key(self.seed), self.run.optimizer
        first = second = jax.tree.map(jnp.zeros_like, self.params)
        data, numbers = (self.x, self.y, self.present), (run.sample_rate, self.deviation, run.clip_norm)
        settings = adam.learning_rate, adam.beta1, adam.beta2, adam.eps
        for index in range(self.steps):
            self.params, first, second = self.compiled()(
                self.params, first, second, key, index, *data, *numbers, settings, self.plant
            )


BETAS = dict(beta1=0.9, beta2=0.999)
training("correct", "jax", LOGISTIC)(Logistic)
training("correct", "jax", MLP)(Library)
training("correct_adam", "jax", declared(40, 0.2, 1.0, 1.0, 0.01, **BETAS, eps=1e-8))(Adam)


@training("noise_of_mean_on_sum", "jax", MLP)
class NoiseOfMeanOnSum(Library):
    """The sensitivity of the mean is divided by the batch size once more: noise 60 times too small."""

    of_mean = True


@training("same_noise_every_step", "jax", LOGISTIC)
class SameNoiseEveryStep(Logistic):
    """The key of the noise is the same at every step, so all steps have the same noise."""

    @staticmethod
    def keys(key: Any, step: Any) -> Any:
        batch_key, noise_key = jax.random.split(key)
        return jax.random.fold_in(batch_key, step), noise_key, None


@training("clip_norm_wrong", "jax", MLP)
class ClipNormWrong(Library):
    """Clipped gradients are rescaled to norm 1, while the noise is for norm 0.5."""

    options = {"rescale_to_unit_norm": True}  # noqa: RUF012
    sensitivity = 0.5


@training("canary_twice", "jax", LOGISTIC)
class CanaryTwice(Logistic):
    """The canary is in the data twice."""

    copies = 2


@training("momentum_not_declared", "jax", MLP)
class MomentumNotDeclared(Library):
    """Momentum 0.5 is used and not declared."""

    momentum = 0.5


@training("antithetic_noise", "jax", MLP)
class AntitheticNoise(Mlp):
    """Each step takes back the noise of the step before, so only the last noise stays."""

    keys = SameNoiseEveryStep.keys

    @staticmethod
    def noise(key: Any, step: Any, summed: Params) -> Params:
        now = normal_like(jax.random.fold_in(key, step), summed)
        before = normal_like(jax.random.fold_in(key, jnp.maximum(step - 1, 0)), summed)
        return jax.tree.map(lambda a, b: a - (step > 0) * b, now, before)


@training("augmentations_clipped_apart", "jax", MLP)
class AugmentationsClippedApart(Mlp):
    """Two views of an example are clipped each for itself and added up."""

    @staticmethod
    def keys(key: Any, step: Any) -> Any:
        batch_key, views_key, noise_key = jax.random.split(jax.random.fold_in(key, step), 3)
        return batch_key, noise_key, views_key

    @staticmethod
    def views(key: Any, x: Any, y: Any, mask: Any) -> Any:
        views = jnp.concatenate([x, x + 0.1 * jax.random.normal(key, x.shape)])
        return views, jnp.tile(y, 2), jnp.tile(mask, 2)

    @staticmethod
    def planted_views(plant: Any) -> Any:
        return None if plant is None else (plant[0], jnp.tile(plant[1], 2))


@training("adam_second_moment_without_noise", "jax", declared(40, 0.2, 2.0, 1.0, 0.01, **BETAS, eps=0.4))
class AdamSecondMomentWithoutNoise(Adam):
    """Adam's second moment is made from gradients before the noise."""

    private_moment = True


@training("sparse_noise", "jax", LOGISTIC)
class SparseNoise(Logistic):
    """Noise is added only where the gradient is not zero; only the canary has the last feature."""

    problem = data.make(249, 40, 2, seed=33, rare_feature=True)

    @staticmethod
    def noise(key: Any, step: Any, summed: Params) -> Params:
        return jax.tree.map(lambda g, z: jnp.where(g != 0, z, 0), summed, normal_like(key, summed))
