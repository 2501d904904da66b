"""Gradient-space attack on natural data: inject a constant canary gradient and score the displacement along it.

The paper injects a Dirac gradient: zero except at one index. Natural gradients also move that index, and hide the
canary if the movement is large. Models without the canary show which indices are quiet (natural gradients move them
little).

A model's noise depends only on its address (seed, model, step, parameter). So the same model can be trained once on the
data and once on no data. SGD is linear in its gradients, so the difference of the two models is the effect of the
natural gradients. With Adam, the difference also contains the effect of natural gradients on the step sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, get_args

import numpy as np

from lastiterate.attacks.attack import ONE_EXAMPLE, Armed, ExpectedScores, Facts, LinearScores, References, Words
from lastiterate.attacks.released_iterates import (
    Blocks,
    LinearScore,
    armed_for_releases,
    expected_ratios,
    natural_blocks,
    noise_unit,
    score_unit,
)
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import integer, number, one_of
from lastiterate.optimizer import is_adam
from lastiterate.run import DPSGD
from lastiterate.supported_runs import GROUPS, RELEASES, REPLACEMENT, Support
from lastiterate.training.problem import GradientCanary, Problem, flatten, sizes_of
from lastiterate.training.problem import flatten_one as flatten_one

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
            tensor, so that a fault in any tensor is detected), "dirac" (a random parameter, as in the paper) or
            "random" (a random direction of all parameters).
        norm: norm of the canary before clipping, in clipping norms. The default is far above 1, so that missing
            clipping is detected.
        references: number of models without the canary that are trained first; they are not counted.
        seed: seed of the random directions.
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

    supports: ClassVar = Support(  # copies of the canary for a group; a replacement has the opposite gradient
        "the attack GradientSpace", ONE_EXAMPLE | {RELEASES, GROUPS, REPLACEMENT}
    )

    def craft(self, run: DPSGD, problem: Problem, references: References) -> Facts:
        blocks = Blocks.of(run) if run.release_count > 1 else None  # raises before anything is trained
        drift = measure_drift(run.replace(releases=None), problem, references, self.references)
        indices = self._indices(problem, drift.movement)
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
        score = "displacement along it"
        if "releases" in facts:
            score = (
                f"likelihood ratio of the displacements along it between all {facts['releases']:,} released iterates"
            )
        words = f"gradient space, natural data: {_WORDS[self.direction]}; score: {score}"
        caveat = f"{self.references} models without the canary were trained to craft it; they are not counted."
        return Words(words, score_unit(facts), (caveat,))

    def _indices(self, problem: Problem, movement: FloatArray) -> list[int]:
        """Return the indices at which the canary is not zero, or no indices for a random direction."""
        match self.direction:
            case "quiet":
                return [int(np.argmin(movement))]
            case "layers":
                ends = np.cumsum([0, *sizes_of(problem)])
                return [int(a + np.argmin(movement[a:b])) for a, b in pairwise(ends)]
            case "dirac":
                return [int(np.random.default_rng(self.seed).integers(movement.size))]
            case "random":
                return []

    def _vector(self, problem: Problem, facts: Facts) -> FloatArray:
        vector = np.zeros(sum(sizes_of(problem)))
        if self.direction == "random":
            vector = np.random.default_rng(self.seed).standard_normal(vector.size)
        else:
            vector[facts["indices"]] = 1.0
        return vector / np.linalg.norm(vector)


# Drift: movement of the parameters by natural gradients, without the noise.


@dataclass(frozen=True, eq=False)
class Drift:
    """Final parameters without noise and canary, as a sum.

    ``start`` is the result of training without data. ``natural`` [models, d] is the effect of the data.
    """

    start: FloatArray
    natural: FloatArray

    @property
    def mean(self) -> FloatArray:
        mean: FloatArray = self.start + self.natural.mean(axis=0)
        return mean

    @property
    def movement(self) -> FloatArray:
        """Mean squared movement of each parameter by natural gradients."""
        squared: FloatArray = self.natural.var(axis=0, ddof=1) + (self.mean - self.start) ** 2
        return squared


def measure_drift(run: DPSGD, problem: Problem, references: References, models: int) -> Drift:
    """Train ``models`` models without a canary on the data, and the same models on no data."""
    absent = GradientCanary(np.zeros(flatten_one(problem).size, np.float32))
    trained = flatten(references(run, problem, models=models)).astype(np.float64)
    noise = flatten(references(run, problem.without_examples(), absent, models=models)).astype(np.float64)
    return Drift(without_data(run, problem, references), trained - noise)


def without_data(run: DPSGD, problem: Problem, references: References) -> FloatArray:
    """Return the final parameters of a training without data and without noise."""
    start = flatten_one(problem).astype(np.float64)
    if is_adam(run.optimizer):  # by symmetry, since Adam cannot run without noise; decay is decoupled or zero
        return np.asarray(start * run.optimizer.memory(run.mechanism))
    assert run.optimizer is not None
    moves = run.optimizer.weight_decay or run.optimizer.averaging is not None
    if not moves and problem.regulariser is None and problem.regulariser_gradient is None:
        return start
    absent, silent = GradientCanary(np.zeros(start.size, np.float32)), run.replace(noise_multiplier=1e-30)
    return np.asarray(flatten(references(silent, problem.without_examples(), absent, models=1))[0], np.float64)
