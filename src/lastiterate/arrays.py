"""What arrays hold, by name: a signature says float, integer or boolean, and mypy checks it."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
Floats: TypeAlias = NDArray[np.float64] | np.float64  # of any shape: an array, or one NumPy number
Bools: TypeAlias = NDArray[np.bool_] | np.bool_  # what comparisons of `Floats` give
IntArray: TypeAlias = NDArray[np.int64]
ComplexArray: TypeAlias = NDArray[np.complex128]
BoolArray: TypeAlias = NDArray[np.bool_]
IntegerArray: TypeAlias = NDArray[np.integer]  # labels, of whatever width
RealArray: TypeAlias = NDArray[np.floating]  # float32 or float64, such as the parameters of a trained model
Float32Array: TypeAlias = NDArray[np.float32]  # images
Int32Array: TypeAlias = NDArray[np.int32]  # labels, and indices inside a compiled program
UInt8Array: TypeAlias = NDArray[np.uint8]  # images as files hold them
UInt32Array: TypeAlias = NDArray[np.uint32]  # random words
UInt64Array: TypeAlias = NDArray[np.uint64]  # probabilities as integers out of 2^64
NumberArray: TypeAlias = NDArray[np.number]  # numbers of whatever type a file or a user has them in
