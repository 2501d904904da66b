"""How strong the signal of an attack is, and whether it is so much weaker than expected that the attack failed."""

from __future__ import annotations

import math
import warnings

import numpy as np
from scipy.special import ndtri

from lastiterate.arrays import FloatArray
from lastiterate.privacy.mixtures.law import law_of
from lastiterate.run import DPSGD, LINEAR, require_basic
from lastiterate.wording import spell

_LEAST_SHARE = 0.1  # of the expected signal: an attack that has less, of that we are sure, failed
_SURE = 0.99
_LARGE = 1e100


def signal_of(scores_in: FloatArray, scores_out: FloatArray) -> float:
    """d': the distance of the means in standard deviations; 0 where that is not defined."""
    found = _defined_signal(scores_in, scores_out)
    return 0.0 if found is None else found


def expected_signal(run: DPSGD, signal: float = 1.0, spread: float = 1.0) -> float:
    """The d' of scores signal * S / s + N(0, spread^2) against N(0, spread^2), as the linear analysis expects them.

    Where one example replaces another, against the mirror image of the first.
    """
    law = law_of(require_basic(run, "linear scores", knows=LINEAR))
    scale = signal / law.noise
    if run.neighbours == "replace":
        return float(2.0 * scale * law.mean / np.sqrt(spread**2 + scale**2 * law.variance))
    return float(scale * law.mean / np.sqrt(spread**2 + 0.5 * scale**2 * law.variance))


def failure_of(scores_in: FloatArray, scores_out: FloatArray, expected: float | None) -> str | None:
    """Why these scores tell nothing about the training: the attack failed. None: nothing says that it did."""
    if len({*np.unique(scores_in), *np.unique(scores_out)}) == 1:
        return "The attack failed, which says nothing about the training: all scores are equal."
    found = _defined_signal(scores_in, scores_out)
    if found is None or expected is None:
        return None
    sizes = len(scores_in), len(scores_out)
    error = math.sqrt(1.0 / sizes[0] + 1.0 / sizes[1] + found**2 / (2.0 * sum(sizes)))  # Hedges and Olkin (1985)
    most = found + float(ndtri(_SURE)) * error
    if most >= _LEAST_SHARE * expected:
        return None
    return (
        f"The attack failed, which says nothing about the training: its signal d' is {spell(found, 3)}, with 99% "
        f"confidence below {spell(most, 3)}, where {spell(expected, 3)} was expected."
    )


def _defined_signal(scores_in: FloatArray, scores_out: FloatArray) -> float | None:
    if min(len(scores_in), len(scores_out)) < 2:
        return None
    largest = max(np.abs(scores_in).max(), np.abs(scores_out).max())
    if not np.isfinite(largest):
        return None
    if largest > _LARGE or 0.0 < largest < 1.0 / _LARGE:  # squares would leave the range of floats
        power = -int(np.frexp(largest)[1])
        scores_in, scores_out = np.ldexp(scores_in, power), np.ldexp(scores_out, power)
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("ignore")
        spread = np.sqrt(0.5 * (scores_in.var(ddof=1) + scores_out.var(ddof=1)))
        distance = scores_in.mean() - scores_out.mean()
    if not np.isfinite(distance) or not np.isfinite(spread) or not spread > 0.0:
        return None
    return float(distance / spread)
