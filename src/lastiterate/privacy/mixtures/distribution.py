"""How S + N is distributed, by itself: to predict what will be seen, not to tell P from Q.

The characteristic function is inverted on an equally spaced grid of frequencies, to an absolute error of about 1e-12.
For relative accuracy far out in the tails, which an epsilon needs, see `fourier`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.privacy.mixtures.fourier import Cumulant

if TYPE_CHECKING:
    from lastiterate.arrays import FloatArray
    from lastiterate.privacy.mixtures.contour import Complex
    from lastiterate.privacy.mixtures.law import Law

_FURTHEST = 12.0  # standard deviations, beyond which there is no mass to speak of
_LAST = 8.5  # frequency, in 1 / noise, after which a Gaussian's characteristic function is below 1e-15


def probability_below(law: Law, y: FloatArray) -> FloatArray:
    """P(S + N <= y) for each y, by the formula of Gil-Pelaez (1951)."""
    step, frequencies, transform = _characteristic_function(law)
    near = np.clip(y, -_farthest(law), _farthest(law))
    waves = np.exp(-1j * np.multiply.outer(near, frequencies))
    return np.clip(0.5 - step / math.pi * (waves @ (transform / frequencies)).imag, 0.0, 1.0)


def density(law: Law, y: FloatArray) -> FloatArray:
    """The density of S + N at each y."""
    step, frequencies, transform = _characteristic_function(law)
    near = np.clip(y, -_farthest(law), _farthest(law))
    waves = np.exp(-1j * np.multiply.outer(near, frequencies))
    return np.maximum(step / math.pi * (waves @ transform).real, 0.0)


def _farthest(law: Law) -> float:
    """How far from 0 there is anything to be seen."""
    return abs(law.mean) + _FURTHEST * math.hypot(math.sqrt(law.variance), law.noise)


def _characteristic_function(law: Law) -> tuple[float, FloatArray, Complex]:
    """The distance of frequencies, these, and the characteristic function of S + N there."""
    reach = 2.0 * _farthest(law)  # half a period of the grid: from any y to be asked for to any that occurs
    step = math.pi / reach
    frequencies = (np.arange(float(math.ceil(_LAST / (law.noise * step)))) + 0.5) * step
    with np.errstate(divide="ignore"):  # where it vanishes, its logarithm does not exist
        return step, frequencies, np.exp(Cumulant(law).along(0.0, frequencies))
