"""Canaries of tokens that never occur in the texts, and scores of released models.

The score is the displacement of a model against the canary's gradient. The paper measures the displacement only in the
embedding rows of the canary's tokens, but most of the gradient lies elsewhere. Neither the other examples nor training
change the direction of the gradient much. So the displacement along the whole gradient shows nearly all of the canary's
effect.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from lastiterate.attacks.attack import ExpectedScores, Facts, LinearScores, Words
from lastiterate.attacks.displacement import believed
from lastiterate.attacks.released_iterates import Blocks, expected_ratios, noise_unit, score_unit
from lastiterate.common.types import FloatArray, IntArray
from lastiterate.common.validation import integer, one_of
from lastiterate.lm.example_gradients import Tensors, clip_factors
from lastiterate.lm.fine_tuning import Model, TextReferences
from lastiterate.lm.text_problem import Loaded, TextProblem, load
from lastiterate.privacy.mixtures.law import law_of
from lastiterate.run import DPSGD

# Directions: a canary moves a model against its gradient before training, in all or some parameters.

Where: TypeAlias = Literal["gradient", "rows"]


@dataclass(frozen=True, eq=False)
class Direction:
    """The part of a canary's gradient that the distinguisher looks at, divided by the norm of that part.

    Attributes:
        parts: by parameter, the rows that are looked at (None: all) and the direction in them.
        share: the norm of the part, divided by the norm of the whole gradient.
        norm: the norm of the whole gradient.
    """

    parts: dict[str, tuple[Tensor | None, Tensor]]
    share: float
    norm: float

    def shown(self, clip_norm: float) -> float:
        """The component of the canary's clipped gradient before training along this direction, in clipping norms."""
        return self.share * min(1.0, self.norm / clip_norm)

    def along(self, tensors: Tensors) -> float:
        """The component of these tensors in this direction."""
        return float(sum(_dot(part, tensors[name], rows) for name, (rows, part) in self.parts.items()))

    def dot(self, other: Direction) -> float:
        """Return the inner product with a direction in the same parameters. Rows of only one of them contribute 0."""
        found = 0.0
        for name, (rows, part) in self.parts.items():
            others, its = other.parts[name]
            if rows is None or others is None:
                found += _dot(part, its, None)
            else:
                same = rows[:, None] == others[None, :]
                found += float((part.double() @ its.double().T)[same].sum())
        return found

    def moved(self, loaded: Loaded, released: Tensors) -> float:
        """Return the displacement of a released model against the canary's gradient."""
        found = 0.0
        for name, (rows, part) in self.parts.items():
            here, before = released[name], loaded.start[name]
            difference = here.float() - before.float() if rows is None else here[rows].float() - before[rows].float()
            found -= _dot(part, difference, None)
        return found


@dataclass(frozen=True, eq=False)
class Between:
    """The direction from one canary to its replacement: the normalised difference of their directions."""

    one: Direction
    other: Direction

    @property
    def length(self) -> float:
        """The norm of the difference of the two directions; 0 if they are equal."""
        return math.sqrt(max(2.0 - 2.0 * self.one.dot(self.other), 0.0))

    @property
    def share(self) -> float:
        """The mean share of both gradients, times half the difference: each is half of it away from the midpoint."""
        return 0.25 * self.length * (self.one.share + self.other.share)

    @property
    def norm(self) -> float:
        """The mean of the norms of both gradients."""
        return 0.5 * (self.one.norm + self.other.norm)

    def shown(self, clip_norm: float) -> float:
        """The mean component of both clipped gradients, times half the difference, in clipping norms."""
        return 0.25 * self.length * (self.one.shown(clip_norm) + self.other.shown(clip_norm))

    def along(self, tensors: Tensors) -> float:
        """The component of these tensors along the difference."""
        return (self.one.along(tensors) - self.other.along(tensors)) / max(self.length, 1e-30)

    def moved(self, loaded: Loaded, released: Tensors) -> float:
        """Return the displacement of a released model along the difference, against the gradients."""
        return (self.one.moved(loaded, released) - self.other.moved(loaded, released)) / max(self.length, 1e-30)


def find_direction(loaded: Loaded, canary: Sequence[int], where: Where) -> Direction:
    """Compute the direction of a canary from its gradient before training."""
    tokens = torch.tensor(canary, device=loaded.examples[0].device)
    gradient = loaded.gradients.one(loaded.start, tokens)
    norm = _norm(gradient.values())
    rows = torch.unique(tokens)
    if where == "rows":
        tables = loaded.embeddings
        if not tables:
            raise ValueError("score must be 'gradient' or 'loss' where no embeddings are trained, got 'rows'")
        parts: dict[str, tuple[Tensor | None, Tensor]] = {name: (rows, gradient[name][rows].float()) for name in tables}
    else:
        parts = {name: (None, each.float()) for name, each in gradient.items()}
    length = _norm(part for _, part in parts.values())
    unit = {name: (rows, part / max(length, 1e-30)) for name, (rows, part) in parts.items()}
    return Direction(unit, length / max(norm, 1e-30), norm)


def _dot(part: Tensor, other: Tensor, rows: Tensor | None) -> float:
    given = other if rows is None else other[rows]
    return float((part * given).sum(dtype=torch.float64))


def _norm(tensors: Iterable[Tensor]) -> float:
    squares = [float(torch.linalg.vector_norm(each, dtype=torch.float64)) ** 2 for each in tensors]
    return float(sum(squares) ** 0.5)


Score: TypeAlias = Literal["gradient", "rows", "loss"]

FEWEST, MOST = 8, 16  # reference models by default; fewer than FEWEST are refused
_LEAST_SIGNAL = 0.02
_LEAST_CANDIDATES = 8  # for the choice of the canary's replacement
_LEAST_LENGTH = 0.05  # norm of the difference of two directions
_SPELLED = 4  # distinct tokens of the canary that a report shows
_WORDS = {
    "gradient": "displacement of all trained parameters along its gradient",
    "rows": "displacement of its tokens' rows of the embeddings along its gradient",
    "loss": "minus the loss on it",
}


@dataclass(frozen=True)
class UnseenTokens:
    """An attack whose canary is a sequence of tokens that never occur in the texts.

    Args:
        score: "gradient" (displacement of all trained parameters against the canary's gradient), "rows" (the same, only
            in the rows of its tokens in the input and output embeddings, as in the paper) or "loss" (minus the loss of
            the released model on the canary, for attackers who cannot see parameters).
        length: length of the sequence, in tokens.
        candidates: number of sequences from which the one with the largest expected signal is chosen.
        references: number of models without the canary that are trained first. They do not count as trials. None: 8 to
            16, depending on the number of trials.
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
        """Return the number of reference models, trained without the canary, for this number of trials.

        References estimate the mean score without the canary. The error of 8 references is a third of the noise, that
        of 16 a quarter. If there are few trials, this error is small beside their sampling error. The score "loss"
        always takes the most references, because its noise is not known before training.
        """
        if self.references is not None:
            return self.references
        return MOST if self.score == "loss" else max(FEWEST, min(MOST, counted // 16))

    def to_craft(self, counted: int) -> int:
        """Return the number of models that are trained in addition to this number of trials."""
        return self.references_for(counted) + (1 if self.candidates > 1 else 0)

    @property
    def knows(self) -> tuple[str, ...]:
        """Fields of a run that this attack supports beyond one example and the last iterate.

        A person holds several copies of the canary. The replacement is the candidate whose gradient differs most from
        the canary's.
        """
        return ("releases", "group_size", "neighbours")

    @property
    def _where(self) -> Where:
        return "rows" if self.score == "rows" else "gradient"

    def craft(self, run: DPSGD, problem: TextProblem, references: TextReferences) -> Facts:
        blocks = self._blocks(run)
        canary = self._choose(run, problem, references)
        replacement = self._instead(problem, canary) if run.neighbours == "replace" else None
        direction = self._direction(problem, canary, replacement)
        reader, positions = _Reader(run, canary, direction), Positions(direction)
        count = self.references_for(references.counted)
        read = references(run, problem, reader, models=count, look=positions if blocks else None)
        moved, losses, after = (np.array(column) for column in zip(*read, strict=True))
        shown = 0.5 * (direction.shown(run.clip_norm) + float(after.mean()))
        facts: Facts = {"canary": canary, "share": direction.share, "protected": problem.unit}
        facts |= ({} if replacement is None else {"replacement": replacement}) | group_facts(run)
        facts |= {"tokens": problem.spell(sorted(set(canary))), "unseen": len(load(problem).unseen)}
        facts |= {"added": problem.added_tokens > 0, "trained": self.to_craft(references.counted)}
        if blocks is not None:
            return facts | _facts_of_blocks(blocks, positions, float(np.clip(shown, _LEAST_SIGNAL, 1.0)))
        unit = noise_unit(run)
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
        canary, replacement = facts["canary"], facts.get("replacement")
        direction = None if self.score == "loss" else self._direction(problem, canary, replacement)
        centre, unit = (facts.get(name, 0.0) for name in ("centre", "unit"))
        return ArmedText(canary, direction, centre, unit, replacement, self._blocks(run), facts)

    def expected(self, facts: Facts) -> ExpectedScores:
        return expected_ratios(facts) if "releases" in facts else LinearScores(facts["signal"], facts["spread"])

    def _blocks(self, run: DPSGD) -> Blocks | None:
        """Return the blocks between the run's releases; None for one release. Raise if the run is not supported."""
        law_of(run.replace(releases=None))
        if self.score == "loss" and (run.release_count > 1 or run.neighbours == "replace"):
            name = "releases" if run.release_count > 1 else "neighbours"
            raise ValueError(f"score must be 'gradient' or 'rows' with {name} {getattr(run, name)!r}, got 'loss'")
        return Blocks.of(run) if run.release_count > 1 else None

    def _direction(self, problem: TextProblem, canary: list[int], replacement: list[int] | None) -> Direction | Between:
        one = find_direction(load(problem), canary, self._where)
        return one if replacement is None else Between(one, find_direction(load(problem), replacement, self._where))

    def _instead(self, problem: TextProblem, canary: list[int]) -> list[int]:
        """Return the candidate whose direction differs most from the canary's, as its replacement."""
        drawn = candidates(load(problem).unseen, self.length, max(self.candidates, _LEAST_CANDIDATES), self.seed)
        one = find_direction(load(problem), canary, self._where)
        lengths = [Between(one, find_direction(load(problem), each, self._where)).length for each in drawn]
        if max(lengths) < _LEAST_LENGTH:
            raise ValueError(
                "texts must leave two of the tokenizer's tokens unused where one canary replaces another, but one "
                "alone does not occur: add tokens to the model, as with added_tokens=16 (--added-tokens 16)"
            )
        return drawn[int(np.argmax(lengths))]

    def words(self, facts: Facts) -> Words:
        canary, tokens = facts["canary"], [ascii(token) for token in facts["tokens"]]
        unit = score_unit(facts)
        if self.score == "loss":
            unit = "standard deviations of the score without the canary"
        what = f"a sequence of {len(canary)} tokens, {len(tokens)} different, which never occur in the data"
        score = _WORDS[self.score]
        if "replacement" in facts:
            what += ", replaced by another such sequence"
            score = score.replace("its gradient", "the difference of their gradients")
        if "releases" in facts:
            score = f"likelihood ratio of all {facts['releases']:,} released iterates, by the {score}"
        return Words(
            f"{what}; score: {score}",
            unit,
            (
                protected(facts["protected"], facts.get("group", 1), "replacement" in facts),
                f"The canary's tokens ({', '.join(tokens[:_SPELLED])}{', ...' if tokens[_SPELLED:] else ''}) are among "
                f"the {facts['unseen']:,} that {'were added' if facts['added'] else 'never occur'}.",
                f"{facts['trained']} models without the canary were trained to craft it; they are not counted.",
            ),
        )

    def _choose(self, run: DPSGD, problem: TextProblem, references: TextReferences) -> list[int]:
        """Return the candidate with the largest expected signal, before training and in a model trained without it."""
        drawn = candidates(load(problem).unseen, self.length, self.candidates, self.seed)
        if len(drawn) == 1:
            return drawn[0]

        def read(loaded: Loaded, released: Tensors) -> list[float]:
            shown = []
            for canary in drawn:  # one by one: a direction may be as large as the model
                direction = find_direction(loaded, canary, self._where)
                after = _Reader(run, canary, direction).shown(loaded, released)
                shown.append(direction.shown(run.clip_norm) + after)
            return shown

        (shown,) = references(run, problem, read, models=1, purpose=1)
        return drawn[int(np.argmax(shown))]


def candidates(unseen: IntArray, length: int, count: int, seed: int) -> list[list[int]]:
    """Draw sequences of unseen tokens: with one distinct token, with two, four, and so on, in turn."""
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


def group_facts(run: DPSGD) -> Facts:
    """Return the group size as a fact if more than one example is protected together."""
    return {"group": run.group_size} if run.group_size > 1 else {}


def protected(unit: str, group: int = 1, replaced: bool = False) -> str:
    """Return a sentence for reports that names the unit of privacy."""
    if group == 1:
        about = "whether it or another one was there" if replaced else "its presence"
        return f"One {unit} is one example: {about} is what epsilon is about."
    about = "whether they or others were there" if replaced else "the presence of all of them"
    return (
        f"The unit is a person with up to {group:,} {unit}s, each one example, sampled and clipped by itself: {about} "
        "is what epsilon is about."
    )


@dataclass(frozen=True, eq=False)
class ArmedText:
    """The canary, and the score of a released model or of all released iterates of a model."""

    canary: list[int]
    direction: Direction | Between | None  # None: the loss on the canary is the score
    centre: float
    unit: float
    replacement: list[int] | None = None
    blocks: Blocks | None = None  # None: one iterate is released
    facts: Facts = field(default_factory=dict)

    def positions(self) -> Positions | None:
        """Return the observer of released iterates; None if the score needs only the last iterate."""
        return None if self.blocks is None or self.direction is None else Positions(self.direction)

    def score_of(self, positions: FloatArray) -> float:
        """Return the score of a model from its displacement at each release."""
        assert self.blocks is not None
        return float(self.blocks.scores(positions[None], self.facts)[0])

    def score(self, loaded: Loaded, released: Tensors) -> float:
        if self.direction is None:
            return (-_loss(loaded, released, self.canary) - self.centre) / self.unit
        return (self.direction.moved(loaded, released) - self.centre) / self.unit


class Positions:
    """The displacement of each model along a direction at each release, starting with 0 before the first step."""

    def __init__(self, direction: Direction | Between) -> None:
        self._direction = direction
        self._seen: dict[Model, list[float]] = {}

    def __call__(self, model: Model, loaded: Loaded, released: Tensors) -> None:
        self._seen.setdefault(model, [0.0]).append(self._direction.moved(loaded, released))

    def of(self, model: Model) -> FloatArray:
        """Return the displacements of one model, and forget them."""
        return np.array(self._seen.pop(model))

    def of_all(self) -> FloatArray:
        """Return the displacements of all models, [models, releases + 1]."""
        return np.array(list(self._seen.values()))


def _facts_of_blocks(blocks: Blocks, positions: Positions, signal: float) -> Facts:
    """Return means and spread of the blocks' increments without the canary; the start of training is a part of them."""
    added = blocks.added(positions.of_all())
    variance = believed(added.var(axis=0, ddof=1).mean(), 1.0, 1 + (len(added) - 1) * added.shape[1])
    spread, centres = float(np.sqrt(variance)), added.mean(axis=0).tolist()
    return {"releases": blocks.run.release_count, "centres": centres, "spread": spread, "signal": signal}


class _Reader:
    """Measurements by the crafter of a model without the canary."""

    def __init__(self, run: DPSGD, canary: list[int], direction: Direction | Between) -> None:
        self._run, self._canary, self._direction = run, canary, direction

    def __call__(self, loaded: Loaded, released: Tensors) -> tuple[float, float, float]:
        """Return the displacement along the direction, the loss on the canary, and the canary's expected signal."""
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
