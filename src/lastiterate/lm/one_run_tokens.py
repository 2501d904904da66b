"""One fine-tuning with many canaries of unseen tokens, each included by its own fair coin (Steinke et al. 2023).

The gradients of the canaries have much in common. So the score of a canary is the displacement along the part of its
gradient that is orthogonal to the gradients of all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np

from lastiterate.attacks.attack import Facts, LinearScores, Words
from lastiterate.attacks.released_iterates import noise_unit
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import integer, one_of
from lastiterate.lm.example_gradients import Tensors
from lastiterate.lm.fine_tuning import TextReferences
from lastiterate.lm.text_problem import Loaded, TextProblem, load
from lastiterate.lm.unseen_tokens import Direction, Where, find_direction, protected
from lastiterate.run import DPSGD

_MOST = 256  # canaries by default
_MEMORY = 2**31  # bytes for the gradients of the default number of canaries


@dataclass(frozen=True)
class OneRunTokens:
    """An attack with many canaries at once, each one token repeated; an audit's ``models`` is the number of canaries.

    Args:
        score: "gradient" (all trained parameters; keeps a gradient for each canary in memory) or "rows" (the rows of
            the canaries' tokens in the embeddings).
        length: length of each canary, in tokens.
        references: number of models without canaries that are trained first. They do not count as trials.
        seed: seed for the choice of tokens.
    """

    score: Where = "gradient"
    length: int = 16
    references: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("score", self.score, get_args(Where))
        integer("length", self.length, 2)
        integer("references", self.references, 2)
        integer("seed", self.seed, 0)

    @property
    def to_craft(self) -> int:
        """The number of models that are trained but do not count as trials."""
        return self.references

    def most_canaries(self, problem: TextProblem) -> int:
        """Return the largest useful number of canaries: limited by texts, unseen tokens, and memory for gradients.

        All pairs of canaries are compared, so more than a few hundred take long.
        """
        loaded = load(problem)
        size = 4 * sum(part.numel() for part in loaded.start.values()) if self.score == "gradient" else 0
        fit = _MEMORY // size if size else _MOST
        return max(min(_MOST, int(loaded.unseen.size), problem.size, fit), 2)

    def craft_many(self, run: DPSGD, problem: TextProblem, references: TextReferences, canaries: int) -> Facts:
        unseen = load(problem).unseen
        if canaries > unseen.size:
            raise ValueError(
                f"models must be at most {unseen.size}, one canary for each token that never occurs, got {canaries}: "
                f"add tokens to the model, as with added_tokens={canaries} (--added-tokens {canaries})"
            )
        tokens = np.random.default_rng(self.seed).permutation(unseen)[:canaries]
        sequences = [[int(token)] * self.length for token in tokens]
        scores = _Scores.of(run, problem, sequences, self.score)
        centres = references(run, problem, scores, models=self.references)
        return {
            "protected": problem.unit,
            "canaries": sequences,
            "centres": np.mean(centres, axis=0).tolist(),
            "signal": scores.signal,
        }

    def arm(self, run: DPSGD, problem: TextProblem, facts: Facts) -> ArmedTexts:
        scores = _Scores.of(run, problem, facts["canaries"], self.score)
        return ArmedTexts(facts["canaries"], scores, np.array(facts["centres"]))

    def expected(self, facts: Facts) -> LinearScores:
        return LinearScores(facts["signal"])

    def words(self, facts: Facts) -> Words:
        count = len(facts["canaries"])
        where = "the whole of its gradient" if self.score == "gradient" else "its token's rows of the embeddings"
        caveat = f"One model with {count} canaries, about half of them included: it is less useful than without them."
        return Words(
            f"one run: {count} canaries, each a token that never occurs in the data, {self.length} times; score: "
            f"displacement along {where}, apart from what it shares with the others",
            "standard deviations of the noise",
            (
                protected(facts["protected"]),
                caveat,
                f"{self.to_craft} models without canaries were trained to centre the scores; they are not counted.",
            ),
        )


@dataclass(frozen=True, eq=False)
class ArmedTexts:
    """The canaries, and the scores of the one released model, one score per canary."""

    canaries: list[list[int]]
    of: _Scores
    centres: FloatArray

    def scores(self, loaded: Loaded, released: Tensors) -> FloatArray:
        return self.of(loaded, released) - self.centres


@dataclass(frozen=True, eq=False)
class _Scores:
    """Displacements along the canaries' own parts, in standard deviations of the noise.

    A canary's own part is the part of its gradient that is orthogonal to the gradients of all others.

    Attributes:
        apart: [canaries, canaries], maps displacements along the gradients to displacements along the own parts.
        signal: the mean share of a canary's clipped gradient that lies in its own part.
    """

    directions: list[Direction]
    apart: FloatArray
    unit: float
    signal: float

    @classmethod
    def of(cls, run: DPSGD, problem: TextProblem, canaries: list[list[int]], where: Where) -> _Scores:
        directions = [find_direction(load(problem), canary, where) for canary in canaries]
        products = np.array([[one.dot(other) for other in directions] for one in directions])
        inverse = np.linalg.pinv(products, hermitian=True)
        lengths = np.sqrt(np.diag(inverse))
        shares = np.array([direction.shown(run.clip_norm) for direction in directions]) / lengths
        return cls(directions, inverse / lengths[:, None], noise_unit(run), float(np.clip(shares.mean(), 0.02, 1.0)))

    def __call__(self, loaded: Loaded, released: Tensors) -> FloatArray:
        moved = np.array([direction.moved(loaded, released) for direction in self.directions])
        shown: FloatArray = self.apart @ moved / self.unit
        return shown
