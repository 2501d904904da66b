"""Trials as a store keeps them: columns that were checked before a row of them is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.arrays import BoolArray, FloatArray, IntArray
from lastiterate.values import numbers


@dataclass(frozen=True, eq=False)
class ScoredTrials:
    """Trained and scored models, a column an array. ``ScoredTrials.of`` makes them of what there is.

    Attributes:
        models: the number of each model, from 0; a world has each number once.
        present: whether the canary was there: world "in", else "out".
        scores: of the last iterates; infinite ones are fine, NaN is not.
        qualities: what says how good the models are, such as accuracy; NaN where it was not measured.
        seconds: that training and scoring took, each model's share.
        versions: of the packages in the process that trained them, by name; None: those of this process.
    """

    models: IntArray
    present: BoolArray
    scores: FloatArray
    qualities: FloatArray
    seconds: FloatArray
    versions: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        scores, present, models = map(np.asarray, (self.scores, self.present, self.models))
        if scores.dtype.kind == "f" and np.isnan(scores).any():
            raise ValueError("scores must be numbers, infinite ones included, got nan")
        if present.dtype != np.bool_:
            raise ValueError(f"present must be an array of booleans, got one of {present.dtype}")
        if models.dtype.kind not in "iu" and models.size:
            raise ValueError(f"models must be an array of integers, got one of {models.dtype}")
        if models.size and not (int(models.min()) >= 0 and int(models.max()) < 2**63):
            raise ValueError(f"models must be in [0, 2**63), got {int(models.min())} to {int(models.max())}")
        qualities = np.asarray(self.qualities, np.float64)
        numbers("qualities", qualities[~np.isnan(qualities)], 0.0, open_high=True)
        columns = {
            "models": models.astype(np.int64),
            "present": present,
            "scores": numbers("scores", scores),
            "qualities": qualities,
            "seconds": numbers("seconds", self.seconds, 0.0, open_high=True),
        }
        for name, column in columns.items():
            if column.shape != (scores.size,):
                raise ValueError(f"{name} must be a row of {scores.size}, one for each score, got shape {column.shape}")
            object.__setattr__(self, name, column)

    @classmethod
    def of(
        cls,
        models: ArrayLike,
        present: ArrayLike,
        scores: ArrayLike,
        qualities: ArrayLike | None = None,
        *,
        seconds: float,
    ) -> ScoredTrials:
        """Trials that took so many seconds together."""
        numbered = np.asarray(models)
        count = numbered.size
        return cls(
            numbered,
            np.asarray(present),
            np.asarray(scores),
            np.full(count, np.nan) if qualities is None else np.asarray(qualities),
            np.full(count, seconds / max(count, 1)),
        )

    @classmethod
    def joined(cls, parts: Sequence[ScoredTrials]) -> ScoredTrials:
        """The same trials in one. They must have been trained with the same versions."""
        if any(part.versions != parts[0].versions for part in parts):
            raise ValueError("versions must be the same in all parts that are joined, got different ones")
        return replace(cls.mixed(parts), versions=parts[0].versions)

    @classmethod
    def mixed(cls, parts: Sequence[ScoredTrials]) -> ScoredTrials:
        """The same trials in one, whatever trained them."""
        return cls(
            np.concatenate([np.empty(0, np.int64), *(part.models for part in parts)]),
            np.concatenate([np.empty(0, np.bool_), *(part.present for part in parts)]),
            np.concatenate([np.empty(0), *(part.scores for part in parts)]),
            np.concatenate([np.empty(0), *(part.qualities for part in parts)]),
            np.concatenate([np.empty(0), *(part.seconds for part in parts)]),
        )

    def at(self, rows: IntArray | slice) -> ScoredTrials:
        """Some of these trials, in this order."""
        return replace(
            self,
            models=self.models[rows],
            present=self.present[rows],
            scores=self.scores[rows],
            qualities=self.qualities[rows],
            seconds=self.seconds[rows],
        )

    def ordered(self) -> ScoredTrials:
        """The same trials by model, in it "in" before "out"."""
        return self if len(self) < 2 else self.at(np.lexsort((~self.present, self.models)))

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def worlds(self) -> list[str]:
        """The world of each trial, "in" or "out"."""
        return ["in" if present else "out" for present in self.present.tolist()]
