"""Designs of an audit (the list of its trials and of the canaries in each trial), and the quality of models."""

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from lastiterate.common.types import BoolArray, IntArray

QualityName = Literal["accuracy", "perplexity"]


@dataclass(frozen=True)
class Paired:
    """Many pairs of models, one with the canary and one without it. All scores are independent."""

    kind: ClassVar[str] = "paired"  # the name of the design in stores
    models: int

    @property
    def trials(self) -> int:
        return 2 * self.models

    def planned(self) -> tuple[IntArray, BoolArray]:
        """Return the model number of each trial, and whether the canary is present, which alternates."""
        return np.repeat(np.arange(self.models), 2), np.tile([True, False], self.models)

    def places(self, models: IntArray, present: BoolArray) -> IntArray:
        """Return the index of each trial in the plan; -1 if it is not in the plan."""
        return np.where((models >= 0) & (models < self.models), 2 * models + ~present, -1)


@dataclass(frozen=True)
class OpenEnded(Paired):
    """A paired design without a fixed number of models: an audit that may be stopped and continued at any time."""

    kind: ClassVar[str] = "open-ended"
    horizon: int  # number of models planned at first; thresholds are predicted for it, even if ``models`` grows


@dataclass(frozen=True)
class OneModel:
    """One model with ``models`` canaries. A fair coin for each canary decides whether it is included. Each canary is a
    trial.
    """

    kind: ClassVar[str] = "one-model"
    models: int
    seed: int

    @property
    def trials(self) -> int:
        return self.models

    def planned(self) -> tuple[IntArray, BoolArray]:
        return np.arange(self.models), np.random.default_rng([self.seed, 1]).random(self.models) < 0.5

    def places(self, models: IntArray, present: BoolArray) -> IntArray:
        _, planned = self.planned()
        known = (models >= 0) & (models < self.models)
        return np.where(known & (planned[np.where(known, models, 0)] == present), models, -1)


Design: TypeAlias = Paired | OpenEnded | OneModel


@dataclass(frozen=True)
class Quality:
    """A measure of how well a model does its task."""

    name: QualityName

    @property
    def lower_is_better(self) -> bool:
        return self.name == "perplexity"

    def of_all(self, values: list[float]) -> float | None:
        """Return the mean over models (the geometric mean for perplexity), or None if nothing was measured."""
        known = np.array([value for value in values if value == value])
        if not known.size:
            return None
        return float(np.exp(np.log(known).mean())) if self.lower_is_better else float(known.mean())
