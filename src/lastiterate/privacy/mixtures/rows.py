"""Many problems at once: arrays of any shape, each entry a problem of its own, down to a single number.

The kernels and the solver are written once for all of them. NumPy's reductions cost microseconds on single
numbers, where most calls are; `every` and `some` do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from lastiterate.values import Array

SQRT_HALF = 0.5**0.5


class Side(NamedTuple):
    """One direction of a pair along a threshold: the privacy loss there, log(delta), and both derivatives."""

    loss: Array
    loss_slope: Array
    log_delta: Array
    log_delta_slope: Array


def every(condition: Any) -> bool:
    """Whether a condition holds for every problem."""
    return bool(condition if condition.ndim == 0 else condition.all())


def some(condition: Any) -> bool:
    """Whether a condition holds for any problem."""
    return bool(condition if condition.ndim == 0 else condition.any())


def largest(values: Array) -> float:
    """The largest of all problems\' values."""
    return float(values if values.ndim == 0 else values.max())


def each(function: Callable[[Array], Array], values: Array) -> Array:
    """A function of single numbers, put to every problem in turn."""
    return np.vectorize(function, otypes=[np.float64])(values)[()]
