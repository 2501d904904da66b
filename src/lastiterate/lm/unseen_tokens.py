"""The canary is a sequence of tokens that never occur in the texts, and the attack looks at where it moved the model.

The paper looks at the rows of the embedding table that belong to these tokens. Most of the canary's gradient lies
elsewhere, though. As neither the other examples nor training itself disturb its direction much, looking along the whole
of it shows nearly all that the canary did.
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

# The direction in which a canary moves a model: against its gradient before training, in all or some parameters.

Where: TypeAlias = Literal["gradient", "rows"]


@dataclass(frozen=True, eq=False)
class Direction:
    """The part of a canary's gradient that the distinguisher looks at, divided by the norm of that part.

    Attributes:
        parts: by parameter, the rows that are looked at (None: all) and the direction in them.
        share: the norm of that part, divided by the norm of the whole gradient.
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
        """The product with a direction in the same parameters; rows that only one looks at count for nothing."""
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
        """How far a model has come against the canary's gradient."""
        found = 0.0
        for name, (rows, part) in self.parts.items():
            here, before = released[name], loaded.start[name]
            difference = here.float() - before.float() if rows is None else here[rows].float() - before[rows].float()
            found -= _dot(part, difference, None)
        return found


@dataclass(frozen=True, eq=False)
class Between:
    """From one canary's direction to that of another, which replaces it: along the difference of the two."""

    one: Direction
    other: Direction

    @property
    def length(self) -> float:
        """Of the difference of the two directions; 0 where they are the same."""
        return math.sqrt(max(2.0 - 2.0 * self.one.dot(self.other), 0.0))

    @property
    def share(self) -> float:
        """How much of both gradients is seen: half the difference, as each is as far from the middle."""
        return 0.25 * self.length * (self.one.share + self.other.share)

    @property
    def norm(self) -> float:
        """The mean of the norms of both gradients."""
        return 0.5 * (self.one.norm + self.other.norm)

    def shown(self, clip_norm: float) -> float:
        """How much of both clipped gradients is seen, in clipping norms."""
        return 0.25 * self.length * (self.one.shown(clip_norm) + self.other.shown(clip_norm))

    def along(self, tensors: Tensors) -> float:
        """The component of these tensors along the difference."""
        return (self.one.along(tensors) - self.other.along(tensors)) / max(self.length, 1e-30)

    def moved(self, loaded: Loaded, released: Tensors) -> float:
        """How far a model has come from the one to the other, against their gradients."""
        return (self.one.moved(loaded, released) - self.other.moved(loaded, released)) / max(self.length, 1e-30)


def find_direction(loaded: Loaded, canary: Sequence[int], where: Where) -> Direction:
    """The direction of a canary, from its gradient before training."""
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

FEWEST, MOST = 8, 16  # models that a crafter looks at
_LEAST_SIGNAL = 0.02
_LEAST_CANDIDATES = 8  # among which the canary's replacement is chosen
_LEAST_LENGTH = 0.05  # of the difference of two directions
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
    def knows(self) -> tuple[str, ...]:
        """Fields of a run beyond one example and the last iterate.

        A person has copies of the canary. What replaces it is the candidate whose gradient differs most from its own.
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
        """What is between the releases of a run, or a refusal before anything is trained; None: it has but one."""
        law_of(run.replace(releases=None))
        if self.score == "loss" and (run.release_count > 1 or run.neighbours == "replace"):
            name = "releases" if run.release_count > 1 else "neighbours"
            raise ValueError(f"score must be 'gradient' or 'rows' with {name} {getattr(run, name)!r}, got 'loss'")
        return Blocks.of(run) if run.release_count > 1 else None

    def _direction(self, problem: TextProblem, canary: list[int], replacement: list[int] | None) -> Direction | Between:
        one = find_direction(load(problem), canary, self._where)
        return one if replacement is None else Between(one, find_direction(load(problem), replacement, self._where))

    def _instead(self, problem: TextProblem, canary: list[int]) -> list[int]:
        """Another candidate, the one whose direction differs most."""
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


def group_facts(run: DPSGD) -> Facts:
    """How many examples are protected together, where that is more than one."""
    return {"group": run.group_size} if run.group_size > 1 else {}


def protected(unit: str, group: int = 1, replaced: bool = False) -> str:
    """What epsilon is about, for readers of a report."""
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
    """The canary, and the score of a released model, or of all that are released."""

    canary: list[int]
    direction: Direction | Between | None  # None: the loss on the canary is the score
    centre: float
    unit: float
    replacement: list[int] | None = None
    blocks: Blocks | None = None  # None: one iterate is released
    facts: Facts = field(default_factory=dict)

    def positions(self) -> Positions | None:
        """What has to be looked at while models are trained; None: nothing but what they are in the end."""
        return None if self.blocks is None or self.direction is None else Positions(self.direction)

    def score_of(self, positions: FloatArray) -> float:
        """The score of a model by where it was at each release."""
        assert self.blocks is not None
        return float(self.blocks.scores(positions[None], self.facts)[0])

    def score(self, loaded: Loaded, released: Tensors) -> float:
        if self.direction is None:
            return (-_loss(loaded, released, self.canary) - self.centre) / self.unit
        return (self.direction.moved(loaded, released) - self.centre) / self.unit


class Positions:
    """How far models had come along a direction when each iterate was released, from 0 before the first step."""

    def __init__(self, direction: Direction | Between) -> None:
        self._direction = direction
        self._seen: dict[Model, list[float]] = {}

    def __call__(self, model: Model, loaded: Loaded, released: Tensors) -> None:
        self._seen.setdefault(model, [0.0]).append(self._direction.moved(loaded, released))

    def of(self, model: Model) -> FloatArray:
        """Those of one model, which are not asked for again."""
        return np.array(self._seen.pop(model))

    def of_all(self) -> FloatArray:
        """[models, releases + 1]."""
        return np.array(list(self._seen.values()))


def _facts_of_blocks(blocks: Blocks, positions: Positions, signal: float) -> Facts:
    """What blocks add without the canary, and how that varies; where training begins is a part of it."""
    added = blocks.added(positions.of_all())
    variance = believed(added.var(axis=0, ddof=1).mean(), 1.0, 1 + (len(added) - 1) * added.shape[1])
    spread, centres = float(np.sqrt(variance)), added.mean(axis=0).tolist()
    return {"releases": blocks.run.release_count, "centres": centres, "spread": spread, "signal": signal}


class _Reader:
    """What the crafter reads of a model without the canary."""

    def __init__(self, run: DPSGD, canary: list[int], direction: Direction | Between) -> None:
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
