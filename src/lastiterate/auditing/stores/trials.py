"""Trials as a store keeps them: columns that were checked before a row of them is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lastiterate.values import Array, numbers


@dataclass(frozen=True, eq=False)
class StoredTrials:
    """Trained and scored models, a column an array.

    Attributes:
        models: the number of each model, from 0; a world has each number once.
        present: whether the canary was there: world "in", else "out".
        scores: of the last iterates; infinite ones are fine, NaN is not.
        accuracies: on the test set, NaN where not measured; of language models 1 / perplexity, the geometric mean of
            the probabilities of held-out tokens.
        seconds: that training and scoring took, each model's share.
        seeds: that it was trained with; None where they follow from the specification alone.
    """

    models: Array
    present: Array
    scores: Array
    accuracies: Array
    seconds: Array
    seeds: Array | None = None

    def __post_init__(self) -> None:
        scores, accuracies, present = map(np.asarray, (self.scores, self.accuracies, self.present))
        if scores.dtype.kind == "f" and np.isnan(scores).any():
            raise ValueError("scores must be numbers, infinite ones included, got nan")
        if present.dtype != np.bool_:
            raise ValueError(f"present must be an array of booleans, got one of {present.dtype}")
        known = accuracies[~np.isnan(accuracies)] if accuracies.dtype.kind == "f" else accuracies
        numbers("accuracies", known, 0.0, 1.0)
        columns = {
            "models": _integers("models", self.models, low=0),
            "present": present,
            "scores": numbers("scores", scores),
            "accuracies": accuracies.astype(np.float64),
            "seconds": numbers("seconds", self.seconds, 0.0, open_high=True),
        }
        if self.seeds is not None:
            columns["seeds"] = _integers("seeds", self.seeds, low=-(2**63))
        for name, column in columns.items():
            if column.shape != (scores.size,):
                raise ValueError(f"{name} must be a row of {scores.size}, one for each score, got shape {column.shape}")
            object.__setattr__(self, name, column)

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def worlds(self) -> list[str]:
        """The world of each trial, "in" or "out"."""
        return ["in" if present else "out" for present in self.present.tolist()]


def _integers(name: str, value: Any, low: int) -> Array:
    given = np.asarray(value)
    if given.dtype.kind not in "iu" and given.size:
        raise ValueError(f"{name} must be an array of integers, got one of {given.dtype}")
    if given.size and not (low <= int(given.min()) and int(given.max()) < 2**63):
        raise ValueError(f"{name} must be in [{low}, 2**63), got {int(given.min())} to {int(given.max())}")
    return given.astype(np.int64)
