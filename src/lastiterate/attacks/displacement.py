"""Attack on a user's own trainer: the displacement of the parameters along a canary gradient.

The noise in every tensor is measured on models without the canary. A tensor's weight is its signal over its noise
variance, so that missing noise on one tensor is detected. If the measured noise agrees with the declared noise, the
declared noise is used, and the score is the plain projection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.stats import chi2

from lastiterate.attacks.attack import ExpectedScores, Facts, LinearScores, Words
from lastiterate.attacks.released_iterates import Blocks, expected_ratios, noise_unit, score_unit
from lastiterate.common.trees import leaves
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import integer, told
from lastiterate.privacy.mixtures.law import Law, law_of, laws_in_order
from lastiterate.run import DPSGD
from lastiterate.supported_runs import COMBINATIONS, LINEAR, RELEASES, Support

if TYPE_CHECKING:
    from jaxtyping import PyTree

_SURPRISE = 1e-3  # tail probability below which a measured variance replaces the declared one
_LEAST_SPREAD = 0.05  # floor of a measured spread, in units of the noise: a trainer may have no noise at all


@dataclass(frozen=True, eq=False)
class Displacement:
    """An attack on trainers ``(seed, canary) -> parameters``.

    If the run releases several iterates, the trainer returns a list with the parameters of each release. If the
    neighbouring data set replaces an example, the trainer injects minus this gradient when ``canary`` is false.

    Args:
        canary: the gradient that the trainer injects if ``canary`` is true, in the form of its parameters: an array, or
            lists, tuples and dicts of arrays. Only its direction matters here.
        references: number of models without the canary that are trained first; they are not counted.
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

    supports: ClassVar = Support("the attack Displacement", LINEAR | {RELEASES} | COMBINATIONS)

    def craft(self, run: DPSGD, references: list[object]) -> Facts:
        """Compute tensor weights, and the score's centre and spread, from parameters of models without the canary."""
        norms = np.array([np.linalg.norm(leaf) for leaf in leaves(self.canary)])
        share = norms[norms > 0.0] / np.linalg.norm(norms[norms > 0.0])
        if run.release_count > 1:
            return self._craft_releases(run, references, share)
        moved = np.array([self._projections(parameters) for parameters in references])
        unit, law = noise_unit(run), law_of(run)
        variance = _apart(moved.var(axis=0, ddof=1), unit**2, share**2 * _known(run, law) * unit**2, len(moved))
        weights = share / variance
        weights /= weights @ share
        spread = float(np.sqrt(weights**2 @ variance) / unit)
        pulled = law.mean / law.noise * unit if run.is_mirrored else 0.0
        return {
            "weights": weights.tolist(),
            "centre": float(moved.mean(axis=0) @ weights) + pulled,
            "spread": max(spread, _LEAST_SPREAD),
        }

    def _craft_releases(self, run: DPSGD, references: list[object], share: FloatArray) -> Facts:
        """Craft from the displacements between releases. The unknown initial parameters are part of the centre."""
        blocks, laws = Blocks.of(run), laws_in_order(run)
        positions = np.array([self._positions(run, parameters) for parameters in references])
        added = np.stack([blocks.added(positions[:, :, each]) for each in range(len(share))], axis=2)
        known = np.array([0.0 if law is None else _known(run, law) for law in laws])
        measured = added.var(axis=0, ddof=1).mean(axis=0)
        count = 1 + (len(added) - 1) * len(laws)  # each block has len(added) - 1 degrees of freedom
        variance = _apart(measured, 1.0, share**2 * known.mean(), count)
        weights = share / variance
        weights /= weights @ share
        pulled = np.array([0.0 if law is None or not run.is_mirrored else law.mean / law.noise for law in laws])
        return {
            "releases": run.release_count,
            "weights": weights.tolist(),
            "centres": (added.mean(axis=0) @ weights + pulled).tolist(),
            "spread": max(float(np.sqrt(weights**2 @ variance)), _LEAST_SPREAD),
            "signal": 1.0,
        }

    def score(self, run: DPSGD, facts: Facts, parameters: PyTree) -> float:
        weights = np.array(facts["weights"])
        if run.release_count > 1:
            return float(Blocks.of(run).scores((self._positions(run, parameters) @ weights)[None], facts)[0])
        return float(self._projections(parameters) @ weights - facts["centre"]) / noise_unit(run)

    def expected(self, facts: Facts) -> ExpectedScores:
        return expected_ratios(facts) if "releases" in facts else LinearScores(1.0, facts["spread"])

    def words(self, facts: Facts) -> Words:
        what, unit = "displacement of its parameters along your canary", score_unit(facts)
        if "releases" in facts:
            what = f"likelihood ratio of the displacements along your canary, by all {facts['releases']:,} releases"
        else:
            unit += " that the run should have"
        caveat = f"{self.references} models without the canary set centre and spread; they are not counted."
        return Words(f"gradient space, your trainer: {what}", unit, (caveat,))

    def _positions(self, run: DPSGD, parameters: PyTree) -> FloatArray:
        if not isinstance(parameters, (list, tuple)) or len(parameters) != run.release_count:
            raise ValueError(
                f"the trainer must return a list of {run.release_count} parameters, one for each release of the run, "
                f"got {told(parameters)}"
            )
        seen = [self._projections(each) for each in parameters]
        return np.stack([np.zeros_like(seen[0]), *seen])

    def _projections(self, parameters: PyTree) -> FloatArray:
        """Return minus the projection of each tensor on its part of the canary."""
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


def _in_order(canary: PyTree, parameters: PyTree) -> PyTree:
    if not (isinstance(canary, dict) and isinstance(parameters, dict)):
        return parameters
    if canary.keys() != parameters.keys():
        raise ValueError(f"parameters must have the names of the canary, {list(canary)}, got {list(parameters)}")
    return {name: _in_order(canary[name], parameters[name]) for name in canary}


def _known(run: DPSGD, law: Law) -> float:
    """Return the variance that the replacement example adds in models without the canary, in units of the noise."""
    return law.variance / law.noise**2 if run.is_mirrored else 0.0


def _apart(measured: FloatArray, stated: float, known: FloatArray, count: int) -> FloatArray:
    """Return the noise variance of each tensor, after subtracting the ``known`` variance."""
    total = stated + known
    return np.maximum(total * believed(measured / total, 1.0, count) - known, _LEAST_SPREAD**2 * stated)


def believed(measured: FloatArray, stated: float, count: int) -> FloatArray:
    """Return the stated variance, or the measured variance if a chi-squared test finds that they differ."""
    low, high = chi2.ppf([_SURPRISE, 1.0 - _SURPRISE], count - 1) / (count - 1)
    ratio = measured / stated
    return stated * np.where((ratio > low) & (ratio < high), 1.0, np.maximum(ratio, _LEAST_SPREAD**2))
