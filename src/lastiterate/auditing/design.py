"""Designs of an audit (its trials, and the canaries that are present in each), and the measured quality of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from lastiterate.common.types import BoolArray, IntArray

QualityName = Literal["accuracy", "perplexity"]


@dataclass(frozen=True)
class Paired:
    """Many models; each number is trained once with the canary and once without it. Scores are independent."""

    models: int

    @property
    def trials(self) -> int:
        """The number of scores of a complete audit."""
        return 2 * self.models

    def planned(self) -> tuple[IntArray, BoolArray]:
        """Return the model number of each trial, and whether its canary is present. The worlds alternate."""
        return np.repeat(np.arange(self.models), 2), np.tile([True, False], self.models)

    def places(self, models: IntArray, present: BoolArray) -> IntArray:
        """Return the index of each trial in the plan; -1 if it is not in the plan."""
        return np.where((models >= 0) & (models < self.models), 2 * models + ~present, -1)


@dataclass(frozen=True)
class OpenEnded(Paired):
    """A paired design without a fixed number of models: the audit may be evaluated, stopped and continued at any time.

    Attributes:
        models: number of models planned so far, in each world.
        horizon: number of models planned at first. Thresholds are predicted for this number, even if it changes.
    """

    horizon: int


@dataclass(frozen=True)
class OneModel:
    """One model with many canaries, each included by its own fair coin. A trial is a canary.

    Attributes:
        models: number of canaries.
        seed: seed of the audit. The coins depend on it alone.
    """

    models: int
    seed: int

    @property
    def trials(self) -> int:
        """The number of scores of a complete audit."""
        return self.models

    def planned(self) -> tuple[IntArray, BoolArray]:
        """Return the number of each canary, and whether it is present."""
        return np.arange(self.models), np.random.default_rng([self.seed, 1]).random(self.models) < 0.5

    def places(self, models: IntArray, present: BoolArray) -> IntArray:
        """Return the index of each trial in the plan; -1 if it is not in the plan."""
        _, planned = self.planned()
        known = (models >= 0) & (models < self.models)
        return np.where(known & (planned[np.where(known, models, 0)] == present), models, -1)


Design: TypeAlias = Paired | OpenEnded | OneModel


def kind_name(design: Design) -> str:
    """Return the name of a design in stores."""
    match design:
        case OneModel():
            return "one-model"
        case OpenEnded():
            return "open-ended"
    return "paired"


@dataclass(frozen=True)
class Quality:
    """A measure of how well a model does its task."""

    name: QualityName

    @property
    def lower_is_better(self) -> bool:
        """True if a smaller number is a better model."""
        return self.name == "perplexity"

    def of_all(self, values: list[float]) -> float | None:
        """Return the mean over models, for perplexity the geometric mean; None if nothing was measured."""
        known = np.array([value for value in values if value == value])
        if not known.size:
            return None
        return float(np.exp(np.log(known).mean())) if self.lower_is_better else float(known.mean())
