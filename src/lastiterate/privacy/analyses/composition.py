"""The standard analysis: every iterate is released, and the privacy losses of the steps add up.

With K the cumulant generating function of the total loss under P (see `loss_cumulant`) and z = theta + iu, theta > 0,

    delta(epsilon) = 1/pi  integral_0^inf  Re exp(K(z) - z epsilon) / (z (z + 1)) du;

1/z instead gives P(loss > epsilon), and 1/(z + 1) gives e^epsilon Q(loss > epsilon). For theta in (-1, 0) the first
becomes delta - 1, the residue of the pole at 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.privacy.analyses.composition_fallback import Fallback, last_iterate_of
from lastiterate.privacy.curve import Pair, PrivacyCurve
from lastiterate.privacy.losses.loss_cumulant import LossCumulant, loss_cumulant
from lastiterate.privacy.losses.loss_line import (
    add_matters,
    around,
    beside,
    chernoff,
    clear_of,
    line_through,
    saddle,
    start,
)
from lastiterate.privacy.mixtures.contour import Line, Unreliable
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.pairs import NothingPair, pair_of
from lastiterate.privacy.mixtures.rows import Side, each
from lastiterate.privacy.mixtures.solve import solve
from lastiterate.run import DPSGD

if TYPE_CHECKING:
    from lastiterate.values import Array

AGREEMENT = 1e-8  # of two lines, relative to max(1, epsilon); farther apart means not converged
_LEFT_OUT = 1e-8  # of delta, in large losses that are left out; so much less delta is then asked for
_AGREEMENT_OF_DELTA = 1e-5  # of two lines on log delta
_AGREEMENT_OF_FNR = 1e-7
_LEAST = 1e-12  # of a sum against its moduli
_FINER = 1.3  # resolution of the second line


def composition(run: DPSGD) -> PrivacyCurve:
    """The standard analysis, a guarantee: an adversary who sees every iterate, and any batches but the canary's.

    It holds for Poisson sampling and for full batches; others are refused.
    """
    if not run.amplifies:
        raise ValueError(_refusal(run))
    return PrivacyCurve(_pair(run), "composition", is_guarantee=True)


def _refusal(run: DPSGD) -> str:
    what = "shuffled batches" if run.sampling == "shuffled" else "batches of fixed size"
    bound = "no amplification: Gaussian with mu = sqrt(epochs) / sigma"
    if run.sampling == "fixed":
        bound = "no amplification: each step a Gaussian with mu = 1 / sigma where the example is in its batch"
    return (
        f"composition is not valid with sampling {run.sampling!r}: the standard analysis assumes Poisson sampling and "
        f"may be too low for {what}; the bound that holds is lastiterate.no_amplification ({bound})"
    )


def _pair(run: DPSGD) -> Pair:
    """Closed forms where there are any, and otherwise the contour."""
    cumulant = loss_cumulant(run)
    none = np.empty(0)
    if not cumulant.counts.size:
        return NothingPair()
    if np.all(cumulant.rates == 1.0):
        # One Gaussian mechanism, in units in which it is the heuristic's to the last digit.
        noise = float(cumulant.sigmas[0]) * math.sqrt(float(cumulant.counts[0]))
        mu = math.sqrt(float(np.sum(cumulant.counts / cumulant.sigmas**2)))
        constant = float(cumulant.counts[0]) if cumulant.counts.size == 1 else mu * noise
        return pair_of(Law(noise, constant, none, none, none))
    if cumulant.counts.size == 1 and cumulant.counts[0] == 1.0:
        return pair_of(Law(float(cumulant.sigmas[0]), 0.0, cumulant.counts, cumulant.rates, np.ones(1)))
    return CompositionPair(cumulant)


@dataclass(frozen=True)
class CompositionPair:
    """Sums of privacy losses. Each value comes from two lines that must agree, or else from the fallback."""

    cumulant: LossCumulant

    def epsilon(self, log_delta: Array) -> Array:
        return each(self._epsilon, log_delta)

    def log_delta(self, epsilon: Array) -> Array:
        return each(self._log_delta, epsilon)

    def fnr(self, fpr: Array) -> Array:
        return each(self._fnr, fpr)

    def bracket(self, log_delta: Array) -> tuple[Array, Array]:
        bounds = [self._bracket(float(value)) for value in np.ravel(log_delta)]
        lower, upper = (np.reshape(column, np.shape(log_delta))[()] for column in zip(*bounds, strict=True))
        return lower, upper

    @cached_property
    def _add(self) -> LossCumulant:
        return self.cumulant.other_direction()

    @cached_property
    def _last_iterate(self) -> Pair:
        return last_iterate_of(self.cumulant)

    @cached_property
    def _fallback(self) -> Fallback:
        return Fallback(self.cumulant)

    def _epsilon(self, log_delta: float) -> float:
        try:
            return self._by_contour(log_delta)[0]
        except (Unreliable, OverflowError):
            return self._fallback.epsilon(log_delta)

    def _bracket(self, log_delta: float) -> tuple[float, float]:
        try:
            value, error = self._by_contour(log_delta)
        except (Unreliable, OverflowError):
            return self._fallback.lower_epsilon(log_delta), self._fallback.epsilon(log_delta)
        return max(value - error, 0.0), value + error

    def _by_contour(self, log_delta: float) -> tuple[float, float]:
        """Epsilon, and by how much it may be off."""
        value, error = _epsilon(self.cumulant, log_delta)
        if add_matters(self._add, value, log_delta):
            other, other_error = _epsilon(self._add, log_delta)
            value, error = max(value, other), max(error, other_error)
        if value + error < float(self._last_iterate.epsilon(np.float64(log_delta))):  # all iterates tell more than one
            raise Unreliable
        return value, error

    def _log_delta(self, epsilon: float) -> float:
        try:
            result = _log_delta(self.cumulant, epsilon)
            if add_matters(self._add, epsilon, result):
                result = max(result, _log_delta(self._add, epsilon))
        except (Unreliable, OverflowError):
            return self._fallback.log_delta(epsilon)
        return result

    def _fnr(self, fpr: float) -> float:
        try:
            return _fnr(self.cumulant, fpr)
        except (Unreliable, OverflowError):
            return self._fallback.fnr(fpr)


def _epsilon(cumulant: LossCumulant, log_delta: float) -> tuple[float, float]:
    """Epsilon for one direction, and by how much it may be off."""
    divergence = cumulant.real(0.0)[1]
    if 0.5 * math.log(max(0.5 * divergence, 1e-300)) <= log_delta:  # Pinsker: delta(0) <= sqrt(KL / 2)
        return 0.0, 0.0
    try:
        return _epsilon_of(cumulant, log_delta)
    except Unreliable:
        without = cumulant.without_largest(log_delta + math.log(_LEFT_OUT))
        return _epsilon_of(without, log_delta + math.log1p(-_LEFT_OUT))


def _epsilon_of(cumulant: LossCumulant, log_delta: float) -> tuple[float, float]:
    """Epsilon from two lines, with different grids, that must agree."""
    theta, guess = start(cumulant, log_delta)
    value = _solve(line_through(cumulant, theta, guess, (0.0,), -log_delta), log_delta, guess)
    second = line_through(cumulant.finer(_FINER), beside(cumulant, theta), value, (0.0,), -log_delta, _FINER)
    difference = abs(value - _solve(second, log_delta, value))
    allowed = AGREEMENT * max(1.0, value)
    if not difference <= allowed:
        raise Unreliable
    return max(value, 0.0), 3.0 * difference + allowed


def _solve(line: Line, log_delta: float, guess: float) -> float:
    """The epsilon at which delta, on one line, has the given value."""
    over_p, over_q = 1.0 / (line.z * (line.z + 1.0)), 1.0 / (line.z + 1.0)

    def side(epsilon: Array) -> Side:
        scale, delta = line.integral(float(epsilon), over_p, -math.inf)
        _, outside = line.integral(float(epsilon), over_q, -math.inf)
        log_value = scale + math.log(delta) if delta > 0.0 else -math.inf  # lost in rounding: smaller than asked for
        return Side(epsilon, np.float64(1.0), np.float64(log_value), np.float64(-outside / delta))

    high = np.float64(2.0 * abs(guess) + 1.0)
    while float(side(high).log_delta) > log_delta and high < 1e300:
        high = 2.0 * high
    return float(solve(side, np.float64(log_delta), np.float64(guess), -high, high)[0])


def _log_delta(cumulant: LossCumulant, epsilon: float) -> float:
    """log delta of one direction; what is left out of the loss, if anything, is small against the result."""
    try:
        return _log_delta_of(cumulant, epsilon)
    except Unreliable:
        result = chernoff(cumulant, epsilon)
    for _ in range(6):
        left_out = result + math.log(_LEFT_OUT)
        result = _log_delta_of(cumulant.without_largest(left_out), epsilon)
        if left_out < result + 0.75 * math.log(_LEFT_OUT):  # at most a millionth of the result
            return result + math.log1p(math.exp(left_out - result))
    raise Unreliable


def _log_delta_of(cumulant: LossCumulant, epsilon: float) -> float:
    """log delta, directly or as what is missing to one."""
    theta = around(cumulant, saddle(cumulant, epsilon), epsilon)
    values = []
    for tilt, resolution in ((theta, 1.0), (beside(cumulant, theta), _FINER)):
        exponent = tilt * epsilon - cumulant.real(tilt)[0]
        line = line_through(cumulant.finer(resolution), tilt, epsilon, (0.0, -1.0), exponent, resolution)
        kernel = 1.0 / (line.z * (line.z + 1.0))
        if tilt > 0.0:
            scale, delta = line.integral(epsilon, kernel, _LEAST)
            values.append(scale + math.log(delta))
        else:
            scale, missing = line.integral(epsilon, -kernel, _LEAST)
            values.append(math.log1p(-math.exp(scale) * missing))
    if not abs(values[0] - values[1]) <= _AGREEMENT_OF_DELTA:
        raise Unreliable
    return values[0]


def _fnr(cumulant: LossCumulant, fpr: float) -> float:
    """The false negative rate of the likelihood ratio test whose false positive rate is ``fpr``."""
    above = fpr <= 0.5  # the smaller tail of Q is the easier one, unless the loss hardly varies there
    for tail in (above, not above):
        try:
            value, other = (_fnr_from(cumulant, fpr, tail, resolution) for resolution in (1.0, _FINER))
        except Unreliable:
            continue
        if abs(value - other) <= _AGREEMENT_OF_FNR:
            return value
    raise Unreliable


def _fnr_from(cumulant: LossCumulant, fpr: float, above: bool, resolution: float) -> float:
    """The same, from the tail of Q above the threshold or from the one below it, at one resolution."""
    cumulant = cumulant.finer(resolution)
    sign = 1.0 if above else -1.0
    log_rate = math.log(fpr if above else 1.0 - fpr)
    theta, guess = start(cumulant, log_rate, pole=-1.0, sign=sign)
    deviation = math.sqrt(cumulant.real(theta)[2])

    def side(r: Array) -> Side:
        loss = sign * float(r)
        line, log_tails = _tails(cumulant, loss, -1.0, resolution)
        log_tail = log_tails[0 if above else 1]
        scale, density = line.integral(loss, 1.0, -math.inf)
        slope = -math.exp(scale - loss - log_tail) * density
        return Side(r, np.float64(1.0), np.float64(log_tail), np.float64(slope))

    low = high = np.float64(sign * guess)
    while side(low).log_delta < log_rate:
        low -= 2.0 * deviation
    while side(high).log_delta > log_rate:
        high += 2.0 * deviation
    found, _ = solve(side, np.float64(log_rate), 0.5 * (low + high), low, high, floor=-math.inf)
    if not abs(float(side(found).log_delta) - log_rate) < _AGREEMENT_OF_FNR:
        raise Unreliable
    return math.exp(_tails(cumulant, sign * float(found), 0.0, resolution)[1][1])


def _tails(cumulant: LossCumulant, loss: float, pole: float, resolution: float) -> tuple[Line, tuple[float, float]]:
    """A line at its saddle point, and log P(total > loss), log P(total <= loss); under Q for the pole at -1."""
    theta = clear_of(cumulant, saddle(cumulant, loss), pole)
    exponent = (theta - pole) * loss - cumulant.real(theta)[0]
    line = line_through(cumulant, theta, loss, (pole,), exponent, resolution, order=1)
    above = theta > pole
    scale, tail = line.integral(loss, (1.0 if above else -1.0) / (line.z - pole), _LEAST)
    direct = scale + pole * loss + math.log(tail)
    other = math.log1p(-min(math.exp(direct), 1.0 - 1e-16))
    return line, (direct, other) if above else (other, direct)
