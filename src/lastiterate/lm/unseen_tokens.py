"""Canaries of tokens that never occur in the texts, and scores of released models.

The paper looks only at the embedding rows of the canary's tokens, but most of the gradient is elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from lastiterate.attacks.attack import ONE_EXAMPLE, ExpectedScores, Facts, LinearScores, Words
from lastiterate.attacks.displacement import believed
from lastiterate.attacks.released_iterates import Blocks, expected_ratios, noise_unit, score_unit
from lastiterate.common.types import FloatArray, IntArray
from lastiterate.common.validation import integer, one_of
from lastiterate.lm.example_gradients import Tensors, clip_factors
from lastiterate.lm.fine_tuning import Model, TextReferences
from lastiterate.lm.text_problem import Loaded, TextProblem, load
from lastiterate.privacy.mixtures.law import law_of
from lastiterate.run import DPSGD
from lastiterate.supported_runs import GROUPS, RELEASES, REPLACEMENT, Support, require_supported

# Directions: a canary moves a model against the canary's gradient, in all or some parameters.

Where: TypeAlias = Literal["gradient", "rows"]


@dataclass(frozen=True, eq=False)
class Direction:
    """A unit vector: the part of a canary's gradient that the distinguisher uses, divided by its norm."""

    parts: dict[str, tuple[Tensor | None, Tensor]]  # by parameter: rows that are used (None for all), direction
    share: float  # the norm of the part, divided by the norm of the whole gradient
    norm: float  # norm of the whole gradient

    def shown(self, clip_norm: float) -> float:
        """Return the canary's clipped gradient along this direction before training, in units of the clipping norm."""
        return self.share * min(1.0, self.norm / clip_norm)

    def along(self, tensors: Tensors) -> float:
        return float(sum(_dot(part, tensors[name], rows) for name, (rows, part) in self.parts.items()))

    def dot(self, other: Direction) -> float:
        """Return the inner product with a direction in the same parameters."""
        found = 0.0
        for name, (rows, part) in self.parts.items():
            others, its = other.parts[name]
            if rows is None or others is None:
                found += _dot(part, its)
            else:
                same = rows[:, None] == others[None, :]
                found += float((part.double() @ its.double().T)[same].sum())
        return found

    def moved(self, loaded: Loaded, released: Tensors) -> float:
        found = 0.0
        for name, (rows, part) in self.parts.items():
            here, before = released[name], loaded.start[name]
            difference = here.float() - before.float() if rows is None else here[rows].float() - before[rows].float()
            found -= _dot(part, difference)
        return found


@dataclass(frozen=True, eq=False)
class Between:
    """The direction from one canary to its replacement: the normalised difference of their directions."""

    one: Direction
    other: Direction

    @property
    def length(self) -> float:
        return math.sqrt(max(2.0 - 2.0 * self.one.dot(self.other), 0.0))

    @property
    def share(self) -> float:
        """The mean share of both gradients, times half the length of the difference."""
        return 0.25 * self.length * (self.one.share + self.other.share)

    @property
    def norm(self) -> float:
        return 0.5 * (self.one.norm + self.other.norm)

    def shown(self, clip_norm: float) -> float:
        return 0.25 * self.length * (self.one.shown(clip_norm) + self.other.shown(clip_norm))

    def along(self, tensors: Tensors) -> float:
        return (self.one.along(tensors) - self.other.along(tensors)) / max(self.length, 1e-30)

    def moved(self, loaded: Loaded, released: Tensors) -> float:
        return (self.one.moved(loaded, released) - self.other.moved(loaded, released)) / max(self.length, 1e-30)


def find_direction(loaded: Loaded, canary: Sequence[int], score: Score) -> Direction:
    """Compute the direction of a canary from its gradient before training."""
    tokens = torch.tensor(canary, device=loaded.examples[0].device)
    gradient = loaded.gradients.one(loaded.start, tokens)
    norm = _norm(gradient.values())
    rows = torch.unique(tokens)
    if score == "rows":
        tables = loaded.embeddings
        if not tables:
            raise ValueError("score must be 'gradient' or 'loss' where no embeddings are trained, got 'rows'")
        parts: dict[str, tuple[Tensor | None, Tensor]] = {name: (rows, gradient[name][rows].float()) for name in tables}
    else:
        parts = {name: (None, each.float()) for name, each in gradient.items()}
    length = _norm(part for _, part in parts.values())
    unit = {name: (rows, part / max(length, 1e-30)) for name, (rows, part) in parts.items()}
    return Direction(unit, length / max(norm, 1e-30), norm)


def _dot(part: Tensor, other: Tensor, rows: Tensor | None = None) -> float:
    return float((part * (other if rows is None else other[rows])).sum(dtype=torch.float64))


def _norm(tensors: Iterable[Tensor]) -> float:
    squares = [float(torch.linalg.vector_norm(each, dtype=torch.float64)) ** 2 for each in tensors]
    return float(sum(squares) ** 0.5)


Score: TypeAlias = Literal["gradient", "rows", "loss"]

FEWEST, MOST = 8, 16  # reference models by default; fewer than FEWEST are refused
LEAST_SIGNAL = 0.02  # smallest expected signal, because thresholds need some signal
_LEAST_CANDIDATES = 8  # smallest number of candidates for the canary's replacement
_LEAST_LENGTH = 0.05  # smallest norm of the difference of two directions
_ADD_TOKENS = "add tokens to the model, as with added_tokens=16 (--added-tokens 16)"
_SPELLED = 4  # largest number of distinct tokens that a report shows
_WORDS = {
    "gradient": "displacement of all trained parameters along its gradient",
    "rows": "displacement of its tokens' rows of the embeddings along its gradient",
    "loss": "minus the loss on it",
}


@dataclass(frozen=True)
class UnseenTokens:
    """An attack whose canary is a sequence of tokens that never occur in the texts.

    Args:
        score: "gradient" (displacement of all trained parameters against the canary's gradient), "rows" (the same, but
            only in the embedding rows of the canary's tokens, as in the paper) or "loss" (minus the loss of
            the released model on the canary, for attackers who cannot see parameters).
        length: length of the sequence, in tokens.
        candidates: number of sequences from which the one with the largest expected signal is chosen.
        references: number of models without the canary that are trained first. They do not count as trials. The
            default is 8 to 16, depending on the number of trials.
        seed: seed for the candidates.
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
        """Return the number of reference models for this number of trials.

        Reference models estimate the mean score without the canary. With 8 models the error of the mean is a third of
        the noise, with 16 a quarter. The noise of the score "loss" is not known before training, so 16 are used.
        """
        if self.references is not None:
            return self.references
        return MOST if self.score == "loss" else max(FEWEST, min(MOST, counted // 16))

    def to_craft(self, counted: int) -> int:
        return self.references_for(counted) + (1 if self.candidates > 1 else 0)

    @property
    def supports(self) -> Support:
        """Runs that this attack supports. All examples of a person are copies of the canary."""
        if self.score != "loss":
            return Support("the attack UnseenTokens", ONE_EXAMPLE | {RELEASES, GROUPS, REPLACEMENT})
        why = "use score='gradient' or 'rows'"
        return Support("the score 'loss'", ONE_EXAMPLE | {GROUPS}, {RELEASES: why, REPLACEMENT: why})

    def craft(self, run: DPSGD, problem: TextProblem, references: TextReferences) -> Facts:
        blocks = self._blocks(run)
        canary = self._choose(run, problem, references)
        replacement = self._instead(problem, canary) if run.is_mirrored else None
        direction = self._direction(problem, canary, replacement)
        positions, count = Positions(direction), self.references_for(references.counted)

        def read(loaded: Loaded, released: Tensors) -> tuple[float, float, float]:
            moved, loss = direction.moved(loaded, released), _loss(loaded, released, canary)
            return moved, loss, _shown(run, canary, direction, loaded, released)

        found = references(run, problem, read, models=count, look=positions if blocks else None)
        moved, losses, after = (np.array(column) for column in zip(*found, strict=True))
        shown = 0.5 * (direction.shown(run.clip_norm) + float(after.mean()))
        facts: Facts = {"canary": canary, "share": direction.share, "protected": problem.unit}
        facts |= {} if replacement is None else {"replacement": replacement}
        facts |= {"group": run.group_size} if run.group_size > 1 else {}
        facts |= {"tokens": problem.spell(sorted(set(canary))), "unseen": len(load(problem).unseen)}
        facts |= {"added": problem.added_tokens > 0, "trained": self.to_craft(references.counted)}
        if blocks is not None:  # means and standard deviation of the increments without the canary
            added = blocks.added(positions.of_all())
            variance = believed(added.var(axis=0, ddof=1).mean(), 1.0, 1 + (len(added) - 1) * added.shape[1])
            facts |= {"releases": run.release_count, "centres": added.mean(axis=0).tolist()}
            return facts | {"spread": float(np.sqrt(variance)), "signal": float(np.clip(shown, LEAST_SIGNAL, 1.0))}
        unit = noise_unit(run)
        if self.score == "loss":
            spread = float(losses.std(ddof=1))
            signal = shown * direction.norm * unit / spread
            facts |= {"centre": float(-losses.mean()), "unit": spread, "spread": 1.0}
        else:
            signal = shown
            variance = believed(moved.var(ddof=1), unit**2, len(moved))
            facts |= {"centre": float(moved.mean()), "unit": unit, "spread": float(np.sqrt(variance) / unit)}
        return facts | {"signal": float(np.clip(signal, LEAST_SIGNAL, 1.0))}

    def arm(self, run: DPSGD, problem: TextProblem, facts: Facts) -> ArmedText:
        canary, replacement = facts["canary"], facts.get("replacement")
        direction = None if self.score == "loss" else self._direction(problem, canary, replacement)
        return ArmedText(canary, direction, replacement, self._blocks(run), facts)

    def expected(self, facts: Facts) -> ExpectedScores:
        return expected_ratios(facts) if "releases" in facts else LinearScores(facts["signal"], facts["spread"])

    def _blocks(self, run: DPSGD) -> Blocks | None:
        law_of(run.replace(releases=None))
        require_supported(run, self.supports)
        return Blocks.of(run) if run.release_count > 1 else None

    def _direction(self, problem: TextProblem, canary: list[int], replacement: list[int] | None) -> Direction | Between:
        one = find_direction(load(problem), canary, self.score)
        return one if replacement is None else Between(one, find_direction(load(problem), replacement, self.score))

    def _instead(self, problem: TextProblem, canary: list[int]) -> list[int]:
        """Return the candidate whose direction differs most from the canary's, as its replacement."""
        drawn = candidates(load(problem).unseen, self.length, max(self.candidates, _LEAST_CANDIDATES), self.seed)
        one = find_direction(load(problem), canary, self.score)
        lengths = [Between(one, find_direction(load(problem), each, self.score)).length for each in drawn]
        if max(lengths) < _LEAST_LENGTH:
            least = "two of the tokenizer's tokens unused, because one canary replaces another, but only one is unused"
            raise ValueError(f"texts must leave {least}: {_ADD_TOKENS}")
        return drawn[int(np.argmax(lengths))]

    def words(self, facts: Facts) -> Words:
        canary, tokens = facts["canary"], [ascii(token) for token in facts["tokens"]]
        unit = "standard deviations of the score without the canary" if self.score == "loss" else score_unit(facts)
        what = f"a sequence of {len(canary)} tokens, {len(tokens)} different, which never occur in the data"
        score = _WORDS[self.score]
        if "replacement" in facts:
            what += ", replaced by another such sequence"
            score = score.replace("its gradient", "the difference of their gradients")
        if "releases" in facts:
            score = f"likelihood ratio of all {facts['releases']:,} released iterates, by the {score}"
        caveats = (
            protected(facts["protected"], facts.get("group", 1), "replacement" in facts),
            f"The canary's tokens ({', '.join(tokens[:_SPELLED])}{', ...' if tokens[_SPELLED:] else ''}) are among "
            f"the {facts['unseen']:,} that {'were added' if facts['added'] else 'never occur'}.",
            f"{facts['trained']} models without the canary were trained to craft it; they are not counted.",
        )
        return Words(f"{what}; score: {score}", unit, caveats)

    def _choose(self, run: DPSGD, problem: TextProblem, references: TextReferences) -> list[int]:
        """Return the candidate with the largest expected signal, before training and in a model trained without it."""
        drawn = candidates(load(problem).unseen, self.length, self.candidates, self.seed)
        if len(drawn) == 1:
            return drawn[0]

        def read(loaded: Loaded, released: Tensors) -> list[float]:
            shown = []
            for canary in drawn:  # one at a time, because a direction may be as large as the model
                direction = find_direction(loaded, canary, self.score)
                after = _shown(run, canary, direction, loaded, released)
                shown.append(direction.shown(run.clip_norm) + after)
            return shown

        (shown,) = references(run, problem, read, models=1, purpose=1)
        return drawn[int(np.argmax(shown))]


def candidates(unseen: IntArray, length: int, count: int, seed: int) -> list[list[int]]:
    """Draw sequences of unseen tokens. They have 1, 2, 4, ... distinct tokens in turn."""
    if not unseen.size:
        least = "some of the tokenizer's tokens unused for a canary, but all occur"
        raise ValueError(f"texts must leave {least}: {_ADD_TOKENS}")
    draws = np.random.default_rng(seed)
    kinds = [2**k for k in range(int(np.log2(length)) + 1) if 2**k <= len(unseen)]
    found = []
    for number in range(count):
        tokens = draws.choice(unseen, kinds[number % len(kinds)], replace=False)
        found.append([int(token) for token in np.resize(draws.permutation(tokens), length)])
    return found


def protected(unit: str, group: int = 1, replaced: bool = False) -> str:
    """Return a sentence for reports that names the unit of privacy."""
    if group == 1:
        about = "whether it or another one was in the data" if replaced else "its presence in the data"
        return f"One {unit} is one example. Epsilon is about {about}."
    about = "whether they or others were in the data" if replaced else "the presence of all of them in the data"
    each = f"The unit is a person with up to {group:,} {unit}s, each one example, sampled and clipped by itself"
    return f"{each}. Epsilon is about {about}."


@dataclass(frozen=True, eq=False)
class ArmedText:
    """The canary, and the score of a released model or of all released iterates of a model."""

    canary: list[int]
    direction: Direction | Between | None  # None if the score is the loss on the canary
    replacement: list[int] | None
    blocks: Blocks | None  # None if only one iterate is released
    facts: Facts

    def positions(self) -> Positions | None:
        return None if self.blocks is None or self.direction is None else Positions(self.direction)

    def score_of(self, positions: FloatArray) -> float:
        assert self.blocks is not None
        return float(self.blocks.scores(positions[None], self.facts)[0])

    def score(self, loaded: Loaded, released: Tensors) -> float:
        way = self.direction
        shown = -_loss(loaded, released, self.canary) if way is None else way.moved(loaded, released)
        return float((shown - self.facts["centre"]) / self.facts["unit"])


class Positions:
    """The displacement of each model along a direction at each release, starting with 0 before the first step."""

    def __init__(self, direction: Direction | Between) -> None:
        self._direction = direction
        self._seen: dict[Model, list[float]] = {}

    def __call__(self, model: Model, loaded: Loaded, released: Tensors) -> None:
        self._seen.setdefault(model, [0.0]).append(self._direction.moved(loaded, released))

    def of(self, model: Model) -> FloatArray:
        return np.array(self._seen.pop(model))

    def of_all(self) -> FloatArray:
        return np.array(list(self._seen.values()))


def _shown(run: DPSGD, canary: list[int], direction: Direction | Between, loaded: Loaded, parameters: Tensors) -> float:
    gradient = loaded.gradients.one(parameters, torch.tensor(canary, device=loaded.examples[0].device))
    factor = clip_factors({name: each[None] for name, each in gradient.items()}, run.clip_norm)[0]
    return direction.along(gradient) * float(factor) / run.clip_norm


def _loss(loaded: Loaded, parameters: Tensors, canary: list[int]) -> float:
    tokens = torch.tensor([canary], device=loaded.examples[0].device)
    return float(loaded.gradients.losses(parameters, tokens, torch.tensor([len(canary)], device=tokens.device)))
