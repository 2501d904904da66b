"""A user's own trainer with a canary gradient: the displacement of its parameters along the canary.

The noise in every tensor is measured on models without the canary. Tensors count by how well they show the canary, so
that noise that was forgotten on one of them gives it away. Where the measured noise agrees with what the run says, what
the run says is used, and the score is the plain projection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import chi2

from lastiterate.arrays import FloatArray
from lastiterate.attacks.attack import Facts, LinearScores, Words
from lastiterate.attacks.linear_score import noise_unit
from lastiterate.run import DPSGD
from lastiterate.values import integer, told

if TYPE_CHECKING:
    from jaxtyping import PyTree

_SURPRISE = 1e-3  # how unlikely a measured variance must be before it is believed rather than the run's
_LEAST_SPREAD = 0.05


@dataclass(frozen=True, eq=False)
class Displacement:
    """For trainers ``(seed, canary) -> parameters``.

    Args:
        canary: the gradient that the trainer injects where ``canary`` is true, in the form of its parameters: an array,
            or lists, tuples and dicts of them. Only its direction matters here.
        references: how many models without the canary are trained first; they are not counted.
    """

    canary: PyTree = field(repr=False)
    references: int = 32

    def __post_init__(self) -> None:
        integer("references", self.references, 8)
        try:
            given = [leaf.ravel() for leaf in leaves(self.canary)]
        except (TypeError, ValueError):
            raise ValueError(f"canary must be arrays of numbers, in any structure, got {told(self.canary)}") from None
        if not np.any(np.concatenate([np.empty(0), *given])):
            raise ValueError("canary must not be zero everywhere")

    def craft(self, run: DPSGD, references: list[object]) -> Facts:
        """From the parameters of models without the canary."""
        moved = np.array([self._projections(parameters) for parameters in references])
        share = self._norms() / np.linalg.norm(self._norms())
        unit = noise_unit(run)
        variance = believed(moved.var(axis=0, ddof=1), unit**2, len(moved))
        weights = share / variance
        weights /= weights @ share
        spread = float(np.sqrt(weights**2 @ variance) / unit)
        return {
            "weights": weights.tolist(),
            "centre": float(moved.mean(axis=0) @ weights),
            "spread": max(spread, _LEAST_SPREAD),
        }

    def score(self, run: DPSGD, facts: Facts, parameters: PyTree) -> float:
        projected = self._projections(parameters) @ np.array(facts["weights"])
        return float(projected - facts["centre"]) / noise_unit(run)

    def expected(self, facts: Facts) -> LinearScores:
        return LinearScores(1.0, facts["spread"])

    def words(self, facts: Facts) -> Words:
        return Words(
            "gradient space, your trainer: displacement of its parameters along your canary",
            "standard deviations of the noise that the run should have",
            (f"{self.references} models without the canary set centre and spread; they are not counted.",),
        )

    def _norms(self) -> FloatArray:
        norms = np.array([np.linalg.norm(leaf) for leaf in leaves(self.canary)])
        return norms[norms > 0.0]

    def _projections(self, parameters: PyTree) -> FloatArray:
        """Minus the projection of each tensor on its part of the canary."""
        own, given = leaves(self.canary), leaves(_in_order(self.canary, parameters))
        if [leaf.shape for leaf in own] != [leaf.shape for leaf in given]:
            raise ValueError(
                f"parameters must have the shapes of the canary, {[leaf.shape for leaf in own]}, "
                f"got {[leaf.shape for leaf in given]}"
            )
        if not all(np.isfinite(leaf).all() for leaf in given):
            raise ValueError("parameters must be finite numbers, got infinite ones or nan: training diverged")
        pairs = [(a, b) for a, b in zip(own, given, strict=True) if np.any(a)]
        return np.array([-np.vdot(a, b) / np.linalg.norm(a) for a, b in pairs])


def leaves(parameters: PyTree) -> list[FloatArray]:
    """The arrays in lists, tuples and dicts, in order; tensors of PyTorch and lists of numbers become arrays."""
    if isinstance(parameters, dict):
        return [leaf for value in parameters.values() for leaf in leaves(value)]
    if isinstance(parameters, (list, tuple)) and not all(isinstance(value, (int, float)) for value in parameters):
        return [leaf for value in parameters for leaf in leaves(value)]
    if hasattr(parameters, "detach"):
        parameters = parameters.detach().cpu().numpy()
    return [np.asarray(parameters, np.float64)]


def _in_order(canary: PyTree, parameters: PyTree) -> PyTree:
    """The parameters with their names in the canary's order, where both have names."""
    if not (isinstance(canary, dict) and isinstance(parameters, dict)):
        return parameters
    if canary.keys() != parameters.keys():
        raise ValueError(f"parameters must have the names of the canary, {list(canary)}, got {list(parameters)}")
    return {name: _in_order(canary[name], parameters[name]) for name in canary}


def believed(measured: FloatArray, stated: float, count: int) -> FloatArray:
    """The stated variance, but where the measured one could hardly have come from it."""
    low, high = chi2.ppf([_SURPRISE, 1.0 - _SURPRISE], count - 1) / (count - 1)
    ratio = measured / stated
    return stated * np.where((ratio > low) & (ratio < high), 1.0, np.maximum(ratio, _LEAST_SPREAD**2))
