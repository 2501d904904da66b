"""One-run attack: many canaries in a single training, each included by its own fair coin (Steinke et al. 2023).

This attack is for users who cannot train twice. The scores of one training depend on each other, so only the one-run
methods can estimate epsilon from them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lastiterate.attacks.attack import ExpectedScores, Facts, LinearScores, References, Unknown, Words
from lastiterate.attacks.gradient_space import measure_drift, without_data
from lastiterate.attacks.input_space import _images, _losses_by_label
from lastiterate.attacks.released_iterates import noise_unit
from lastiterate.common.types import BoolArray, FloatArray, IntArray
from lastiterate.common.validation import integer, number, one_of
from lastiterate.optimizer import SGD
from lastiterate.run import DPSGD
from lastiterate.training.problem import Moment, Problem, flatten, flatten_one, is_trained, sizes_of

_EPOCHS = 5.0  # at most a fifth of the examples that training takes are used to find quiet parameters


@dataclass(frozen=True)
class OneRun:
    """Many canaries in one model. The ``models`` of an audit are the canaries, each included by a fair coin.

    Args:
        canary: "gradient" (each canary is a Dirac gradient on one of the quietest parameters) or "mislabelled" (natural
            examples with wrong labels; an example that its coin excludes is removed from the data).
        norm: norm of a canary gradient before clipping, in clipping norms.
        references: number of models without canaries that are trained first, to find quiet parameters and to centre
            scores. The default is 0: one run is one training. The natural gradients at the initial parameters show
            the quiet parameters, and how far the data will move them.
        seed: chooses the mislabelled examples.
    """

    canary: Literal["gradient", "mislabelled"] = "gradient"
    norm: float = 10.0
    references: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("canary", self.canary, ("gradient", "mislabelled"))
        number("norm", self.norm, 0.0, open_low=True)
        if integer("references", self.references, 0) == 1:
            raise ValueError("references must be 0 or at least 2, got 1")
        integer("seed", self.seed, 0)

    def most_canaries(self, problem: Problem) -> int:
        """Return the largest sensible number of canaries."""
        if self.canary == "mislabelled":
            return max(problem.size // 2, 1)
        return max(min(problem.size, sum(sizes_of(problem))), 1)

    def craft_many(self, run: DPSGD, problem: Problem, references: References, canaries: int) -> Facts:
        if self.canary == "mislabelled":
            return self._craft_mislabelled(run, problem, references, canaries)
        parameters = sum(sizes_of(problem))
        if canaries > parameters:
            raise ValueError(
                f"models must be at most {parameters}, because each canary needs a parameter of its own, got {canaries}"
            )
        if self.references:
            drift = measure_drift(run, problem, references, self.references)
            movement, centre = drift.movement, drift.mean
        else:
            drift_ahead = _expected_drift(run, problem, references)
            movement, centre = np.abs(drift_ahead), without_data(run, problem, references) + drift_ahead
        indices = np.sort(np.argsort(movement, kind="stable")[:canaries])
        return {"indices": indices.tolist(), "centres": (-centre[indices]).tolist()}

    def _craft_mislabelled(self, run: DPSGD, problem: Problem, references: References, canaries: int) -> Facts:
        images, labels = _images(problem)
        classes = int(labels.max()) + 1
        if canaries >= len(images):
            raise ValueError(f"models must be below {len(images)}, the number of examples, got {canaries}")
        generator = np.random.default_rng(self.seed)
        indices = np.sort(generator.permutation(len(images))[:canaries])
        wrong = (labels[indices] + generator.integers(1, classes, canaries)) % classes
        centres = np.zeros(canaries)  # losses of one released model are compared with each other
        if self.references:
            without = references(run, self._without(problem, indices), models=self.references)
            centres -= _losses_by_label(problem, without, images[indices], classes)[np.arange(canaries), wrong]
        return {"indices": indices.tolist(), "labels": wrong.tolist(), "centres": centres.tolist()}

    def trained_problem(self, run: DPSGD, problem: Problem, facts: Facts, coins: BoolArray) -> Problem:
        """Return the problem with the canaries that the coins include."""
        indices = np.array(facts["indices"])
        if self.canary == "mislabelled":
            images, labels = _images(problem)
            wrong = np.array(facts["labels"], labels.dtype)[coins]
            rest_images, rest_labels = self._without(problem, indices).examples
            added = (np.concatenate([rest_images, images[indices[coins]]]), np.concatenate([rest_labels, wrong]))
            return replace(problem, examples=added)
        return _with_gradients(problem, indices[coins], self.norm * run.clip_norm)

    def scores(self, run: DPSGD, problem: Problem, facts: Facts, trained: PyTree) -> FloatArray:
        """Return a score for every canary. ``trained`` holds one model, with a leading axis of length 1."""
        indices, centres = np.array(facts["indices"]), np.array(facts["centres"])
        if self.canary == "mislabelled":
            images, labels = _images(problem)
            losses = _losses_by_label(problem, trained, images[indices], int(labels.max()) + 1)
            return np.asarray(-losses[np.arange(len(indices)), facts["labels"]] - centres)
        moved: FloatArray = flatten(trained)[0, indices].astype(np.float64)
        return np.asarray((-moved - centres) / noise_unit(run))

    def expected(self, facts: Facts) -> ExpectedScores:
        return LinearScores() if self.canary == "gradient" else Unknown()

    def words(self, facts: Facts) -> Words:
        what = "Dirac gradients on quiet parameters" if self.canary == "gradient" else "natural examples, mislabelled"
        unit = "standard deviations of the noise" if self.canary == "gradient" else "nats of loss"
        count = len(facts["indices"])
        caveat = f"One model with {count} canaries, about half of them included: it is less accurate than without them."
        return Words(f"one run: {count} canaries ({what})", unit, (caveat,))

    @staticmethod
    def _without(problem: Problem, indices: IntArray) -> Problem:
        return replace(problem, examples=tuple(np.delete(leaf, indices, axis=0) for leaf in problem.examples))


def _expected_drift(run: DPSGD, problem: Problem, references: References) -> FloatArray:
    """Return the movement of each parameter by natural gradients, if they stay as at the initial parameters.

    The gradients are those of a Poisson sample, of the whole data if training has at least ``_EPOCHS`` epochs.
    """
    rate = min(1.0, run.epochs / _EPOCHS)
    step = DPSGD(1, rate, 1e-30, clip_norm=run.clip_norm, optimizer=SGD(1.0))
    plain = replace(problem, regulariser=None, regulariser_gradient=None)
    moved = flatten(references(step, plain, models=1))[0].astype(np.float64) - flatten_one(problem)
    uses = float(np.sum(run.effective_weights() * np.asarray(run.sample_rate) * np.ones(run.steps)))
    return np.asarray(moved * uses / rate)


def _with_gradients(problem: Problem, indices: IntArray, norm: float) -> Problem:
    count, size = len(indices), problem.size
    padded = jax.tree.map(lambda leaf: np.concatenate([leaf, np.repeat(leaf[:1], count, axis=0)]), problem.examples)
    which = np.concatenate([np.full(size, -1), indices]).astype(np.int32)
    structure, starts = jax.tree.structure(problem.trainable), np.cumsum([0, *sizes_of(problem)])

    def gradient(parameters: PyTree, example: PyTree, moment: Moment) -> PyTree:
        natural, index = example
        usual = jax.tree.leaves(problem.example_gradient(eqx.filter(parameters, is_trained), natural, moment))
        parts = []
        for start, leaf in zip(starts, usual, strict=False):
            here = (jnp.arange(leaf.size) + int(start) == index).reshape(leaf.shape)
            parts.append(jnp.where(index < 0, leaf, norm * here.astype(leaf.dtype)))
        return jax.tree.unflatten(structure, parts)

    return replace(problem, examples=(padded, which), loss=None, gradient=gradient)
