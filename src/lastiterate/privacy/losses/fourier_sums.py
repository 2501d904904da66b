"""Sums of exp(iu loss) over many losses, at equally spaced frequencies u, by fast Fourier transforms.

Losses are moved to the nearest point of a grid. Taylor's series of exp(iu r) corrects for the displacement r. The terms
of the series are transforms of moments of r. |u r| is at most pi / 2, so the error is at most (pi / 2)^TERMS / TERMS!
times the probability.
"""

import math
from typing import NamedTuple

import numpy as np

from lastiterate.common.types import FloatArray

TERMS = 20
_ODD = (1, 3, 5, 9, 15, 25, 27, 45, 75)  # factors of sizes for which transforms are fast
_AT_ONCE = 2**16  # numbers in one transform of several rows


class Characteristic(NamedTuple):
    """The characteristic function E exp(iu loss), stored as its real part minus 1 and its imaginary part."""

    real: FloatArray
    imaginary: FloatArray
    size: int  # size of the transforms
    far: float  # probability of the losses that were transformed
    norm: float  # Euclidean norm of the transformed probabilities
    near: float  # second moment of the other losses, in units of half a grid step

    def logarithm(self) -> tuple[FloatArray, FloatArray]:
        """Return the log of the modulus, and the phase."""
        above_one = 2.0 * self.real + self.real * self.real + self.imaginary * self.imaginary
        with np.errstate(divide="ignore"):
            far_from_one = np.log(np.hypot(1.0 + self.real, self.imaginary))
        close = 0.5 * np.log1p(np.maximum(above_one, -0.75))
        return np.where(above_one > -0.75, close, far_from_one), np.arctan2(self.imaginary, 1.0 + self.real)

    def remainder(self) -> float:
        """Return a bound on the remainder of Taylor's series. The series for losses near 0 has two more terms."""
        return (0.5 * math.pi) ** TERMS / math.factorial(TERMS) * (self.far + self.near)


def characteristic(loss: FloatArray, mass: FloatArray, spacing: float, count: int) -> Characteristic:
    """Return E exp(iu loss) at u = 0, spacing, ..., (count - 1) spacing. ``mass`` must sum to one.

    Losses near 0 are summed without a transform, to be accurate relative to the size of the result.
    """
    # The smallest size with a fast transform. SciPy's function for this is not used, because importing it is slow.
    size = min(odd << (-(-2 * count // odd) - 1).bit_length() for odd in _ODD)
    step = 2.0 * math.pi / (size * spacing)
    place = loss / step
    cell = np.rint(place)
    moved = 2.0 * (place - cell)
    angle = np.arange(count, dtype=np.float64) * (math.pi / size)  # u times half a grid step
    far = cell != 0.0
    real, imaginary, near = _near(moved[~far], mass[~far], angle)
    outside, norm = float(mass[far].sum()), 0.0
    if outside > 0.0:
        cells, moments, moved = cell[far].astype(np.int64) % size, mass[far], moved[far]
        powers = [moments]
        for _ in range(1, TERMS):
            powers.append(powers[-1] * moved)
        total = np.zeros(count, dtype=np.complex128)
        together = max(1, _AT_ONCE // size)
        for stop in range(TERMS, 0, -together):
            orders = range(max(stop - together, 0), stop)
            binned = np.array([np.bincount(cells, powers[order], size) for order in orders])
            transformed = np.fft.rfft(binned)[:, :count]
            for order in reversed(orders):  # rfft computes exp(-iu loss), hence the conjugates
                total *= angle * (-1j / (order + 1.0))
                total += transformed[order - orders.start]
        norm = math.sqrt(float(binned[0] @ binned[0]))
        real += total.real - outside
        imaginary -= total.imag
    return Characteristic(real, imaginary, size, outside, norm, near)


def _near(moved: FloatArray, mass: FloatArray, angle: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Return real part - 1, imaginary part and second moment, for losses within half a grid step of 0."""
    moments = [0.0]
    for _ in range(TERMS + 1):
        mass = mass * moved
        moments.append(float(mass.sum()))
    square = angle * angle
    real, imaginary = np.zeros_like(angle), np.zeros_like(angle)
    for order in range(TERMS, 0, -2):
        real = -(moments[order] + real) * square / (order * (order - 1.0))
        imaginary = -(moments[order + 1] + imaginary) * square / (order * (order + 1.0))
    return real, angle * (moments[1] + imaginary), moments[2]
