"""Whether noise is normal, and whether numbers of it are used again within a model.

Both have the right variance, parameter by parameter. Noise of another law shows where few steps add up; a draw that is
used again, as by a generator that is seeded anew for every part, shows by its distance in the vector of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.stats import binom, chi2, norm

from lastiterate.checking.canary_effects import Effect
from lastiterate.checking.check_result import Row, Status, Trainings, not_checked, seed_of
from lastiterate.checking.declared import Declared, Foreign, flatten, require_finite, require_same_form
from lastiterate.checking.noise import ALIKE, correlation_interval, most_shared
from lastiterate.common.errors import TrainerFailed, guarded
from lastiterate.common.types import BoolArray, FloatArray

LAW, AGAIN = "law of the noise", "noise that is used again"
_UNIFORM = -1.2  # excess kurtosis of uniform noise
_CERTAIN = -2.0  # the least that there is, of a coin
_FEWEST = 400  # numbers
_MOST_ADDED = 1.25  # times the declared variance: with more, what batches add may have any law and be alike anywhere


def law_row(models: FloatArray, declared: Declared, error: float) -> Row:
    """The kurtosis of all parameters together, 3 for normal noise. Less of it is a fault.

    More of it is not, as it is that of normal noise whose variance differs from parameter to parameter. What batches
    add has a kurtosis of at least 1, and counts by the square of its share.
    """
    count, size = models.shape
    numbers = size * (count - 1)
    added = float((models.var(axis=0, ddof=1) / declared.variance).mean())
    deviation = float(np.sqrt(24.0 / numbers))  # of the kurtosis of so many normal numbers
    unsure = float(norm.isf(error)) * deviation
    allowed = unsure + abs(_CERTAIN) * max(0.0, 1.0 - 1.0 / max(added, 1e-300)) ** 2
    expected = _UNIFORM * _share_of_fourth_powers(declared) * (1.0 - 1.0 / count) ** 2
    if numbers < _FEWEST or -expected < allowed + 2.0 * deviation:
        return not_checked(LAW, "so many steps, or so few parameters, hide it: check a run of one step")
    around = models - models.mean(axis=0)
    measured = float(np.mean(around**4) / np.mean(around**2) ** 2)
    low, high = measured - unsure, measured + unsure
    status: Status = "fault" if measured + allowed < 3.0 else "ok"
    why = "noise is not normal, but cut off, uniform, or of few values: look which law it is drawn from"
    return Row(LAW, None, measured, 3.0, low, high, status, why if status == "fault" else "")


def _share_of_fourth_powers(declared: Declared) -> float:
    """How much of one step's excess kurtosis is left in the sum of all."""
    run = declared.run
    scales = declared.weights * np.broadcast_to(np.asarray(run.noise_multiplier, np.float64), (run.steps,))
    return float(np.sum(scales**4) / np.sum(scales**2) ** 2)


def again_row(models: FloatArray, declared: Declared, least: float, error: float) -> Row:
    """The largest correlation of the vector of parameters with itself, moved by up to half of its length.

    ``least`` is what curvature leaves of the declared variance at least.
    """
    count, size = models.shape
    around = models - models.mean(axis=0)
    added = float((models.var(axis=0, ddof=1) / declared.variance).mean())
    if size < 4 or (size // 2) * (count - 1) < _FEWEST or not added:
        return not_checked(AGAIN, "there are too few parameters")
    if added > _MOST_ADDED:
        return not_checked(AGAIN, "batches make parameters differ as well, and these may be alike")
    length = 2 ** int(np.ceil(np.log2(1.5 * size + 1)))
    spectrum = np.abs(np.fft.rfft(around, length, axis=1)) ** 2
    products = np.fft.irfft(spectrum.sum(axis=0), length)[1 : size // 2 + 1]
    below = np.cumsum(np.sum(around**2, axis=0))
    moved = np.arange(1, size // 2 + 1)
    scales = np.sqrt(below[size - 1 - moved] * (below[-1] - below[moved - 1]))
    correlations = np.abs(products) / np.maximum(scales, 1e-300)
    best = int(np.argmax(correlations))
    measured, numbers = float(correlations[best]), (size - best - 1) * (count - 1)
    low, high = correlation_interval(measured, numbers, error / len(correlations))
    status: Status = "fault" if low > min(ALIKE, most_shared(added, least)) else "ok"
    why = (
        f"the noise of a parameter is, or partly, that of the one {best + 1:,} places before: look where its generator "
        "is seeded, and whether a draw is used for several parts"
    )
    return Row(AGAIN, None, measured, 0.0, low, high, status, why if status == "fault" else "")


# Noise whose variance is right on the whole, and that is missing somewhere: between two models, or in some
# parameters.
#
# The numbers of a model's noise are independent, so that all models are about equally far apart; sampling moves them
# further apart only. If one draw serves many parameters, some two models are close. And if some parameters get no
# noise, their variance is next to none, whatever that of the others is.

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


# Seeds: equal ones make equal models, different ones different models.

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


# Initial values that follow the seed: what is left of them at the end is taken out of the noise.

Initial = Callable[[int], Foreign]


def initial_values(initial: Initial, trainings: Trainings, models: int) -> FloatArray:
    """The parameters before training, one model a row."""
    return np.stack([_one(initial, trainings, seed_of(trainings.seed, number)) for number in range(models)])


def _one(initial: Initial, trainings: Trainings, seed: int) -> FloatArray:
    what = f"initial({seed})"
    found = guarded(lambda: initial(seed), what)
    try:
        parameters = flatten(found)
        assert trainings.first is not None
        require_same_form(parameters, trainings.first)
        require_finite(parameters)
    except ValueError as error:
        raise TrainerFailed(error, what) from error
    return parameters.vector
