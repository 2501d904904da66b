"""Integrals along one vertical line z = theta + iu in the complex plane, by the midpoint rule.

For analytic integrands that fall off like a Gaussian the rule converges geometrically (Trefethen and Weideman, 2014).
What it computes are densities, tails and hockey-stick divergences of a random variable whose cumulant generating
function K is known on the line: 1/pi times the integral of Re exp(K(z) - zy) k(z) over u > 0, where k is 1 for the
density at y and 1/z for the tail beyond it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LARGEST_CANCELLATION = 1e-5  # of a sum against its moduli: rounding then costs at most a relative 1e-11

Complex = npt.NDArray[np.complex128]


class Unreliable(ArithmeticError):
    """The integral cancels, or would take too many nodes."""


@dataclass
class Effort:
    """A limit on work: how many more numbers may be computed, whatever the speed of the machine."""

    left: float = math.inf

    def spend(self, numbers: float) -> None:
        """Count work that is about to be done, or was. Raise Unreliable once there was too much."""
        self.left -= numbers
        if self.left < 0.0:
            raise Unreliable


@dataclass(frozen=True)
class Line:
    """The nodes of a line, and K there."""

    z: Complex
    log_values: Complex
    spacing: float

    @property
    def theta(self) -> float:
        return float(self.z[0].real)

    def integral(self, y: float, kernel: Complex | float, least: float = LARGEST_CANCELLATION) -> tuple[float, float]:
        """log of a scale, and 1/pi times the integral of Re exp(K(z) - zy) kernel(z) in that scale.

        Raises Unreliable where the sum is below ``least`` times the sum of the moduli of its terms.
        """
        exponent = self.log_values - self.z * y
        scale = float(exponent.real.max())
        terms = np.exp(exponent - scale) * kernel
        total = float(terms.real.sum())
        if not total > least * float(np.abs(terms).sum()):
            raise Unreliable
        return scale, total * self.spacing / math.pi
