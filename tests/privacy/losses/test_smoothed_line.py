"""Delta from one line, where the integrand vanishes and comes back."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom

from lastiterate.privacy.convex.windows import SmoothedLoss
from lastiterate.privacy.mixtures.fourier import Complex


@dataclass(frozen=True)
class Lattice:
    """The loss spacing * (binomial count - offset), smoothed: its characteristic function is nearly periodic."""

    count: int
    spacing: float
    offset: float
    smoothing: float

    def real(self, theta: float) -> tuple[float, float, float]:
        tilted = 1.0 / (1.0 + math.exp(-theta * self.spacing))
        square = self.smoothing**2
        return (
            float(self._value(np.array([theta]))[0].real),
            self.spacing * (self.count * tilted - self.offset) + square * (theta + 0.5),
            self.spacing**2 * self.count * tilted * (1.0 - tilted) + square,
        )

    def with_error(self, theta: float, spacing: float, count: int) -> tuple[Complex, float]:
        return self._value(theta + 1j * spacing * np.arange(count)), 1.0

    def delta(self, epsilon: float) -> float:
        """E max(0, 1 - exp(epsilon - loss)), summed over all counts."""
        counts = np.arange(self.count + 1.0)
        mean = self.spacing * (counts - self.offset) + 0.5 * self.smoothing**2
        above = (mean - epsilon) / self.smoothing
        without = np.exp(epsilon - mean + 0.5 * self.smoothing**2) * ndtr(above - self.smoothing)
        return float(binom.pmf(counts, self.count, 0.5) @ (ndtr(above) - without))

    def _value(self, z: np.ndarray) -> np.ndarray:
        turned = np.log(0.5 + 0.5 * np.exp(z * self.spacing)) * self.count
        return turned - z * self.spacing * self.offset + 0.5 * self.smoothing**2 * z * (z + 1.0)


@pytest.mark.parametrize("smoothing", [0.03, 0.1, 0.137, 0.2, 0.5])
@pytest.mark.parametrize("part", [0.1, 0.35, 0.6, 0.85])
def test_a_loss_on_a_lattice_is_bounded_from_above(smoothing: float, part: float) -> None:
    spacing = 3.0
    lattice = Lattice(60, spacing, 40.0, smoothing * spacing)
    epsilon = spacing * (1.0 + part)
    found = math.exp(SmoothedLoss(lattice, 1e-9).log_delta(epsilon))
    assert lattice.delta(epsilon) * (1.0 - 1e-9) <= found
    assert found == pytest.approx(lattice.delta(epsilon), rel=1e-4)
