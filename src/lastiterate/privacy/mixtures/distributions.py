"""Pairs of discrete distributions, such as two binomials, and the distribution of S + N by itself.

By the Neyman-Pearson lemma the best tests are the sets of points with the largest likelihood ratios. There are no more
such sets than points. So epsilon is the largest of finitely many values, and no equation has to be solved.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import logsumexp

from lastiterate.common.types import FloatArray, Floats
from lastiterate.privacy.mixtures.fourier import Complex, Cumulant
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.mixture import RELATIVE_ERROR, SinglePair, larger_delta, smaller_delta


@dataclass(frozen=True, eq=False)
class DiscretePair(SinglePair):
    """P (with the canary) and Q (without), as log-probabilities of points. -inf means that a point does not occur."""

    log_p: FloatArray
    log_q: FloatArray

    def _epsilon(self, log_delta: float) -> float:
        return max(_epsilon(*sets, log_delta) for sets in self._best_sets)

    def _log_delta(self, epsilon: float) -> float:
        p, q = self.log_p, self.log_q
        return max(_log_delta(p, q, epsilon), _log_delta(q, p, epsilon))

    def _fnr(self, fpr: float) -> float:
        # Between two sets the best test is randomised on the points in which they differ.
        rejected, accepted = self._best_sets[0]
        return float(np.interp(fpr, np.append(0.0, np.exp(accepted)), np.append(1.0, 1.0 - np.exp(rejected))))

    def bracket(self, log_delta: Floats) -> tuple[Floats, Floats]:
        lower, upper = self.epsilon(larger_delta(log_delta)), self.epsilon(smaller_delta(log_delta))
        error = RELATIVE_ERROR * np.maximum(1.0, np.where(np.isinf(lower), 0.0, upper))
        return lower - error, upper + error

    @cached_property
    def _best_sets(self) -> tuple[tuple[FloatArray, FloatArray], ...]:
        return _best_sets(self.log_p, self.log_q), _best_sets(self.log_q, self.log_p)


def _best_sets(log_p: FloatArray, log_q: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return log P and log Q of the sets of points with the largest likelihood ratio, the smallest set first."""
    occurs = np.maximum(log_p, log_q) > -np.inf
    order = np.argsort(log_q[occurs] - log_p[occurs], kind="stable")
    p, q = (np.logaddexp.accumulate(log[occurs][order]) for log in (log_p, log_q))
    return p, q


def _epsilon(log_p: FloatArray, log_q: FloatArray, log_delta: float) -> float:
    """Return the least epsilon >= 0 with P(set) <= e^epsilon Q(set) + delta for all of the sets."""
    matters = log_p > log_delta
    p, q = log_p[matters], log_q[matters]
    if not p.size:
        return 0.0
    return max(0.0, float(np.max(p + np.log1p(-np.exp(log_delta - p)) - q)))


def _log_delta(log_p: FloatArray, log_q: FloatArray, epsilon: float) -> float:
    gains = log_p > epsilon + log_q
    if not gains.any():
        return -np.inf
    p, q = log_p[gains], log_q[gains]
    return float(logsumexp(p + np.log1p(-np.exp(epsilon + q - p))))


# Distribution of S + N, for predictions. The characteristic function is inverted to an absolute error of about 1e-12.
# Epsilon needs relative accuracy in the tails, which `fourier` gives.

_FURTHEST = 12.0  # standard deviations, beyond which the mass is negligible
_LAST = 8.5  # frequency, in 1 / noise, after which a Gaussian's characteristic function is below 1e-15


def probability_below(law: Law, y: FloatArray) -> FloatArray:
    """Return P(S + N <= y) for each y, by the formula of Gil-Pelaez (1951)."""
    step, frequencies, transform, waves = _characteristic_function(law, y)
    return np.clip(0.5 - step / math.pi * (waves @ (transform / frequencies)).imag, 0.0, 1.0)


def density(law: Law, y: FloatArray) -> FloatArray:
    """Return the density of S + N at each y."""
    step, _, transform, waves = _characteristic_function(law, y)
    return np.maximum(step / math.pi * (waves @ transform).real, 0.0)


def _characteristic_function(law: Law, y: FloatArray) -> tuple[float, FloatArray, Complex, Complex]:
    """Return the spacing of the frequencies u, these frequencies, E exp(iu (S + N)), and exp(-iuy) for each y."""
    farthest = abs(law.mean) + _FURTHEST * math.hypot(math.sqrt(law.variance), law.noise)
    reach = 2.0 * farthest  # half a period of the grid: the largest distance of a queried y from a value of S + N
    step = math.pi / reach
    frequencies = (np.arange(float(math.ceil(_LAST / (law.noise * step)))) + 0.5) * step
    waves = np.exp(-1j * np.multiply.outer(np.clip(y, -farthest, farthest), frequencies))
    with np.errstate(divide="ignore"):  # the function may vanish, and its logarithm is then -inf
        return step, frequencies, np.exp(Cumulant(law).along(0.0, frequencies)), waves
