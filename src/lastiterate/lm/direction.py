"""The direction in which a canary moves a model: against its gradient before training, in all or some parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from lastiterate.lm.gradients import Tensors
from lastiterate.lm.problem import Loaded

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
