"""Bounds where the noise is small against irregular gaps between the values of S and neither kernel holds.

Weights are rounded to multiples of a spacing, once all down and once all up. More signal under the same noise is never
harder to see (Choquette-Choo et al. 2024, Lemma 4.5), so the two results enclose the truth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lastiterate.privacy.mixtures.kernels import FiniteKernel
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.support import Support

if TYPE_CHECKING:
    from lastiterate.arrays import FloatArray, IntArray

_FINENESS = 1e-3  # of the spacing, in units of the noise
_MOST_POINTS = 50_000


def rounded(law: Law) -> tuple[FiniteKernel, FiniteKernel]:
    """Kernels of two laws between which this one lies."""
    law = law.from_lowest()
    spacing = max(_FINENESS * law.noise, law.high / _MOST_POINTS)
    return _on_lattice(law, spacing, up=False), _on_lattice(law, spacing, up=True)


def _on_lattice(law: Law, spacing: float, *, up: bool) -> FiniteKernel:
    def steps(values: FloatArray) -> IntArray:
        return (np.ceil(values / spacing) if up else np.floor(values / spacing)).astype(np.int64)

    shift = int(steps(np.asarray(law.constant)))
    weights = steps(law.weights)
    blocks = [(steps(values), probabilities) for values, probabilities in law.blocks]
    size = 1 + int(weights @ law.counts) + sum(int(jumps.max()) for jumps, _ in blocks)
    mass = np.zeros(size)
    mass[0], used = 1.0, 1
    for count, rate, jump in zip(law.counts, law.rates, weights, strict=True):
        for _ in range(int(count)):
            used += int(jump)
            mass[:used] = _convolve(mass[:used], np.array([0, jump]), np.array([1.0 - rate, rate]))
    for jumps, probabilities in blocks:
        used += int(jumps.max())
        mass[:used] = _convolve(mass[:used], jumps, probabilities)
    present = mass > 0.0
    points = spacing * (np.flatnonzero(present) + shift).astype(np.float64)
    support = Support(np.float64(law.noise), points, np.log(mass[present]))
    on_lattice = tuple((jumps.astype(np.float64) * spacing, probabilities) for jumps, probabilities in blocks)
    heights = weights.astype(np.float64) * spacing
    return FiniteKernel(Law(law.noise, shift * spacing, law.counts, law.rates, heights, on_lattice), support)


def _convolve(mass: FloatArray, jumps: IntArray, probabilities: FloatArray) -> FloatArray:
    """The sum's law after one more term; all terms are positive, so that small masses keep their relative accuracy."""
    result = np.zeros_like(mass)
    for jump, probability in zip(jumps, probabilities, strict=True):
        result[jump:] += probability * mass[: mass.size - jump]
    return result
