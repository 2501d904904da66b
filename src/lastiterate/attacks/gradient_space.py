"""Gradient space, natural data: a constant canary gradient is injected, and the displacement along it is the score.

The paper injects a Dirac gradient: zero but for one index. Natural gradients move that index too, and drown the canary
if the index is a busy one. Which ones are quiet can be measured without the canary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from lastiterate.attacks.attack import Armed, ExpectedScores, Facts, LinearScores, References, Words
from lastiterate.attacks.released_iterates import (
    Blocks,
    LinearScore,
    armed_for_releases,
    expected_ratios,
    natural_blocks,
    noise_unit,
    score_unit,
    score_words,
)
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import integer, number, one_of
from lastiterate.optimizer import is_adam
from lastiterate.run import DPSGD, noise_root
from lastiterate.training.problem import GradientCanary, Problem, flatten

Direction = Literal["quiet", "layers", "dirac", "random"]

_WORDS = {
    "quiet": "a Dirac gradient at the parameter that natural gradients move least",
    "layers": "a gradient with one quiet parameter in every tensor",
    "dirac": "a Dirac gradient at a random parameter",
    "random": "a gradient in a random direction",
}


@dataclass(frozen=True)
class GradientSpace:
    """A constant canary gradient among natural data.

    Args:
        direction: "quiet" (the parameter that natural gradients move least), "layers" (the quietest parameter of every
            tensor, so that a fault in any of them shows), "dirac" (a random parameter, as in the paper) or "random" (a
            random direction of all parameters).
        norm: of the canary before clipping, in clipping norms. Far above 1, so that missing clipping shows.
        references: how many models without the canary are trained first; they are not counted.
        seed: chooses the random ones.
    """

    direction: Direction = "quiet"
    norm: float = 10.0
    references: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("direction", self.direction, get_args(Direction))
        number("norm", self.norm, 0.0, open_low=True)
        integer("references", self.references, 2)
        integer("seed", self.seed, 0)

    @property
    def knows(self) -> tuple[str, ...]:
        """Fields of a run beyond one example and the last iterate.

        A group is so many copies of the canary, and what replaces it has the opposite gradient.
        """
        return ("releases", "group_size", "neighbours", "noise_filter")

    def craft(self, run: DPSGD, problem: Problem, references: References) -> Facts:

        blocks = Blocks.of(run) if run.release_count > 1 else None  # or a refusal, before anything is trained
        drift = measure_drift(run.replace(releases=None), problem, references, self.references)
        indices = self._indices(problem, drift.variance + (drift.mean - drift.start) ** 2)
        along = self._vector(problem, {"indices": indices})
        if blocks is not None:
            signal = min(1.0, self.norm)
            return {"indices": indices} | natural_blocks(blocks, problem, references, self.references, along, signal)
        unit = noise_unit(run)
        moved = -(drift.natural @ along)
        centre = float(-(drift.start @ along) + moved.mean())
        spread = float(np.sqrt(1.0 + moved.var(ddof=1) / unit**2))
        return {"indices": indices, "centre": centre, "spread": spread}

    def arm(self, run: DPSGD, problem: Problem, facts: Facts) -> Armed:
        along = self._vector(problem, facts)
        canary = GradientCanary((self.norm * run.clip_norm * along).astype(np.float32))
        if run.release_count > 1:
            return armed_for_releases(run, problem, canary, along, facts)
        return Armed(problem, canary, LinearScore(along, facts["centre"], noise_unit(run)))

    def expected(self, facts: Facts) -> ExpectedScores:
        if "releases" in facts:
            return expected_ratios(facts)
        return LinearScores(min(1.0, self.norm), facts["spread"])

    def words(self, facts: Facts) -> Words:
        words = f"gradient space, natural data: {_WORDS[self.direction]}; score: {score_words(facts)}"
        caveat = f"{self.references} models without the canary were trained to craft it; they are not counted."
        return Words(words, score_unit(facts), (caveat,))

    def _indices(self, problem: Problem, movement: FloatArray) -> list[int]:
        """The parameters that the canary is on, if they are few."""
        match self.direction:
            case "quiet":
                return [int(np.argmin(movement))]
            case "layers":
                ends = np.cumsum(_sizes(problem))
                starts = np.append(0, ends[:-1])
                return [int(a + np.argmin(movement[a:b])) for a, b in zip(starts, ends, strict=True)]
            case "dirac":
                return [int(np.random.default_rng(self.seed).integers(movement.size))]
            case "random":
                return []

    def _vector(self, problem: Problem, facts: Facts) -> FloatArray:
        """The unit vector of the canary."""
        vector = np.zeros(sum(_sizes(problem)))
        if self.direction == "random":
            vector = np.random.default_rng(self.seed).standard_normal(vector.size)
        else:
            vector[facts["indices"]] = 1.0
        return vector / np.linalg.norm(vector)


def _sizes(problem: Problem) -> list[int]:
    """How many parameters each tensor has."""
    import jax

    return [int(np.size(leaf)) for leaf in jax.tree.leaves(problem.trainable)]


# How natural gradients move the parameters, told apart from the noise.
#
# The noise of a model has an address (seed, model, step, parameter). So the same model can be trained once on the
# data and once on nothing: SGD is linear in its gradients, and the difference of the two is what the natural
# gradients did. Of Adam it is what they did and how they changed its steps.


@dataclass(frozen=True, eq=False)
class Drift:
    """Where parameters go without noise or canary: ``start`` if there were no data, plus ``natural`` [models, d]."""

    start: FloatArray
    natural: FloatArray

    @property
    def mean(self) -> FloatArray:
        mean: FloatArray = self.start + self.natural.mean(axis=0)
        return mean

    @property
    def variance(self) -> FloatArray:
        variance: FloatArray = self.natural.var(axis=0, ddof=1)
        return variance


def measure_drift(run: DPSGD, problem: Problem, references: References, models: int) -> Drift:
    """Train ``models`` models without a canary on the data, and the same ones on nothing."""
    nothing = replace(problem, examples=None, loss=None, gradient=None, multiplicity=None)
    absent = GradientCanary(np.zeros(flatten_one(problem).size, np.float32))
    trained = flatten(references(run, problem, models=models)).astype(np.float64)
    noise = flatten(references(run, nothing, absent, models=models)).astype(np.float64)
    if is_adam(run.optimizer):  # by symmetry, where decay is decoupled or none; there is no silent Adam
        start = flatten_one(problem).astype(np.float64) * run.optimizer.memory(run.steps, noise_root(run))
    else:
        silent = run.replace(noise_multiplier=1e-30)
        start = flatten(references(silent, nothing, absent, models=1)).astype(np.float64)[0]
    return Drift(start, trained - noise)


def flatten_one(problem: Problem) -> FloatArray:
    """The initial parameters of a problem as one vector."""
    import jax

    flat: FloatArray = flatten(jax.tree.map(lambda leaf: np.asarray(leaf)[None], problem.trainable))[0]
    return flat
