"""The canary is a sequence of tokens that never occur in the texts, and the attack looks at where it moved the model.

The paper looks at the rows of the embedding table that belong to these tokens. Most of the canary's gradient lies
elsewhere, though. As neither the other examples nor training itself disturb its direction much, looking along the whole
of it shows nearly all that the canary did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch

from lastiterate.arrays import IntArray
from lastiterate.attacks.attack import Facts, LinearScores, Words
from lastiterate.attacks.displacement import believed
from lastiterate.attacks.linear_score import noise_unit
from lastiterate.lm.direction import Direction, Where, find_direction
from lastiterate.lm.gradients import Tensors, clip_factors
from lastiterate.lm.problem import Loaded, TextProblem, load
from lastiterate.lm.training import TextReferences
from lastiterate.run import DPSGD
from lastiterate.values import integer, one_of

Score: TypeAlias = Literal["gradient", "rows", "loss"]

FEWEST, MOST = 8, 16  # models that a crafter looks at
_LEAST_SIGNAL = 0.02
_SPELLED = 4  # tokens of the canary that a report spells
_WORDS = {
    "gradient": "displacement of all trained parameters along its gradient",
    "rows": "displacement of its tokens' rows of the embeddings along its gradient",
    "loss": "minus the loss on it",
}


@dataclass(frozen=True)
class UnseenTokens:
    """A sequence of tokens that never occur.

    Args:
        score: "gradient" (how far all trained parameters moved against the canary's gradient), "rows" (the same in the
            rows of its tokens only, input and output embeddings, as in the paper) or "loss" (how little the released
            model loses on the canary: for who cannot see parameters).
        length: of the sequence, in tokens.
        candidates: among so many sequences the one is chosen that should show best.
        references: how many models without the canary are trained first; they are not counted. None: 8 to 16, by how
            many are counted.
        seed: draws the candidates.
    """

    score: Score = "gradient"
    length: int = 16
    candidates: int = 32
    references: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("score", self.score, get_args(Score))
        integer("length", self.length, 2)
        integer("candidates", self.candidates)
        if self.references is not None:
            integer("references", self.references, FEWEST)
        integer("seed", self.seed, 0)

    def references_for(self, counted: int) -> int:
        """How many models without the canary are needed where so many models are counted.

        They say where scores without the canary lie: 8 to a third of the noise, 16 to a quarter. With few counted ones
        that is little beside what their number leaves open. The loss has no noise that is known before, so that it
        always takes the most.
        """
        if self.references is not None:
            return self.references
        return MOST if self.score == "loss" else max(FEWEST, min(MOST, counted // 16))

    def to_craft(self, counted: int) -> int:
        """How many models are trained that are not counted, where so many are."""
        return self.references_for(counted) + (1 if self.candidates > 1 else 0)

    @property
    def _where(self) -> Where:
        return "rows" if self.score == "rows" else "gradient"

    def craft(self, run: DPSGD, problem: TextProblem, references: TextReferences) -> Facts:
        canary = self._choose(run, problem, references)
        direction = find_direction(load(problem), canary, self._where)
        reader = _Reader(run, canary, direction)
        trained = self.references_for(references.counted)
        read = references(run, problem, reader, models=trained)
        moved, losses, after = (np.array(column) for column in zip(*read, strict=True))
        shown = 0.5 * (direction.shown(run.clip_norm) + float(after.mean()))
        unit = noise_unit(run)
        facts: Facts = {"canary": canary, "share": direction.share, "protected": problem.unit}
        facts |= {"tokens": problem.spell(sorted(set(canary))), "unseen": len(load(problem).unseen)}
        facts |= {"added": problem.added_tokens > 0, "trained": self.to_craft(references.counted)}
        if self.score == "loss":
            spread = float(losses.std(ddof=1))
            signal = shown * direction.norm * unit / spread
            facts |= {"centre": float(-losses.mean()), "unit": spread, "spread": 1.0}
        else:
            signal = shown
            variance = believed(moved.var(ddof=1), unit**2, len(moved))
            facts |= {"centre": float(moved.mean()), "unit": unit, "spread": float(np.sqrt(variance) / unit)}
        return facts | {"signal": float(np.clip(signal, _LEAST_SIGNAL, 1.0))}

    def arm(self, run: DPSGD, problem: TextProblem, facts: Facts) -> ArmedText:
        canary = facts["canary"]
        direction = None if self.score == "loss" else find_direction(load(problem), canary, self._where)
        return ArmedText(canary, direction, facts["centre"], facts["unit"])

    def expected(self, facts: Facts) -> LinearScores:
        return LinearScores(facts["signal"], facts["spread"])

    def words(self, facts: Facts) -> Words:
        canary, tokens = facts["canary"], [ascii(token) for token in facts["tokens"]]
        unit = "standard deviations of the noise"
        if self.score == "loss":
            unit = "standard deviations of the score without the canary"
        return Words(
            f"a sequence of {len(canary)} tokens, {len(tokens)} different, which never occur in the data; "
            f"score: {_WORDS[self.score]}",
            unit,
            (
                protected(facts["protected"]),
                f"The canary's tokens ({', '.join(tokens[:_SPELLED])}{', ...' if tokens[_SPELLED:] else ''}) are among "
                f"the {facts['unseen']:,} that {'were added' if facts['added'] else 'never occur'}.",
                f"{facts['trained']} models without the canary were trained to craft it; they are not counted.",
            ),
        )

    def _choose(self, run: DPSGD, problem: TextProblem, references: TextReferences) -> list[int]:
        """The candidate of which most should show: in the model as it comes, and in one that was trained without it."""
        drawn = candidates(load(problem).unseen, self.length, self.candidates, self.seed)
        if len(drawn) == 1:
            return drawn[0]

        def read(loaded: Loaded, released: Tensors) -> list[float]:
            shown = []
            for canary in drawn:  # one after the other: each direction may be as large as the model
                direction = find_direction(loaded, canary, self._where)
                after = _Reader(run, canary, direction).shown(loaded, released)
                shown.append(direction.shown(run.clip_norm) + after)
            return shown

        (shown,) = references(run, problem, read, models=1, purpose=1)
        return drawn[int(np.argmax(shown))]


def candidates(unseen: IntArray, length: int, count: int, seed: int) -> list[list[int]]:
    """Sequences of tokens out of these: of one token again and again, of two, four, and so on, in turn."""
    if not unseen.size:
        raise ValueError(
            "texts must leave some of the tokenizer's tokens unused for a canary, but all occur: add tokens to the "
            "model, as with added_tokens=16 (--added-tokens 16)"
        )
    draws = np.random.default_rng(seed)
    kinds = [2**k for k in range(int(np.log2(length)) + 1) if 2**k <= len(unseen)]
    found = []
    for number in range(count):
        tokens = draws.choice(unseen, kinds[number % len(kinds)], replace=False)
        found.append([int(token) for token in np.resize(draws.permutation(tokens), length)])
    return found


def protected(unit: str) -> str:
    """What epsilon is about, for readers of a report."""
    return f"One {unit} is one example: its presence is what epsilon is about."


@dataclass(frozen=True, eq=False)
class ArmedText:
    """The canary, and the score of a released model."""

    canary: list[int]
    direction: Direction | None  # None: the loss on the canary is the score
    centre: float
    unit: float

    def score(self, loaded: Loaded, released: Tensors) -> float:
        if self.direction is None:
            return (-_loss(loaded, released, self.canary) - self.centre) / self.unit
        return (self.direction.moved(loaded, released) - self.centre) / self.unit


class _Reader:
    """What the crafter reads of a model without the canary."""

    def __init__(self, run: DPSGD, canary: list[int], direction: Direction) -> None:
        self._run, self._canary, self._direction = run, canary, direction

    def __call__(self, loaded: Loaded, released: Tensors) -> tuple[float, float, float]:
        """How far it moved along the direction, its loss on the canary, and how much of the canary would show."""
        moved = self._direction.moved(loaded, released)
        return moved, _loss(loaded, released, self._canary), self.shown(loaded, released)

    def shown(self, loaded: Loaded, parameters: Tensors) -> float:
        """The component of the canary's clipped gradient along the direction, in clipping norms."""
        tokens = torch.tensor(self._canary, device=loaded.examples[0].device)
        gradient = loaded.gradients.one(parameters, tokens)
        factor = clip_factors({name: each[None] for name, each in gradient.items()}, self._run.clip_norm)[0]
        return self._direction.along(gradient) * float(factor) / self._run.clip_norm


def _loss(loaded: Loaded, parameters: Tensors, canary: list[int]) -> float:
    tokens = torch.tensor([canary], device=loaded.examples[0].device)
    return float(loaded.gradients.losses(parameters, tokens, torch.tensor([len(canary)], device=tokens.device)))
