"""Whether noise is normal, and whether numbers of it are used again within a model.

Both have the right variance, parameter by parameter. Noise of another law shows where few steps add up; a draw that is
used again, as by a generator that is seeded anew for every part, shows by its distance in the vector of parameters.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import norm

from lastiterate.arrays import FloatArray
from lastiterate.checking.declared import Declared
from lastiterate.checking.noise import ALIKE, correlation_interval, most_shared
from lastiterate.checking.row import Row, Status, not_checked

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
