"""Many problems at once: arrays of any shape, each entry a problem of its own, down to a single number.

The kernels and the solver are written once for all of them. NumPy's reductions cost microseconds on single
numbers, where most calls are; `every` and `some` do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lastiterate.arrays import Bools, FloatArray, Floats

SQRT_HALF = 0.5**0.5


class Side(NamedTuple):
    """One direction of a pair along a threshold: the privacy loss there, log(delta), and both derivatives."""

    loss: Floats
    loss_slope: Floats
    log_delta: Floats
    log_delta_slope: Floats


def every(condition: Bools) -> bool:
    """Whether a condition holds for every problem."""
    return bool(condition if condition.ndim == 0 else condition.all())


def some(condition: Bools) -> bool:
    """Whether a condition holds for any problem."""
    return bool(condition if condition.ndim == 0 else condition.any())


def largest(values: Floats) -> float:
    """The largest of all problems' values."""
    return float(values if values.ndim == 0 else values.max())


def beside_points(values: Floats) -> FloatArray:
    """The values with one more axis, the last, along which each problem has its points."""
    wider: FloatArray = values[..., None]  # type: ignore[index]  # NumPy's numbers can be indexed, its stubs say not
    return wider


def pick(condition: Bools, first: Floats | float, second: Floats | float) -> Floats:
    """`numpy.where`, but single numbers stay numbers instead of becoming arrays without a dimension."""
    picked: FloatArray = np.where(condition, first, second)
    return picked[()]


def each(function: Callable[[np.float64], Floats | float], values: Floats) -> Floats:
    """A function of single numbers, put to every problem in turn."""
    result: Floats = np.vectorize(lambda value: function(np.float64(value)), otypes=[np.float64])(values)[()]
    return result
