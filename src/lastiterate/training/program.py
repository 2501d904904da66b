"""Algorithm 1 of the paper for a chunk of models, as one compiled program. Its step is

    theta <- theta - eta (sum of clipped gradients over the batch + gradient of the regulariser + sigma C N(0, I))

where C is the clipping norm, 1 in the paper. Noise may be correlated over steps. The program runs a range of steps. The
range, the presence of the canary, the noise and the data are inputs. All chunks, and all runs that differ only in noise
or learning rate, therefore use the same compiled program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Compiled
from jax.typing import DTypeLike

from lastiterate.common.types import BoolArray, IntArray
from lastiterate.optimizer import Optimizer
from lastiterate.run import DPSGD
from lastiterate.training import update
from lastiterate.training.draws import Keys, loss_keys, model_keys, normal_counters, normals
from lastiterate.training.gradients import GradientForm, gradient_form
from lastiterate.training.problem import Canary, ExampleCanary, GradientCanary, Moment, Problem
from lastiterate.training.sampling import GroupSampler, Sampler

if TYPE_CHECKING:
    from jaxtyping import PyTree

    Carry = tuple[PyTree, PyTree, jax.Array]  # cursor, sum of gradients, number of times each model drew the canary
    Shared = tuple[PyTree, PyTree, jax.Array, jax.Array, PyTree]

_MOMENT_AXES = Moment._make((None, 0))  # axes for vmap: all examples share the step, and each has its own key
_shape: Callable[[tuple[int, ...], DTypeLike], jax.ShapeDtypeStruct] = jax.ShapeDtypeStruct  # JAX's class has no types


class State(NamedTuple):
    """The state of a chunk of models; ``order`` is the sampler's memory."""

    weights: update.Weights
    order: PyTree


class Inputs(NamedTuple):
    """The inputs of a chunk's training besides its state."""

    keys: Keys
    present: jax.Array
    examples: PyTree
    sampling: PyTree
    learning_rate: jax.Array  # one number, or one per step
    noise: jax.Array  # one number, or one per step, like learning_rate
    canary: PyTree  # a gradient that is the same at all steps, or None


@dataclass(frozen=True)
class Program:
    """A problem, a run and a canary, ready to be compiled for chunks of one size."""

    run: DPSGD
    problem: Problem
    canary: Canary | None
    sampler: Sampler
    form: GradientForm | None  # None if there are no examples
    chunk_size: int

    @property
    def optimizer(self) -> Optimizer:
        assert self.run.optimizer is not None
        return self.run.optimizer

    def initial(self) -> State:
        count = self.chunk_size
        copies = jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], count, axis=0), self.problem.trainable)
        return State(update.start(self.optimizer, copies), self.sampler.memory(count))

    def shared_inputs(self) -> Shared:
        """Return the inputs that all chunks share, on the device: the last five of ``Inputs``."""
        examples = self.problem.examples
        if isinstance(self.canary, ExampleCanary):
            examples = jax.tree.map(lambda *parts: np.concatenate(parts), examples, *self.canary.rows())
        noise = np.asarray(self.run.noise_multiplier) * self.run.clip_norm
        return (
            jax.tree.map(jnp.asarray, examples),
            jax.tree.map(jnp.asarray, self.sampler.arguments),
            jnp.asarray(self.optimizer.learning_rate),
            jnp.asarray(noise),
            self.canary.constant(self.problem) if isinstance(self.canary, GradientCanary) else None,
        )

    def inputs(self, seed: int, models: IntArray, present: BoolArray, shared: Shared) -> Inputs:
        """Return the inputs of a chunk from the numbers of its models and the presence of the canary in each."""
        world = jnp.asarray(present)
        return Inputs(model_keys(seed, models, world), world.astype(jnp.float32), *shared)

    def advance(self, state: State, inputs: Inputs, start: jax.Array, stop: jax.Array) -> State:
        advanced: State = jax.lax.fori_loop(start, stop, lambda step, state: self._step(step, state, inputs), state)
        return advanced

    def _step(self, step: jax.Array, state: State, inputs: Inputs) -> State:
        order = self.sampler.begin(inputs.sampling, state.order, inputs.keys.sampling, step)
        trained = state.weights.parameters
        total, drawn = self._noisy_sum(trained, order, inputs, step)
        if isinstance(self.canary, GradientCanary):
            # The replacement of the canary has the opposite gradient.
            there = 2.0 * inputs.present - 1.0 if self.run.is_mirrored else inputs.present
            total = self._add_canary(total, drawn * there, trained, inputs, step)
        regulariser = jax.vmap(lambda t: self.problem.unclipped_gradient(t, step))(trained)
        if regulariser is not None:
            total = jax.tree.map(jnp.add, total, regulariser)
        weights = update.update(self.optimizer, state.weights, total, _at(inputs.learning_rate, step), step)
        return State(weights, order)

    def _noisy_sum(self, trained: PyTree, order: PyTree, inputs: Inputs, step: jax.Array) -> tuple[PyTree, jax.Array]:
        """Return the noise plus the sum of clipped gradients, and the number of times each model drew the canary."""
        sampler, keys = self.sampler, inputs.keys

        def more(carry: Carry) -> jax.Array:
            return sampler.more(inputs.sampling, carry[0], step)

        def block(carry: Carry) -> Carry:
            cursor, total, drawn = carry
            slots, weights, cursor = sampler.take(inputs.sampling, order, keys.sampling, step, cursor)
            is_canary = slots >= self.problem.size
            drawn = drawn + jnp.sum(weights * is_canary, axis=1)
            if self.form is not None:
                if isinstance(sampler, GroupSampler) and not isinstance(self.canary, ExampleCanary):
                    # The slots of a gradient canary come last and can be cut off.
                    slots, weights, is_canary = (each[:, : self.problem.size] for each in (slots, weights, is_canary))
                if not (self.run.is_mirrored and isinstance(self.canary, ExampleCanary)):
                    counted = inputs.present[:, None] if isinstance(self.canary, ExampleCanary) else 0.0
                    weights = weights * jnp.where(is_canary, counted, 1.0)
                added = self._clipped_sums(self.form, trained, slots, weights, inputs, step)
                total = jax.tree.map(jnp.add, total, added)
            return cursor, total, drawn

        carry = (sampler.cursor(self.chunk_size), self._noise(trained, inputs, step), jnp.zeros(self.chunk_size))
        _, total, drawn = jax.lax.while_loop(more, block, carry)
        return total, drawn

    def _noise(self, trained: PyTree, inputs: Inputs, step: jax.Array) -> PyTree:
        """Return the noise of a step. A noise filter also needs the noise of earlier steps. That noise is drawn
        again."""
        if self.run.noise_filter is None:
            return self._draw(trained, inputs, step)
        coefficients = jnp.asarray(self.run.noise_filter[: self.run.steps])

        def more(ago: jax.Array, total: PyTree) -> PyTree:
            drawn = self._draw(trained, inputs, step - ago)
            return jax.tree.map(lambda a, b: a + coefficients[ago].astype(b.dtype) * b, total, drawn)

        last = jnp.minimum(step + 1, coefficients.size)
        noise: PyTree = jax.lax.fori_loop(0, last, more, jax.tree.map(jnp.zeros_like, trained))
        return noise

    def _draw(self, trained: PyTree, inputs: Inputs, step: jax.Array) -> PyTree:
        leaves, structure = jax.tree.flatten(trained)
        scale, offset, result = _at(inputs.noise, step), 0, []
        for leaf in leaves:
            normal = normals(inputs.keys.noise, step, leaf.shape[1:], offset, leaf.dtype)
            result.append(scale.astype(leaf.dtype) * normal)
            offset += normal_counters(leaf[0].size)
        return jax.tree.unflatten(structure, result)

    def _clipped_sums(
        self, form: GradientForm, trained: PyTree, slots: jax.Array, weights: jax.Array, inputs: Inputs, step: jax.Array
    ) -> PyTree:
        rows = self._rows(slots, inputs.present)
        batch = jax.tree.map(lambda leaf: leaf[rows], inputs.examples)
        moments = Moment(step, loss_keys(inputs.keys.loss, step, slots))

        def one_model(trained: PyTree, batch: PyTree, moments: Moment, weights: jax.Array) -> list[jax.Array]:
            described = jax.vmap(form.describe, (None, 0, _MOMENT_AXES))(trained, batch, moments)
            return form.weighted_sum(weights * self._clip_factors(form.norms(described)), described)

        sums = jax.vmap(one_model, (0, 0, _MOMENT_AXES, 0))(trained, batch, moments, weights)
        return jax.tree.unflatten(jax.tree.structure(trained), sums)

    def _rows(self, slots: jax.Array, present: jax.Array) -> jax.Array:
        size = self.problem.size
        if not isinstance(self.canary, ExampleCanary):
            return jnp.minimum(slots, size - 1)
        different = self.run.group_size if self.canary.is_group else 1
        rows = jnp.minimum(slots, size + different - 1)
        if not self.run.is_mirrored:
            return rows
        return jnp.where((slots >= size) & (present[:, None] == 0.0), rows + different, rows)

    def _clip_factors(self, norms: jax.Array) -> jax.Array:
        """Return the factors that clip gradients of these norms: 1 / max(1, norm / C), as in Algorithm 1."""
        factors = 1.0 / jnp.maximum(1.0, norms / self.run.clip_norm)
        # A norm that overflows would scale its gradient to 0, and nobody would notice.
        return jnp.where(jnp.isinf(norms), jnp.nan, factors)

    def _add_canary(self, total: PyTree, times: jax.Array, trained: PyTree, inputs: Inputs, step: jax.Array) -> PyTree:
        canary = self.canary
        assert isinstance(canary, GradientCanary)
        keys = loss_keys(inputs.keys.loss, step, jnp.full((self.chunk_size, 1), self.problem.size))[:, 0]

        def clipped(trained: PyTree, key: jax.Array, times: jax.Array) -> PyTree:
            gradient = inputs.canary
            if gradient is None:
                gradient = canary.at(self.problem, trained, Moment(step, key))
            norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradient)))
            factor = times.astype(norm.dtype) * self._clip_factors(norm)
            return jax.tree.map(lambda leaf: factor * leaf, gradient)

        return jax.tree.map(jnp.add, total, jax.vmap(clipped)(trained, keys, times))


def describe_gradients(problem: Problem) -> GradientForm | None:
    """Return the form of the gradients of a problem's examples, or None if there are no examples."""
    if not problem.size:
        return None
    example = jax.tree.map(lambda leaf: _shape(leaf.shape[1:], jnp.result_type(leaf)), problem.examples)
    trained = jax.tree.map(lambda leaf: _shape(jnp.shape(leaf), jnp.result_type(leaf)), problem.trainable)
    moment = Moment._make((_shape((), jnp.int32), _shape((), jax.random.key(0, impl="threefry2x32").dtype)))
    return gradient_form(problem.example_gradient, trained, example, moment)


def compile_program(program: Program, workers: int) -> Compiled:
    """Compile ``advance`` into JAX's executable, for calls from ``workers`` threads at a time."""
    models = np.zeros(program.chunk_size, np.int64)
    inputs = jax.eval_shape(lambda: program.inputs(0, models, models > 0, program.shared_inputs()))
    state = jax.eval_shape(program.initial)
    number = _shape((), jnp.int32)
    lowered = jax.jit(program.advance).lower(state, inputs, number, number)
    # On CPUs: full vector registers, and no XLA threads if there are several workers.
    options: dict[str, str | bool] = {"xla_cpu_prefer_vector_width": "512", "xla_cpu_multi_thread_eigen": workers == 1}
    return lowered.compile(compiler_options=options if jax.default_backend() == "cpu" else None)


def _at(schedule: jax.Array, step: jax.Array) -> jax.Array:
    return schedule if schedule.ndim == 0 else schedule[step]
