"""Who is in: the trials of an audit, and what is measured beside the score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from lastiterate.common.types import BoolArray, IntArray

QualityName = Literal["accuracy", "perplexity"]


@dataclass(frozen=True)
class Paired:
    """Many models, each number once with the canary and once without it: their scores are independent."""

    models: int

    @property
    def trials(self) -> int:
        """How many scores there are in the end."""
        return 2 * self.models

    def planned(self) -> tuple[IntArray, BoolArray]:
        """The number of each trial, and whether its canary is in; both worlds in turn."""
        return np.repeat(np.arange(self.models), 2), np.tile([True, False], self.models)

    def places(self, models: IntArray, present: BoolArray) -> IntArray:
        """Where these trials are in the plan; -1: they are not in it."""
        return np.where((models >= 0) & (models < self.models), 2 * models + ~present, -1)


@dataclass(frozen=True)
class OpenEnded(Paired):
    """The same, but one may look at any time, stop, and go on: how many models there are is decided as one goes.

    Attributes:
        models: so far planned, in each world.
        horizon: how many it began with; thresholds are predicted for this number, whatever becomes of it.
    """

    horizon: int


@dataclass(frozen=True)
class OneModel:
    """One model with many canaries, each included by its own fair coin: a trial is a canary.

    Attributes:
        models: how many canaries there are.
        seed: of the audit, on which alone the coins depend.
    """

    models: int
    seed: int

    @property
    def trials(self) -> int:
        """How many scores there are in the end."""
        return self.models

    def planned(self) -> tuple[IntArray, BoolArray]:
        """The number of each canary, and whether it is in."""
        return np.arange(self.models), np.random.default_rng([self.seed, 1]).random(self.models) < 0.5

    def places(self, models: IntArray, present: BoolArray) -> IntArray:
        """Where these trials are in the plan; -1: they are not in it."""
        _, planned = self.planned()
        known = (models >= 0) & (models < self.models)
        return np.where(known & (planned[np.where(known, models, 0)] == present), models, -1)


Design: TypeAlias = Paired | OpenEnded | OneModel


def kind_name(design: Design) -> str:
    """What a store calls it."""
    match design:
        case OneModel():
            return "one-model"
        case OpenEnded():
            return "open-ended"
    return "paired"


@dataclass(frozen=True)
class Quality:
    """What says how good a model is for what it is meant to do."""

    name: QualityName

    @property
    def lower_is_better(self) -> bool:
        """Whether a smaller number is a better model."""
        return self.name == "perplexity"

    def of_all(self, values: list[float]) -> float | None:
        """Of many models together: the mean, for perplexities the geometric one; None: nothing was measured."""
        known = np.array([value for value in values if value == value])
        if not known.size:
            return None
        return float(np.exp(np.log(known).mean())) if self.lower_is_better else float(known.mean())
