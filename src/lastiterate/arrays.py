"""What arrays hold, by name: a signature says float, integer or boolean, and mypy checks it."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
Floats: TypeAlias = NDArray[np.float64] | np.float64  # of any shape: an array, or one NumPy number
Bools: TypeAlias = NDArray[np.bool_] | np.bool_  # what comparisons of `Floats` give
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
