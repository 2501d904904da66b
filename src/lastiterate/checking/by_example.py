"""What can be checked with a canary that is an example of the trainer's own: its gradients are not known."""

from __future__ import annotations

import numpy as np
from scipy.stats import beta

from lastiterate.arrays import FloatArray
from lastiterate.checking.clipping import NORM
from lastiterate.checking.measured import Measured
from lastiterate.checking.participation import RATE
from lastiterate.checking.row import Row, Status, cannot_tell, not_checked

_MORE = 0.3  # by which curvature may make an effect larger
_WHY_NOT = "the gradient of an example is not known: see canary='gradient'"


def example_rows(measured: Measured) -> tuple[list[Row], list[str]]:
    """Noise, the size of the canary's effect, and at how many seeds it has one."""
    effects: list[FloatArray] = []
    for number in range(min(len(measured.plain), measured.plan.pairs)):
        found = measured.trainings.effect(number, None, "with the canary")
        if found is None:
            why = "with the canary parameters become NaN or infinite: look whether its gradient is clipped"
            return [*_noise_rows(measured), Row(NORM, None, None, 1.0, None, None, "fault", why)], []
        effects.append(found)
    rows = _noise_rows(measured)
    rows += [_size_row(measured, effects), taking_part_row(measured, effects)]
    rows += [not_checked(name, _WHY_NOT) for name in ("normalisation", "size of steps")]
    return rows, []


def _noise_rows(measured: Measured) -> list[Row]:
    rows = measured.noise_rows([], 1.0, None)
    return [*rows, *measured.everywhere_rows([], 1.0, any(row.status == "fault" for row in rows))]


def _size_row(measured: Measured, effects: list[FloatArray]) -> Row:
    """The largest effect, over that of a gradient of the clipping norm in every batch."""
    declared = measured.declared
    norms = np.array([float(np.linalg.norm(effect)) for effect in effects])
    unit = declared.most * declared.run.clip_norm
    noise = _apart(measured)
    largest = float(norms.max())
    # With noise between the worlds the norm of the difference is the noise's; only far above it is it the canary's.
    low = max(0.0, largest - 2.0 * noise) / unit if largest > 0.3 * noise else largest / unit
    if low > 1.0 + _MORE:
        why = "the canary counts more than a clipping norm in every batch: look at clipping and at the learning rate"
        return Row(NORM, None, largest / unit, 1.0, low, largest / unit, "fault", why)
    if largest > 0.3 * noise and largest > unit:
        return cannot_tell(NORM, 1.0, "models with and without the canary do not share noise and batches")
    return Row(
        NORM, None, largest / unit, 1.0, low, largest / unit, "ok", "at most this much of a clipping norm a batch"
    )


def taking_part_row(measured: Measured, effects: list[FloatArray]) -> Row:
    """At how many seeds the canary had an effect."""
    declared = measured.declared
    expected = 1.0 - float(np.prod(1.0 - declared.rates))
    noise = _apart(measured)
    norms = [float(np.linalg.norm(effect)) for effect in effects]
    if max(norms) > 0.3 * noise and max(norms) > declared.most * declared.run.clip_norm:
        return cannot_tell(RATE, expected, "models with and without the canary do not share noise and batches")
    seeds, took = len(norms), sum(norm > 0.0 for norm in norms)
    if not took:
        return cannot_tell(RATE, expected, "the canary has no effect at any seed: it is never in, or has no gradient")
    low = float(beta.ppf(measured.error / 2.0, took, seeds - took + 1))
    high = float(beta.isf(measured.error / 2.0, took + 1, seeds - took)) if took < seeds else 1.0
    status: Status = "ok" if low <= expected <= high else "fault"
    why = "the share of seeds at which the canary has an effect is not that of the declared sample rate"
    return Row(RATE, None, took / seeds, expected, low, high, status, why if status == "fault" else "")


def _apart(measured: Measured) -> float:
    """How far models of different seeds are apart, by noise and by sampling, or should be by noise."""
    found = float(measured.plain.var(axis=0, ddof=1).sum())
    return float(np.sqrt(2.0 * max(found, measured.declared.variance * len(measured.like.vector))))
