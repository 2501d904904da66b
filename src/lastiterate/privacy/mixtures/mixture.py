"""The pair S + N against N (the paper's equation 1), and the queries to the kernels that evaluate it.

S is not negative here. The privacy loss f(y) = log p(y) / q(y) then increases along y. So the best tests are the sets
{>= y} and {<= y}, and one threshold y gives both epsilon = f(y) and delta by the formulas of Appendix A ("Computing
delta from epsilon"). The paper bisects; here Newton's method finds the y with the given delta.

A *kernel* computes the pair near a given y. The queries are the same for all kernels. Each entry of an array argument
is a separate run or query.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Protocol

import numpy as np
from scipy.special import log_ndtr, ndtri, ndtri_exp

from lastiterate.common.types import Floats
from lastiterate.privacy.gaussian_dp import find_mu, find_mu_bracket, mu_at
from lastiterate.privacy.mixtures.fourier import Unreliable
from lastiterate.privacy.mixtures.solve import Side, each, invert, pick, solve, some

_ROUNDED_TO_ZERO = 1e-12  # an epsilon below this is only rounding error
_FAR_FETCHED = 1e6
_FURTHEST = 38.5  # standard deviations beyond which N has no mass that a float could hold


class Local(Protocol):
    """Values of a pair near one threshold y: f(y) with f'(y), and tail probabilities of P = S + N."""

    def covers(self, y: Floats) -> bool: ...  # is this pair accurate at y?
    def remove(self, y: Floats) -> Side: ...  # P over Q along y: the set {>= y}
    def add(self, r: Floats) -> Side: ...  # Q over P along r = -y: the set {<= y}; delta falls along r too
    def loss(self, y: Floats) -> tuple[Floats, Floats]: ...
    def log_lower(self, y: Floats) -> Floats: ...
    def log_upper(self, y: Floats) -> Floats: ...


class Kernel(Protocol):
    """The pair near any threshold. ``high`` is the largest value of S."""

    @property
    def noise(self) -> Floats: ...
    @property
    def mean(self) -> Floats: ...
    @property
    def variance(self) -> Floats: ...
    @property
    def high(self) -> Floats: ...

    def start(self, log_delta: Floats) -> tuple[Floats, Local]:
        """Return an estimate of the threshold with the given delta, and the pair near it."""

    def near(self, y: Floats, *, upper: bool) -> Local:
        """Return the pair near y, accurate for its upper or its lower tail."""

    def row(self, index: int) -> Kernel:
        """Return the kernel of one entry, if parameters are arrays."""


class Moving:
    """A kernel at a changing threshold. The local pair is replaced if it does not cover the threshold."""

    def __init__(self, kernel: Kernel, *, upper: bool, local: Local | None = None) -> None:
        self.kernel, self.upper, self.local = kernel, upper, local

    def at(self, y: Floats) -> Local:
        if self.local is None or not self.local.covers(y):
            self.local = self.kernel.near(y, upper=self.upper)
        return self.local


def epsilon(kernel: Kernel, log_delta: Floats) -> Floats:
    """Return the smallest epsilon >= 0 at which P over Q and Q over P both have at most the given delta."""
    y, local = kernel.start(log_delta)
    moving = Moving(kernel, upper=True, local=local)
    top = kernel.high - kernel.noise * np.minimum(ndtri_exp(log_delta), 0.0)
    y = np.minimum(np.maximum(y, 1e-9 * top), 0.999 * top)
    result, _ = solve(lambda y: moving.at(y).remove(y), log_delta, y, 0.0 * y, top)
    result = pick(result < _ROUNDED_TO_ZERO, 0.0, result)
    undecided = _bound_add(kernel, result) > log_delta
    if not some(undecided):
        return result
    if not isinstance(result, np.ndarray):
        return _at_least_add(kernel, log_delta, result)
    goals = np.broadcast_to(log_delta, result.shape)
    for index in np.flatnonzero(undecided).tolist():
        result[index] = _at_least_add(kernel.row(index), goals[index], result[index])
    return result


def log_delta(kernel: Kernel, epsilon: Floats) -> Floats:
    """Return the log of the larger of the deltas of P over Q and of Q over P at epsilon >= 0."""
    moving = Moving(kernel, upper=True)
    low = kernel.noise * np.sqrt(2.0 * epsilon)  # f(y) <= y^2 / (2 noise^2)
    y = _threshold(moving, epsilon, low)
    local = moving.at(y)
    result = log_delta_at(local.remove(y), local.loss(y)[0], epsilon)
    if not some(_bound_add(kernel, epsilon) > result):
        return result
    return np.maximum(result, log_delta_add(kernel, epsilon))


def log_delta_add(kernel: Kernel, epsilon: Floats) -> Floats:
    """Return the log of delta for Q over P, or -inf if -f is below epsilon everywhere."""
    moving = Moving(kernel, upper=False)
    y = _threshold(moving, -epsilon, -_FURTHEST * kernel.noise)
    local = moving.at(y)
    side = local.add(-y)
    reached = side.loss >= epsilon - 1e-9 * np.maximum(1.0, epsilon)
    return pick(reached, log_delta_at(side, -local.loss(y)[0], epsilon), -np.inf)


def log_fnr(kernel: Kernel, fpr: Floats) -> Floats:
    """Return the log of the smallest false negative rate of a test with false positive rate ``fpr``."""
    y = -kernel.noise * ndtri(fpr)
    return kernel.near(y, upper=False).log_lower(y)


def mu(kernel: Kernel, smallest_error: Floats) -> Floats:
    """Return the mu of the Gaussian mechanism with the same error rates at a false positive rate ``smallest_error``.

    No larger false positive rate has a larger mu. Let s be the noise, and y a threshold. Then mu is y / s - Phi^-1(E
    Phi((y - S) / s)), which rises along y, because phi(Phi^-1(u)) is a concave function of u.
    """
    y = -kernel.noise * ndtri(smallest_error)
    log_upper = kernel.near(y, upper=True).log_upper(y)
    return mu_at(log_upper, kernel.near(y, upper=False).log_lower(y), smallest_error)


def log_delta_at(side: Side, loss: Floats, epsilon: Floats) -> Floats:
    """Extrapolate log delta to the threshold whose loss is epsilon, to first order from a nearby loss ``loss``."""
    change = side.log_delta_slope / side.loss_slope * (epsilon - loss)
    return pick(np.abs(change) < 1e-3, side.log_delta + change, side.log_delta)


def _threshold(moving: Moving, loss: Floats, low: Floats) -> Floats:
    """Return the y at which f(y) = loss, or ``low`` if f(low) > loss."""
    kernel = moving.kernel
    square = kernel.noise * kernel.noise
    high = (loss * square + 0.5 * (kernel.variance + kernel.mean**2)) / kernel.mean  # see `_bound_add`
    high = np.maximum(high, low) + 1e-9 * kernel.noise
    if some(high > _FAR_FETCHED * (kernel.noise + kernel.high)):
        near = low + kernel.noise  # Jensen's bound is far off for a rare canary
        for _ in range(60):
            short = (near < high) & (moving.at(near).loss(near)[0] < loss)
            if not some(short):
                break
            near = pick(short, low + 2.0 * (near - low), near)
        high = np.minimum(near, high)
    y = invert(lambda y: moving.at(y).loss(y), loss, 0.5 * (low + high), low, high)
    return np.maximum(y, low)


def _bound_add(kernel: Kernel, epsilon: Floats) -> Floats:
    """Bound log delta of Q over P from above, by Jensen's inequality f(y) >= (E[S] y - E[S^2] / 2) / noise^2."""
    mean, square = kernel.mean, kernel.noise * kernel.noise
    cut = (0.5 * (kernel.variance + mean * mean) - epsilon * square) / mean
    outer = log_ndtr(cut / kernel.noise)
    inner = epsilon - 0.5 * kernel.variance / square + log_ndtr((cut - mean) / kernel.noise)
    bound: Floats = outer + np.log1p(-np.minimum(np.exp(inner - outer), 1.0 - 1e-16))
    return bound


def _at_least_add(kernel: Kernel, log_delta: Floats, epsilon: Floats) -> Floats:
    if log_delta_add(kernel, epsilon) <= log_delta:
        return epsilon
    moving = Moving(kernel, upper=False)
    high = _FURTHEST * kernel.noise
    low = -_threshold(moving, -epsilon, -high)
    found, _ = solve(lambda r: moving.at(-r).add(r), log_delta, 0.5 * (low + high), low, high)
    return np.maximum(found, epsilon)


# Pairs that are evaluated number by number, and the numerical errors that their brackets allow for.

RELATIVE_ERROR = 1e-10  # of max(1, epsilon): rounding and terms that the kernels neglect, with room to spare
_RELATIVE_ERROR_OF_DELTA = 1e-11  # the same for delta; it matters if delta is so flat that it hardly determines epsilon


def larger_delta(log_delta: Floats) -> Floats:
    """Raise log_delta by a little more than its numerical error, but not to 0."""
    return np.minimum(log_delta + _RELATIVE_ERROR_OF_DELTA, -1e-300)


def smaller_delta(log_delta: Floats) -> Floats:
    """Lower log_delta by a little more than its numerical error."""
    return log_delta - _RELATIVE_ERROR_OF_DELTA


class SinglePair(ABC):
    """A pair that is evaluated number by number."""

    relative_error: ClassVar[float] = RELATIVE_ERROR

    def epsilon(self, log_delta: Floats) -> Floats:
        return self._each(self._epsilon, log_delta)

    def log_delta(self, epsilon: Floats) -> Floats:
        return self._each(self._log_delta, epsilon)

    def fnr(self, fpr: Floats) -> Floats:
        return self._each(self._fnr, fpr)

    def bracket(self, log_delta: Floats) -> tuple[Floats, Floats]:
        lower, upper = self._lower().epsilon(larger_delta(log_delta)), self.epsilon(smaller_delta(log_delta))
        error = self.relative_error * np.maximum(1.0, upper)
        return lower - error, upper + error

    def mu(self, smallest_error: float) -> float:
        return find_mu(self.epsilon, smallest_error)

    def mu_bracket(self, smallest_error: float) -> tuple[float, float]:
        return find_mu_bracket(self.epsilon, self.bracket, smallest_error)

    def _lower(self) -> SinglePair:
        """Return a pair that reveals no more than this one, for the lower end of the bracket."""
        return self

    @abstractmethod
    def _epsilon(self, log_delta: np.float64) -> Floats | float: ...
    @abstractmethod
    def _log_delta(self, epsilon: np.float64) -> Floats | float: ...
    @abstractmethod
    def _fnr(self, fpr: np.float64) -> Floats | float: ...

    def _each(self, function: Callable[[np.float64], Floats | float], values: Floats) -> Floats:
        return each(function, values)


class ReliablePair(SinglePair):
    """A pair that raises ValueError if its kernel is too inaccurate."""

    too_little_noise: ClassVar[str]

    def _each(self, function: Callable[[np.float64], Floats | float], values: Floats) -> Floats:
        try:
            return each(function, values)
        except Unreliable:
            raise ValueError(self.too_little_noise) from None
