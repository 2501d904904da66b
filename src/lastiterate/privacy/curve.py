"""PrivacyCurve, the result of every analysis: how well a run's output reveals whether the canary was used.

Delta is the larger of two hockey-stick divergences (the paper's equation 2), and epsilon is its inverse (equation 3).
The trade-off function is that of Dong et al. (Gaussian Differential Privacy, 2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, overload

import numpy as np

from lastiterate.common.types import FloatArray, Floats
from lastiterate.common.validation import SomeNumbers, numbers


class Pair(Protocol):
    """The output distributions P (with the canary) and Q (without). Arguments are arrays or NumPy scalars."""

    def epsilon(self, log_delta: Floats) -> Floats:
        """Return the smallest epsilon >= 0 for which P over Q and Q over P both have at most this delta."""

    def log_delta(self, epsilon: Floats) -> Floats:
        """Return the log of the larger of the two deltas, of P over Q and of Q over P."""

    def fnr(self, fpr: Floats) -> Floats:
        """Return the smallest false negative rate at false positive rate ``fpr``, 0 < fpr < 1."""

    def bracket(self, log_delta: Floats) -> tuple[Floats, Floats]:
        """Return a lower and an upper bound on epsilon that allow for the numerical error."""


@dataclass(frozen=True)
class PrivacyCurve:
    """Epsilon as a function of delta, and the trade-off of error rates, for one analysis of one run.

    Methods return a float for a number and an array for an array. ``analysis`` names the analysis. If ``is_guarantee``,
    epsilon bounds every attack. Otherwise epsilon predicts the best attack under assumptions that the run may not meet.
    ``proved`` names the ends of ``bracket`` that are proved; the other ends rest on estimates of numerical errors.
    """

    pair: Pair
    analysis: str
    is_guarantee: bool
    proved: tuple[Literal["lower", "upper"], ...] = ()

    @overload
    def epsilon(self, delta: float) -> float: ...
    @overload
    def epsilon(self, delta: SomeNumbers) -> FloatArray: ...
    def epsilon(self, delta: float | SomeNumbers) -> float | FloatArray:
        """Return the epsilon of (epsilon, delta)-DP."""
        values = numbers("delta", delta, 0.0, 1.0, open_low=True, open_high=True)
        with np.errstate(all="ignore"):
            value = self.pair.epsilon(np.log(values))
        return _plain(np.where(np.isnan(value), np.inf, value))  # NaN: epsilon exceeds the range of floats

    @overload
    def delta(self, epsilon: float) -> float: ...
    @overload
    def delta(self, epsilon: SomeNumbers) -> FloatArray: ...
    def delta(self, epsilon: float | SomeNumbers) -> float | FloatArray:
        """Return the delta of (epsilon, delta)-DP."""
        values = numbers("epsilon", epsilon, 0.0)
        with np.errstate(all="ignore"):
            finite = np.minimum(values, np.finfo(np.float64).max)
            return _plain(np.where(np.isinf(values), 0.0, np.exp(np.minimum(self.pair.log_delta(finite[()]), 0.0))))

    @overload
    def fnr(self, fpr: float) -> float: ...
    @overload
    def fnr(self, fpr: SomeNumbers) -> FloatArray: ...
    def fnr(self, fpr: float | SomeNumbers) -> float | FloatArray:
        """Return the trade-off function: the smallest false negative rate at a given false positive rate."""
        values = numbers("fpr", fpr, 0.0, 1.0)
        inside = np.clip(values, 1e-300, 1.0 - 1e-16)
        with np.errstate(all="ignore"):
            rates = np.clip(self.pair.fnr(inside[()]), 0.0, 1.0 - inside)
        return _plain(np.where(values <= 0.0, 1.0, np.where(values >= 1.0, 0.0, rates)))

    def advantage(self) -> float:
        """Return the largest difference of true and false positive rate that any test achieves."""
        return self.delta(0.0)

    @overload
    def bracket(self, delta: float) -> tuple[float, float]: ...
    @overload
    def bracket(self, delta: SomeNumbers) -> tuple[FloatArray, FloatArray]: ...
    def bracket(self, delta: float | SomeNumbers) -> tuple[float | FloatArray, float | FloatArray]:
        """Return (lower, upper) bounds on epsilon. Their distance is the numerical uncertainty."""
        values = numbers("delta", delta, 0.0, 1.0, open_low=True, open_high=True)
        with np.errstate(all="ignore"):
            lower, upper = self.pair.bracket(np.log(values))
        return _plain(np.maximum(lower, 0.0)), _plain(np.where(np.isnan(upper), np.inf, upper))


def _plain(values: Floats) -> float | FloatArray:
    return values if isinstance(values, np.ndarray) and values.ndim else float(values)
