"""How much the effect of a canary differs from seed to seed, where steps have different weights.

Effects are then sums of weights of the steps that the canary was in. Their law follows from the run; it is drawn here,
and their range over seeds compared with it. If every example is used equally often, effects hardly differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lastiterate.arrays import FloatArray
from lastiterate.checking.contraction import least_by_participation
from lastiterate.checking.declared import Declared
from lastiterate.checking.effects import Effect
from lastiterate.checking.row import Row, Status, not_checked

_DRAWS = 20_000
_MOST_NUMBERS = 10**8
_UNSURE = 0.5  # of the stated error: the law is known from draws only
_KEPT = 0.6  # the least of an effect that curvature leaves


def weighted_spread_row(name: str, effects: Sequence[Effect], declared: Declared, clip: float, error: float) -> Row:
    """The range of effects over seeds, in units of the mean weight of a step, for batches that are drawn anew."""
    if len(effects) < 3 or declared.is_certain or declared.run.sampling == "shuffled":
        return not_checked(name, "batches do not differ so, or there are too few seeds")
    if declared.run.steps * _DRAWS > _MOST_NUMBERS:
        return not_checked(name, "there are too many steps of different weights")
    if least_by_participation(effects, declared, clip, error) < 1.0:
        return not_checked(name, "the canary weighs less than its batches should: see participation")
    unit = float(np.mean(np.abs(declared.weights)))
    found = float(np.ptp([effect.along / clip for effect in effects]))
    drawn = _drawn(declared)
    expected = float(np.mean(np.ptp(drawn[: _DRAWS // len(effects) * len(effects)].reshape(-1, len(effects)), axis=1)))
    # Curvature makes effects, and with them their range, at most by so much smaller.
    chance = _chance_of_a_range(found / _KEPT, drawn, len(effects))
    status: Status = "fault" if chance < _UNSURE * error else "ok"
    why = (
        "the canary weighs nearly the same at every seed: look whether batches are drawn by "
        f"{declared.run.sampling} sampling, and whether they follow the seed"
    )
    return Row(name, None, found / unit, expected / unit, None, None, status, why if status == "fault" else "")


def _drawn(declared: Declared) -> FloatArray:
    """Sums of weights of one example's batches, drawn by the run."""
    rng = np.random.default_rng(0)
    total = np.zeros(_DRAWS)
    for weight, rate in zip(declared.weights, declared.rates, strict=True):
        total += weight * (rng.random(_DRAWS) < rate)
    return total


def _chance_of_a_range(width: float, drawn: FloatArray, seeds: int) -> float:
    """The probability that so many independent sums lie within an interval of this width, wherever it is."""
    ordered = np.sort(drawn)
    within = (np.searchsorted(ordered, ordered + width * (1.0 + 1e-9), "right") - np.arange(len(ordered))) / len(
        ordered
    )
    # One of them is the least, and all others are above it by at most the width; ties count several times, safely.
    return min(1.0, seeds * float(np.mean(within ** (seeds - 1))))
