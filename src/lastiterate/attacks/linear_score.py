"""The distinguisher of gradient-space attacks: a projection of the released parameters, in units of the noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.arrays import FloatArray
from lastiterate.privacy.mixtures.law import law_of
from lastiterate.run import DPSGD, LINEAR, require_basic

if TYPE_CHECKING:
    from jaxtyping import PyTree


@dataclass(frozen=True, eq=False)
class LinearScore:
    """score = (-<parameters, weights> - centre) / unit. Descent moves parameters against the canary, hence the sign."""

    weights: FloatArray  # one a parameter, flat
    centre: float
    unit: float

    def __call__(self, parameters: PyTree) -> FloatArray:
        from lastiterate.training.problem import flatten

        along: FloatArray = flatten(parameters).astype(np.float64) @ self.weights
        return (-along - self.centre) / self.unit


def noise_unit(run: DPSGD) -> float:
    """The standard deviation of the noise in one released parameter."""
    size = float(np.max(np.abs(require_basic(run, "attacks", knows=LINEAR).effective_weights())))
    return size * law_of(run).noise * run.clip_norm
