"""Noise whose variance is right on the whole, and that is missing somewhere: between two models, or in some parameters.

The numbers of a model's noise are independent, so that all models are about equally far apart; sampling moves them
further apart only. If one draw serves many parameters, some two models are close. And if some parameters get no noise,
their variance is next to none, whatever that of the others is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import binom, chi2

from lastiterate.arrays import BoolArray, FloatArray
from lastiterate.checking.declared import Declared
from lastiterate.checking.effects import Effect
from lastiterate.checking.row import Row, Status

CLOSEST, WITHOUT = "noise between the closest models", "parameters without noise"
_RARE = 1e-4  # how often a parameter with noise seems to have none
_CONTRACTED = 0.25  # of the variance, the least that curvature leaves in a parameter
_TOUCHED = 0.1  # of what a canary does on average: a parameter that moves by less may not be trained


def closest_row(models: FloatArray, declared: Declared, least: float, error: float) -> Row:
    """The squared distance of the two closest models, over the one declared.

    Args:
        models: one a row, of parameters that are trained.
        least: the least of the declared variance that curvature leaves.
    """
    size = models.shape[1]
    distances = [float(np.sum((models[i + 1 :] - models[i]) ** 2, axis=1).min()) for i in range(len(models) - 1)]
    measured = min(distances) / (2.0 * declared.variance * size)
    each = error / (len(models) * (len(models) - 1))
    low, high = (measured * size / float(chi2.ppf(level, size)) for level in (1.0 - each, each))
    status: Status = "fault" if high < 0.99 * least else "ok"
    why = (
        "two models are closer than independent noise in every parameter lets them be: look whether one draw is used "
        "for many parameters, as of a scalar that is broadcast, or for several models"
    )
    return Row(CLOSEST, None, measured, 1.0, low, high, status, why if status == "fault" else "")


def without_row(models: FloatArray, effects: Sequence[Effect], declared: Declared, error: float) -> Row:
    """How many parameters have next to no noise, of those that a canary moves."""
    freedom = len(models) - 1
    ratios = models.var(axis=0, ddof=1) / declared.variance
    # Where curvature takes most of all parameters' noise, as little in one of them is nothing special.
    contracted = min(_CONTRACTED, declared.last) if declared.is_correlated else _CONTRACTED
    limit = min(contracted, 0.5 * float(np.median(ratios))) * float(chi2.ppf(_RARE, freedom)) / freedom
    touched = _touched(effects, len(ratios))
    count = int(np.count_nonzero((ratios < limit) & (touched if touched is not None else True)))
    most = int(binom.isf(error, len(ratios), _RARE))
    status: Status = "ok" if count <= most else "cannot tell" if touched is None else "fault"
    why = "the same, or nearly so, in all models: they are not trained, or get no noise"
    if status == "fault":
        why = "a canary moves them, but noise does not: look whether noise is added to every parameter of every tensor"
    return Row(WITHOUT, None, float(count), 0.0, float(max(0, count - most)), float(count), status, _told(status, why))


def _told(status: Status, why: str) -> str:
    return "" if status == "ok" else why


def _touched(effects: Sequence[Effect], size: int) -> BoolArray | None:
    """The parameters that a canary on all of them moves; None: no canary is seen to have taken part."""
    seen = [effect for effect in effects if effect.took_part]
    if not seen:
        return None
    best = max(seen, key=lambda effect: abs(effect.along))
    moved = np.abs(best.along * best.direction + best.rest)
    touched: BoolArray = (moved > _TOUCHED * abs(best.along) * np.abs(best.direction)) & (best.direction != 0.0)
    return touched
