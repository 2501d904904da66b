"""PrivacyCurve, the result of every analysis: how well a run's output reveals whether the canary was used. Targets.

Delta is the larger of two hockey-stick divergences (the paper's equation 2), and epsilon is its inverse (equation 3).
The trade-off function is defined as by Dong et al. (Gaussian Differential Privacy, 2022).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, overload

import numpy as np

from lastiterate.common.errors import BadArgument
from lastiterate.common.types import FloatArray, Floats
from lastiterate.common.validation import SomeNumbers, number, numbers
from lastiterate.privacy.gaussian_dp import gaussian_log_delta

SMALLEST_ERROR = 1e-10  # mu is for the error rates that are at least this large
_POINTS, _FINER = 13, 4  # the search for the largest distance of two curves: points of a grid, and grids


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

    def mu(self, smallest_error: float) -> float:
        """Return the smallest mu whose Gaussian trade-off curve lies below, wherever error rates are at least this."""

    def mu_bracket(self, smallest_error: float) -> tuple[float, float]:
        """Return a lower and an upper bound on mu that allow for the numerical error."""


_LARGEST = 1e120  # delta falls with epsilon, and squares of larger epsilons over mu overflow to NaN


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
            finite = np.minimum(values, _LARGEST)
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

    @overload
    def risk(self, baseline: float) -> float: ...
    @overload
    def risk(self, baseline: SomeNumbers) -> FloatArray: ...
    def risk(self, baseline: float | SomeNumbers) -> float | FloatArray:
        """Return the largest probability that an attack on the released model succeeds: 1 - fnr(baseline).

        ``baseline`` is the probability that the same attack succeeds against a model that was trained without the
        person's data. The attack may be membership inference, where the baseline is the rate of false alarms, or
        singling out, attribute inference or reconstruction.
        """
        return 1.0 - self.fnr(numbers("baseline", baseline, 0.0, 1.0)[()])

    def mu(self, smallest_error: float = SMALLEST_ERROR) -> float:
        """Return the smallest mu whose Gaussian trade-off curve lies below the run's, on a range of error rates.

        The range has all points of the curves at which both error rates are at least ``smallest_error``. Always state
        this range with mu: a smaller range can give a much smaller mu. Mu is not too small, as far as epsilon is not.
        """
        smallest_error = _error("smallest_error", smallest_error)
        with np.errstate(all="ignore"):
            return self.pair.mu(smallest_error)

    def mu_bracket(self, smallest_error: float = SMALLEST_ERROR) -> tuple[float, float]:
        """Return (lower, upper) bounds on mu. The upper bound is as certain as the upper end of ``bracket``."""
        smallest_error = _error("smallest_error", smallest_error)
        with np.errstate(all="ignore"):
            return self.pair.mu_bracket(smallest_error)

    def regret(self, smallest_error: float = SMALLEST_ERROR) -> float:
        """Return the largest distance between the trade-off curves of the run and of its mu (Gomez et al. 2025).

        Moved along the diagonal by this distance, the run's curve lies below the Gaussian curve. The distance is
        the largest (delta of mu - delta of the run) / (1 + e^epsilon) over all epsilons. It is small if mu says all.
        Delta is the larger one of both directions, so the run's curve is the lower one.
        """
        mu = self.mu(smallest_error)
        if not math.isfinite(mu):
            return math.inf

        def distance(epsilon: FloatArray) -> FloatArray:
            of_mu = np.exp(gaussian_log_delta(np.float64(mu), epsilon))
            return np.asarray((of_mu - self.delta(epsilon)) / (1.0 + np.exp(epsilon)))

        points = np.linspace(0.0, 0.5 * mu * mu + 3.0 * mu, _POINTS)
        for _ in range(_FINER):
            found = distance(points)
            best = int(np.argmax(found))
            points = np.linspace(points[max(best - 1, 0)], points[min(best + 1, _POINTS - 1)], _POINTS)
        return max(float(found.max()), 0.0)

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


def _error(name: str, value: float) -> float:
    return number(name, value, 1e-100, 0.5, open_high=True)


def _plain(values: Floats) -> float | FloatArray:
    return values if isinstance(values, np.ndarray) and values.ndim else float(values)


TARGETS = (("epsilon", "delta"), ("mu",), ("advantage",), ("tpr", "fpr"))
_KINDS = "epsilon with delta, mu, advantage, or tpr with fpr"
_OF_RATES = 1e-6  # relative error of an advantage or of a true positive rate


@dataclass(frozen=True)
class Target:
    """The target of a calibration: exactly one of epsilon with delta, mu, advantage, and tpr with fpr."""

    epsilon: float | None = None
    delta: float | None = None
    mu: float | None = None
    advantage: float | None = None
    tpr: float | None = None
    fpr: float | None = None

    def __post_init__(self) -> None:
        given = self.fields()
        if tuple(given) not in TARGETS:
            raise ValueError(f"the target must be exactly one of {_KINDS}, got {' and '.join(given) or 'none of them'}")
        for name, low, high in (("epsilon", 0.0, math.inf), ("mu", 0.0, math.inf), ("delta", 0.0, 1.0)):
            if name in given:
                number(name, given[name], low, high, open_low=True, open_high=name == "delta")
        for name in ("advantage", "fpr", "tpr"):
            if name in given:
                number(name, given[name], 0.0, 1.0, open_low=True, open_high=True)
        if self.tpr is not None and self.fpr is not None and not self.fpr < self.tpr:
            raise BadArgument(
                "tpr",
                f"must be above fpr, which guessing reaches with any noise, got tpr {self.tpr!r} and fpr {self.fpr!r}",
            )

    def fields(self) -> dict[str, float]:
        """Return the numbers that were given, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def quantity(self) -> str:
        """The name of the number to be reached."""
        names = {"epsilon": "epsilon", "mu": "mu", "advantage": "advantage", "tpr": "true positive rate"}
        return names[next(iter(self.fields()))]

    def words(self, spell: Callable[[float], str] = repr) -> str:
        """Return the target in words."""
        return f"{self.quantity} {spell(self.value)}{self.condition(spell)}"

    def condition(self, spell: Callable[[float], str] = repr) -> str:
        """Return the condition of the number in words. Mu is always shown with its range of error rates."""
        if self.delta is not None:
            return f" at delta {spell(self.delta)}"
        if self.fpr is not None:
            return f" at false positive rate {spell(self.fpr)}"
        return f" of Gaussian DP, where both error rates are at least {SMALLEST_ERROR:g}" if self.mu is not None else ""

    @property
    def value(self) -> float:
        """The number to be reached."""
        return next(iter(self.fields().values()))

    def of(self, curve: PrivacyCurve) -> float:
        """Return the number of this curve that must not exceed the target."""
        if self.delta is not None:
            return float(curve.epsilon(self.delta))
        if self.fpr is not None:
            return float(curve.risk(self.fpr))
        return curve.mu(SMALLEST_ERROR) if self.mu is not None else curve.advantage()

    def upper(self, curve: PrivacyCurve) -> float:
        """Return an upper bound on this number, which allows for numerical errors."""
        if self.delta is not None:
            return float(curve.bracket(self.delta)[1])
        return curve.mu_bracket(SMALLEST_ERROR)[1] if self.mu is not None else (1.0 + _OF_RATES) * self.of(curve)
