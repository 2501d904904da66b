"""What the scores of an audit are about: which methods apply to them follows from it."""

from __future__ import annotations

from enum import Enum

from lastiterate.attacks.attack import ExpectedScores, LikelihoodRatio
from lastiterate.auditing.design import Design, OneModel


class Kind(Enum):
    """Last (or all released) iterates of many models, all iterates of many models, or many canaries of one model."""

    LAST_ITERATE = "last iterate"
    ALL_ITERATES = "all iterates"
    ONE_MODEL = "one model"


def kind_of(design: Design, expected: ExpectedScores) -> Kind:
    """The kind of an audit's scores."""
    if isinstance(design, OneModel):
        return Kind.ONE_MODEL
    return Kind.ALL_ITERATES if sees_every_step(expected) else Kind.LAST_ITERATE


def sees_every_step(expected: ExpectedScores) -> bool:
    """Whether the attack sees all iterates, whatever the run releases."""
    return isinstance(expected, LikelihoodRatio) and not expected.released
