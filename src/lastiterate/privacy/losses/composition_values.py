"""Composition's values: integrals along lines with a cutoff that is flat on top. Two of them must agree.

With K the cumulant generating function of the total loss under P (see `loss_cumulant`) and z = theta + iu, theta > 0,

    delta(epsilon) = 1/pi  integral_0^inf  Re exp(K(z) - z epsilon) / (z (z + 1)) du;

1/z instead gives P(loss > epsilon), and 1/(z + 1) gives e^epsilon Q(loss > epsilon). For theta in (-1, 0) the first
becomes delta - 1, and for theta < -1 it becomes delta - 1 + e^epsilon, by the residues of the poles.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from lastiterate.common.types import FloatArray
from lastiterate.privacy.losses.loss_cumulant import LossCumulant
from lastiterate.privacy.losses.loss_line import (
    beside,
    between,
    capped_for,
    chernoff,
    chernoff_bound_at,
    flat_line,
    flat_width,
    saddle,
    start,
    tilt_for,
)
from lastiterate.privacy.mixtures.fourier import Line, Unreliable
from lastiterate.privacy.mixtures.solve import Side, solve

if TYPE_CHECKING:
    from lastiterate.common.types import ComplexArray, Floats

AGREEMENT = 1e-9  # of two lines, relative to epsilon, or to _SMALL if that is larger
_SMALL = 1e-3
_LEFT_OUT = math.log(1e-12)  # of delta, in large losses that are left out; so much less delta is then asked for
_AGREEMENT_OF_DELTA = 1e-7  # of two lines on log delta
_AGREEMENT_OF_FNR = 1e-7
_AGREEMENT_AT_ZERO = 1e-3  # of two lines on log delta(0), where that is less than asked for
_ALL_BELOW = 100.0  # the tilt, in units of 1 / (epsilon - edge): losses at the edge are exp(-_ALL_BELOW) of delta
_UNDERFLOW = -750.0  # log of a delta that is 0 as a float
_OF_LOSSES = 1e-12  # relative error of a mean of losses
_LEFT_OUT_OF_KL = 1e-34  # far more than losses add that are left out, with probability exp(-90)
_LEAST = 1e-11  # of a sum against its moduli: rounding differs between lines, which must agree to far less than that
_NARROWER = 1.3  # every line has a narrower cutoff than the one before
_FINER = 1.12  # every other line has finer grids, and another tilt
_MOST_LINES = 9
_STRICT_LINES = 4  # after so many, agreement relative to max(1, epsilon) will do
_FAR_OFF = 0.3  # of a guess, relative to it
_MOST_TRIES = 24
_MOST_THRESHOLDS = 60  # on the way to the one that is sought


def epsilon_of(cumulant: LossCumulant, log_delta: float) -> tuple[float, float]:
    """Epsilon for one direction, and by how much two lines differ."""
    if costs_nothing(cumulant, log_delta):
        return 0.0, 0.0
    uncapped = cumulant.leaving_out(log_delta + _LEFT_OUT)
    log_delta += math.log1p(-math.exp(_LEFT_OUT))
    theta, value = start(uncapped, log_delta)
    value, at_value, width, narrower = max(value, 0.0), math.nan, 0.0, 0
    for which in range(_MOST_TRIES):
        width = max(_NARROWER**-narrower * flat_width(uncapped, value), 0.2 * width)  # the guess may be far off
        cumulant = capped_for(uncapped, value, width, cumulant if which else None)
        theta = tilt_for(cumulant, value, near=theta)
        tilt = theta if which % 2 == 0 else beside(cumulant, theta)
        line = flat_line(cumulant, tilt, value, width, -log_delta, resolution=_fineness(which))
        before, at_before = value, at_value
        value, at_value = _solve(line, cumulant, log_delta, value)
        difference = abs(value - before)
        least = _SMALL if narrower < _STRICT_LINES else 1.0
        if abs(at_value - at_before) < _AGREEMENT_AT_ZERO and difference <= AGREEMENT * max(least, value):
            return value, difference
        narrower += difference < _FAR_OFF * before  # or else the line was made for another epsilon, and says little
        if narrower > _MOST_LINES:
            break
    raise Unreliable


def costs_nothing(cumulant: LossCumulant, log_delta: float) -> bool:
    """Whether Pinsker's inequality, delta(0) <= sqrt(KL / 2), shows epsilon to be 0.

    The losses whose mean is KL are about their standard deviation in size, which rounding is relative to.
    """
    _, mean, variance = cumulant.real(0.0)
    rounding = _OF_LOSSES * math.sqrt(float(cumulant.counts.sum()) * variance)
    return 0.5 * math.log(0.5 * (1.000001 * max(mean, 0.0) + rounding + _LEFT_OUT_OF_KL)) <= log_delta


def _fineness(which: int) -> float:
    return 1.0 if which % 2 == 0 else _FINER


def _solve(line: Line, cumulant: LossCumulant, log_delta: float, guess: float) -> tuple[float, float]:
    """The epsilon >= 0 at which delta, on one line, is what is asked for, or less at 0; and log delta there.

    That is NaN where rounding leaves too few digits.
    """
    over_p, over_q = 1.0 / (line.z * (line.z + 1.0)), 1.0 / (line.z + 1.0)

    def side(epsilon: Floats) -> Side:
        at = float(epsilon)
        scale, (delta, outside) = _sums(line, at, over_p, over_q)
        unit = math.exp(-scale) if scale > -700.0 else 0.0
        apart, apart_outside = cumulant.apart(at)
        delta, outside = delta + unit * apart, outside + unit * apart_outside
        log_value = scale + math.log(delta) if delta > 0.0 else -math.inf  # lost in rounding: smaller than asked for
        return Side(epsilon, np.float64(1.0), np.float64(log_value), np.float64(-outside / delta))

    high = np.float64(2.0 * abs(guess) + 1.0)
    capped = cumulant.remove and math.isfinite(cumulant.cap)
    if capped:
        high = np.float64(cumulant.cap + cumulant.edge())  # beyond it not all of the losses apart count
    while float(side(high).log_delta) > log_delta and high < 1e300:
        if capped:
            return float(2.0 * high - cumulant.edge()), math.nan
        high = 2.0 * high
    found = max(float(solve(side, np.float64(log_delta), np.float64(guess), -high, high)[0]), 0.0)
    log_found = float(side(np.float64(found)).log_delta)
    log_moduli = line.log_values.real - line.theta * found
    scale = float(log_moduli.max())
    moduli = float(np.exp(log_moduli - scale) @ np.abs(over_p)) * line.spacing / math.pi
    return found, log_found if log_found - scale > math.log(_LEAST * moduli) else math.nan


def _sums(line: Line, loss: float, *kernels: ComplexArray) -> tuple[float, list[float]]:
    """log of a scale, and 1/pi times the integrals of Re exp(K(z) - z loss) kernel(z) in that scale."""
    exponent = line.log_values - line.z * loss
    scale = float(exponent.real.max())
    terms = np.exp(exponent - scale)
    return scale, [float((terms @ kernel).real) * line.spacing / math.pi for kernel in kernels]


def log_delta_of(cumulant: LossCumulant, epsilon: float) -> float:
    """log delta of one direction at any real epsilon."""
    if epsilon >= cumulant.largest_loss():
        return -math.inf
    if epsilon > 0.0 and (bound := chernoff_bound_at(cumulant, epsilon)) < _UNDERFLOW:
        return bound
    if (apart := _log_apart(cumulant, epsilon)) is not None:
        return apart
    cumulant = _leaving_out_for(cumulant, epsilon)
    before = math.inf
    for which in range(_MOST_LINES):
        width = _NARROWER**-which * flat_width(cumulant, epsilon)
        value = _log_delta_on(capped_for(cumulant, epsilon, width), epsilon, width, which)
        if abs(value - before) <= _AGREEMENT_OF_DELTA:
            return min(value + math.exp(cumulant.log_left_out - value), 0.0)
        before = value
    raise Unreliable


def _log_apart(cumulant: LossCumulant, epsilon: float) -> float | None:
    """log delta where the losses apart are all of it: Chernoff's bound on the others is next to nothing."""
    if not cumulant.remove or epsilon < 0.0:
        return None
    capped = capped_for(cumulant, epsilon, flat_width(cumulant, epsilon))
    apart, _ = capped.apart(epsilon)
    if not (math.isfinite(capped.cap) and apart > 0.0):
        return None
    try:
        others = chernoff(capped, _ALL_BELOW / (epsilon - capped.edge()), epsilon)
    except Unreliable:
        return None
    share = math.exp(float(np.logaddexp(others, capped.log_left_out)) - math.log(apart))
    return min(math.log(apart) + share, 0.0) if share < math.exp(_LEFT_OUT) else None


def _log_delta_on(cumulant: LossCumulant, epsilon: float, width: float, which: int) -> float:
    """log delta from one line: directly, or by what the poles passed add to the integral."""
    theta = tilt_for(cumulant, epsilon) if saddle(cumulant, epsilon) > -0.1 else between(cumulant, epsilon)
    tilt = theta if which % 2 == 0 else beside(cumulant, theta, 0.0 if theta > -0.5 else -1.0)
    known_part = _known_part(cumulant, epsilon, tilt)
    exponent = tilt * epsilon - cumulant.real(tilt)[0]
    if known_part > 0.0:
        exponent = min(exponent, -math.log(known_part))
    poles = (0.0,) if tilt > 0.0 else (0.0, -1.0)
    line = flat_line(cumulant, tilt, epsilon, width, exponent, poles, _fineness(which))
    scale, (integral,) = _sums(line, epsilon, 1.0 / (line.z * (line.z + 1.0)))
    if known_part == 0.0:
        return scale + math.log(integral) if integral > 0.0 else -math.inf
    delta = math.exp(scale) * integral + known_part
    return math.log(delta) if delta > 0.0 else -math.inf


def _known_part(cumulant: LossCumulant, epsilon: float, tilt: float) -> float:
    """Delta less the integral: the losses apart, and residues of the poles that lie right of the line."""
    apart, apart_outside = cumulant.apart(epsilon)
    if tilt > 0.0:
        return apart
    if not cumulant.remove:  # what is left out by the cap does not count
        within = math.exp(cumulant.real(0.0)[0])
        return within if tilt > -1.0 else within - math.exp(epsilon + cumulant.real(-1.0)[0])
    return 1.0 - apart_outside if tilt > -1.0 else -math.expm1(epsilon)


def _leaving_out_for(cumulant: LossCumulant, epsilon: float) -> LossCumulant:
    """Leaving out little against delta(epsilon), which Chernoff's bound and the losses apart foretell."""
    left_out = -60.0
    for _ in range(60):
        trial = cumulant.leaving_out(left_out)
        capped = capped_for(trial, epsilon, flat_width(trial, epsilon))
        try:
            centre = saddle(capped, epsilon)
        except Unreliable:  # all losses are smaller
            left_out *= 2.0
            continue
        value, _, variance = capped.real(centre)
        foretold = min(value - centre * epsilon, 0.0) - math.log1p(max(centre, 0.0) * (1.0 + math.sqrt(variance))) - 4.0
        apart = capped.apart(epsilon)[0]
        if apart > 0.0:
            foretold = max(foretold, math.log(apart))
        if left_out <= foretold + _LEFT_OUT:
            return trial
        left_out = min(foretold + _LEFT_OUT - 4.0, 1.2 * left_out)
    raise Unreliable


def fnr_of(cumulant: LossCumulant, fpr: float) -> float:
    """The false negative rate of the likelihood ratio test whose false positive rate is ``fpr``.

    A line tells the rates at thresholds that are about as far from the edge of the loss as the one it is made for.
    """
    above = fpr <= 0.5
    log_rate = math.log(fpr if above else 1.0 - fpr)
    uncapped = cumulant.leaving_out(log_rate + _LEFT_OUT)
    edge, loss = uncapped.edge(), start(uncapped, log_rate, pole=-1.0, sign=1.0 if above else -1.0)[1]
    loss = max(loss, edge + 1e-2 * uncapped.core)
    before, narrower = math.inf, 0
    for which in range(_MOST_THRESHOLDS):
        width = _NARROWER**-narrower * flat_width(uncapped, loss)
        reach = edge + 0.5 * (loss - edge), edge + 2.0 * (loss - edge)
        cumulant = capped_for(uncapped, reach[1], width)
        tilt = between(cumulant, loss)
        tilt = tilt if which % 2 == 0 else beside(cumulant, tilt, 0.0 if tilt > -0.5 else -1.0)
        line = flat_line(cumulant, tilt, loss, width, -log_rate, (0.0, -1.0), _fineness(which))
        loss, value = _fnr_on(line, cumulant, fpr, loss, *reach)
        if reach[0] < loss < reach[1]:
            if abs(value - before) <= _AGREEMENT_OF_FNR:
                return min(max(value, 0.0), 1.0 - fpr)
            before, narrower = value, narrower + 1
        if narrower > _MOST_LINES:
            break
    raise Unreliable


def _fnr_on(
    line: Line, cumulant: LossCumulant, fpr: float, loss: float, low: float, high: float
) -> tuple[float, float]:
    """The threshold within reach at which Q(loss > threshold) is ``fpr`` on one line, and the false negative rate.

    P(loss <= l) + e^l (Q(loss > l) - fpr) is the rate at the right l, and off by a square of what l is off by.
    """
    over_p, over_q, one = 1.0 / line.z, 1.0 / (line.z + 1.0), np.ones_like(line.z)
    size, theta = high - low, line.theta
    more, without = cumulant.with_large_losses
    all_below = 1.0 - more - without if theta > 0.0 else 0.0
    all_over = without if theta > -1.0 else 1.0
    for _ in range(60):
        scale, (p, q, density) = _sums(line, loss, over_p, over_q, one)
        below = all_below - math.exp(scale) * p
        over = all_over + math.exp(scale - loss) * q
        low, high = (loss, high) if over > fpr else (low, loss)
        step = (over - fpr) * math.exp(loss - scale) / density if density > 0.0 else math.inf
        if abs(step) < 1e-7 * size or high - low < 1e-7 * size:
            break
        loss = loss + step if low < loss + step < high else 0.5 * (low + high)
    return loss, below + math.exp(loss) * (over - fpr)


# Error rates where nearly all of the loss lies at its edge: little noise, or a rare canary.
#
# The total loss is at least its edge, sum_t log(1 - q_t), and with little noise hardly more unless the canary was
# used. The best threshold then is so close to the edge that no line resolves it. Two closed forms enclose the rate
# there.


def fnr_bounds(cumulant: LossCumulant, fpr: float) -> tuple[float, float]:
    """A lower and an upper bound on the smallest false negative rate, P over Q.

    From below: the run has the canary in none of the sampled batches with probability exp(edge), and then there are
    only the steps that have it for sure, one Gaussian mechanism. From above: the test that says "in" if any sampled
    step exceeds a threshold of its own. That holds for a group too, of which only one example is then looked for.
    """
    if cumulant.mirrored:
        return 0.0, 1.0 - fpr
    sampled = cumulant.rates < 1.0
    counts, rates, sigmas = cumulant.counts[sampled], cumulant.rates[sampled], cumulant.sigmas[sampled]
    mu = math.sqrt(float(np.sum(cumulant.counts[~sampled] / cumulant.sigmas[~sampled] ** 2))) * cumulant.group
    unseen = 1.0 - fpr if mu == 0.0 else float(ndtr(-ndtri(fpr) - mu))
    lower = math.exp(float(counts @ np.log1p(-rates)) * cumulant.group) * unseen
    upper = _of_tests_step_by_step(counts, rates, 1.0 / sigmas, fpr) if counts.size else 1.0 - fpr
    return min(lower, upper), min(upper, 1.0 - fpr)


def _of_tests_step_by_step(counts: FloatArray, rates: FloatArray, slopes: FloatArray, fpr: float) -> float:
    """The false negative rate where any step alone decides for "in", all of them at the same likelihood ratio."""
    log_odds = np.log(rates) - np.log1p(-rates)
    goal, widest = math.log1p(-fpr), float(np.max(slopes * (0.5 * slopes + 40.0) + np.abs(log_odds)))
    low, high = -widest, widest  # of the logarithm of the likelihood ratio
    for _ in range(100):
        middle = 0.5 * (low + high)
        thresholds = 0.5 * slopes + (middle - log_odds) / slopes
        enough = float(counts @ log_ndtr(thresholds)) >= goal
        low, high = (low, middle) if enough else (middle, high)
    thresholds = 0.5 * slopes + (high - log_odds) / slopes
    accepted = np.logaddexp(np.log1p(-rates) + log_ndtr(thresholds), np.log(rates) + log_ndtr(thresholds - slopes))
    return math.exp(min(float(counts @ accepted), 0.0))
