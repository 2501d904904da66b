"""PrivacyCurve: what every analysis returns. It says how well a run's output tells whether the canary was in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from lastiterate.values import Array, numbers


class Pair(Protocol):
    """Two distributions, P (canary in) and Q (out), by hockey-stick divergences. Arguments are arrays or numbers."""

    def epsilon(self, log_delta: Array) -> Array:
        """The smallest epsilon >= 0 for which both directions have at most this delta."""

    def log_delta(self, epsilon: Array) -> Array:
        """log of the larger of the two directions' delta."""

    def fnr(self, fpr: Array) -> Array:
        """The smallest false negative rate of a test of Q against P, 0 < fpr < 1."""

    def bracket(self, log_delta: Array) -> tuple[Array, Array]:
        """Bounds on epsilon that the numerical error certifies."""


@dataclass(frozen=True)
class PrivacyCurve:
    """Epsilon against delta, and the trade-off of error rates, for one analysis of one run.

    Scalars in, floats out; arrays in, arrays out. ``analysis`` names the analysis, and ``is_guarantee`` says whether
    its epsilon bounds what any attack can achieve, or predicts it under assumptions that the run may not meet.
    """

    pair: Pair
    analysis: str
    is_guarantee: bool

    @property
    def proved(self) -> tuple[str, ...]:
        """Which ends of `bracket` are theorems, of "lower" and "upper"; the others rest on estimates of errors."""
        return tuple(getattr(self.pair, "proved_ends", ()))

    def epsilon(self, delta: Any) -> Any:
        """The epsilon of (epsilon, delta)-DP."""
        values = numbers("delta", delta, 0.0, 1.0, open_low=True, open_high=True)
        with np.errstate(all="ignore"):
            return _plain(_inf_for_nan(self.pair.epsilon(np.log(values))))

    def delta(self, epsilon: Any) -> Any:
        """The delta of (epsilon, delta)-DP."""
        values = numbers("epsilon", epsilon, 0.0)
        with np.errstate(all="ignore"):
            finite = np.minimum(values, np.finfo(np.float64).max)
            return _plain(np.where(np.isinf(values), 0.0, np.exp(np.minimum(self.pair.log_delta(finite[()]), 0.0))))

    def fnr(self, fpr: Any) -> Any:
        """The trade-off function: the smallest rate of missing the canary for a given rate of false alarms."""
        values = numbers("fpr", fpr, 0.0, 1.0)
        inside = np.clip(values, 1e-300, 1.0 - 1e-16)
        with np.errstate(all="ignore"):
            rates = np.clip(self.pair.fnr(inside[()]), 0.0, 1.0 - inside)
        return _plain(np.where(values <= 0.0, 1.0, np.where(values >= 1.0, 0.0, rates)))

    def advantage(self) -> float:
        """The largest difference of true and false positive rate that any test achieves."""
        return float(self.delta(0.0))

    def bracket(self, delta: Any) -> tuple[Any, Any]:
        """(lower, upper) bounds on epsilon; their distance is what the numerics cannot resolve."""
        values = numbers("delta", delta, 0.0, 1.0, open_low=True, open_high=True)
        with np.errstate(all="ignore"):
            lower, upper = self.pair.bracket(np.log(values))
        return _plain(np.maximum(lower, 0.0)), _plain(_inf_for_nan(upper))


def _inf_for_nan(values: Any) -> Any:
    """Where the arithmetic left the range of floats, so did epsilon."""
    return np.where(np.isnan(values), np.inf, values)


def _plain(values: Any) -> Any:
    return float(values) if np.ndim(values) == 0 else values
