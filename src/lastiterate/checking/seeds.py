"""Seeds: equal ones make equal models, different ones different models."""

from __future__ import annotations

import numpy as np

from lastiterate.arrays import FloatArray
from lastiterate.checking.declared import Declared
from lastiterate.checking.row import Row, Status

EQUAL, DIFFERENT, INITIAL = "equal seeds", "different seeds", "initial values"
_ROUNDING = 1e-4  # of the noise: what is left between equal seeds where sums are not always taken in one order
_COPY = 1e-3  # of the noise: models so close are one model


def equal_row(one: FloatArray, again: FloatArray, declared: Declared) -> Row:
    """How far apart two models of one seed are, in units of the noise between two models."""
    measured = _distance(one, again, declared)
    status: Status = "ok" if measured <= _ROUNDING else "fault"
    why = "one seed, trained twice, gives two models: look for randomness that does not follow the seed"
    return Row(EQUAL, None, measured, 0.0, measured, measured, status, why if status == "fault" else "")


def different_row(models: FloatArray, declared: Declared) -> Row:
    """How close the two closest models of different seeds are, in units of the noise between two models."""
    distances = [_distance(one, two, declared) for i, one in enumerate(models) for two in models[i + 1 :]]
    measured = min(distances)
    status: Status = "ok" if measured > _COPY else "fault"
    why = "two seeds give the same model: look whether noise and batches follow the seed"
    return Row(DIFFERENT, None, measured, 1.0, measured, max(distances), status, why if status == "fault" else "")


def initial_row(initials: FloatArray) -> Row:
    """Whether initial values that are declared to differ by seed do."""
    differ = float(np.abs(initials - initials[0]).max())
    status: Status = "ok" if differ > 0.0 else "fault"
    why = "initial values are declared to follow the seed, but are the same for all"
    return Row(INITIAL, None, differ, None, differ, differ, status, why if status == "fault" else "")


def _distance(one: FloatArray, two: FloatArray, declared: Declared) -> float:
    return float(np.linalg.norm(one - two)) / float(np.sqrt(2.0 * declared.variance * len(one)))
