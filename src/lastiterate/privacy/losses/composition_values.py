"""Epsilon, delta and false negative rate of composition, by integrals along lines. Two lines must agree.

Let K be the cumulant generating function of the total loss under P (see `loss_cumulant`) and z = theta + iu, theta > 0.
Then

    delta(epsilon) = 1/pi  integral_0^inf  Re exp(K(z) - z epsilon) / (z (z + 1)) du.

The factor 1/z instead gives P(loss > epsilon), and 1/(z + 1) gives e^epsilon Q(loss > epsilon). For theta in (-1, 0)
the integral is delta - 1, and for theta < -1 it is delta - 1 + e^epsilon, by the residues of the poles.

If nearly all of the loss lies at the edge of its range, integrals along lines are inaccurate. Two closed forms then
enclose the false negative rate.
"""

import math

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from lastiterate.common.types import ComplexArray, FloatArray, Floats
from lastiterate.privacy.losses import loss_line as lines
from lastiterate.privacy.losses.loss_cumulant import LossCumulant
from lastiterate.privacy.mixtures.fourier import Line, Unreliable
from lastiterate.privacy.mixtures.solve import Side, solve

AGREEMENT = 1e-9  # largest difference of two lines, relative to max(epsilon, _SMALL)
_SMALL = 1e-3
_LEFT_OUT = math.log(1e-12)  # log of (probability of losses left out / delta); delta is reduced by this share
_AGREEMENT_OF_DELTA = 1e-7  # largest difference of log delta between two lines
_AGREEMENT_OF_FNR = 1e-7
_AGREEMENT_AT_ZERO = 1e-3  # the same at the resulting epsilon; it matters if delta(0) is below the target
_ALL_BELOW = 100.0  # tilt in units of 1 / (epsilon - edge): losses at the edge are exp(-_ALL_BELOW) of delta
_UNDERFLOW = -750.0  # log of a delta that is 0 as a float
_OF_LOSSES = 1e-12  # relative error of a mean of losses
_LEFT_OUT_OF_KL = 1e-34  # more than the losses left out contribute; their probability is exp(-90)
_LEAST = 1e-11  # smallest ratio of a sum to the sum of its moduli, so that rounding is small
_NARROWER = 1.3  # every line has a narrower cutoff than the one before
_FINENESS = 1.0, 1.12  # every other line has finer grids, and another tilt
_MOST_LINES = 9
_STRICT_LINES = 4  # after this number of lines, agreement relative to max(1, epsilon) is enough
_FAR_OFF = 0.3  # relative change above which a guess was far off
_MOST_TRIES = 24
_MOST_THRESHOLDS = 60  # largest number of thresholds tried


def epsilon_of(cumulant: LossCumulant, log_delta: float) -> tuple[float, float]:
    """Return the epsilon of P over Q, or of Q over P, and the difference between two lines."""
    if costs_nothing(cumulant, log_delta):
        return 0.0, 0.0
    uncapped = cumulant.leaving_out(log_delta + _LEFT_OUT)
    log_delta += math.log1p(-math.exp(_LEFT_OUT))
    theta, value = lines.start(uncapped, log_delta)
    value, at_value, width, narrower = max(value, 0.0), math.nan, 0.0, 0
    for which in range(_MOST_TRIES):
        width = max(_NARROWER**-narrower * lines.flat_width(uncapped, value), 0.2 * width)  # the guess may be far off
        cumulant = lines.capped_for(uncapped, value, width, cumulant if which else None)
        theta = lines.tilt_for(cumulant, value, near=theta)
        tilt = theta if which % 2 == 0 else lines.beside(cumulant, theta)
        line = lines.flat_line(cumulant, tilt, value, width, -log_delta, resolution=_FINENESS[which % 2])
        before, at_before = value, at_value
        value, at_value = _solve(line, cumulant, log_delta, value)
        difference = abs(value - before)
        least = _SMALL if narrower < _STRICT_LINES else 1.0
        if abs(at_value - at_before) < _AGREEMENT_AT_ZERO and difference <= AGREEMENT * max(least, value):
            return value, difference
        narrower += difference < _FAR_OFF * before  # otherwise the line was made for another epsilon
        if narrower > _MOST_LINES:
            break
    raise Unreliable


def costs_nothing(cumulant: LossCumulant, log_delta: float) -> bool:
    """Return whether Pinsker's inequality, delta(0) <= sqrt(KL / 2), shows that epsilon is 0."""
    _, mean, variance = cumulant.real(0.0)
    rounding = _OF_LOSSES * math.sqrt(float(cumulant.counts.sum()) * variance)
    return 0.5 * math.log(0.5 * (1.000001 * max(mean, 0.0) + rounding + _LEFT_OUT_OF_KL)) <= log_delta


def _solve(line: Line, cumulant: LossCumulant, log_delta: float, guess: float) -> tuple[float, float]:
    """Return the epsilon >= 0 with the target delta on one line, and log delta, which is NaN if rounding dominates."""
    over_p, over_q = 1.0 / (line.z * (line.z + 1.0)), 1.0 / (line.z + 1.0)

    def side(epsilon: Floats) -> Side:
        at = float(epsilon)
        scale, (delta, outside) = _sums(line, at, over_p, over_q)
        unit = math.exp(-scale) if scale > -700.0 else 0.0
        apart, apart_outside = cumulant.apart(at)
        delta, outside = delta + unit * apart, outside + unit * apart_outside
        log_value = scale + math.log(delta) if delta > 0.0 else -math.inf  # lost in rounding, so below the target
        return Side(epsilon, np.float64(1.0), np.float64(log_value), np.float64(-outside / delta))

    high = np.float64(2.0 * abs(guess) + 1.0)
    capped = cumulant.remove and math.isfinite(cumulant.cap)
    if capped:
        high = np.float64(cumulant.cap + cumulant.edge())  # for larger epsilon not all losses above the cap count
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
    """Return log(scale), and 1/pi times the integrals of Re exp(K(z) - z loss) kernel(z) divided by this scale."""
    exponent = line.log_values - line.z * loss
    scale = float(exponent.real.max())
    terms = np.exp(exponent - scale)
    return scale, [float((terms @ kernel).real) * line.spacing / math.pi for kernel in kernels]


def log_delta_of(cumulant: LossCumulant, epsilon: float) -> float:
    """Return log delta of P over Q, or of Q over P, at any real epsilon."""
    if epsilon >= cumulant.largest_loss():
        return -math.inf
    if epsilon > 0.0 and (bound := lines.chernoff_bound_at(cumulant, epsilon)) < _UNDERFLOW:
        return bound
    if (apart := _log_apart(cumulant, epsilon)) is not None:
        return apart
    cumulant = _leaving_out_for(cumulant, epsilon)
    before = math.inf
    for which in range(_MOST_LINES):
        width = _NARROWER**-which * lines.flat_width(cumulant, epsilon)
        value = _log_delta_on(lines.capped_for(cumulant, epsilon, width), epsilon, width, which)
        if abs(value - before) <= _AGREEMENT_OF_DELTA:
            return min(value + math.exp(cumulant.log_left_out - value), 0.0)
        before = value
    raise Unreliable


def _log_apart(cumulant: LossCumulant, epsilon: float) -> float | None:
    """Return log delta if losses below the cap are negligible by Chernoff's bound, and None otherwise."""
    if not cumulant.remove or epsilon < 0.0:
        return None
    capped = lines.capped_for(cumulant, epsilon, lines.flat_width(cumulant, epsilon))
    apart, _ = capped.apart(epsilon)
    if not (math.isfinite(capped.cap) and apart > 0.0):
        return None
    try:
        others = lines.chernoff(capped, _ALL_BELOW / (epsilon - capped.edge()), epsilon)
    except Unreliable:
        return None
    share = math.exp(float(np.logaddexp(others, capped.log_left_out)) - math.log(apart))
    return min(math.log(apart) + share, 0.0) if share < math.exp(_LEFT_OUT) else None


def _log_delta_on(cumulant: LossCumulant, epsilon: float, width: float, which: int) -> float:
    """Return log delta from one line, with the residues of the poles to the right of the line."""
    theta = (
        lines.tilt_for(cumulant, epsilon)
        if lines.saddle(cumulant, epsilon) > -0.1
        else lines.between(cumulant, epsilon)
    )
    tilt = theta if which % 2 == 0 else lines.beside(cumulant, theta, 0.0 if theta > -0.5 else -1.0)
    # Delta minus the integral: the losses above the cap, and the residues of the poles to the right of the line.
    known_part, apart_outside = cumulant.apart(epsilon)
    if tilt <= 0.0 and not cumulant.remove:  # losses left out by the cap do not count
        known_part = math.exp(cumulant.real(0.0)[0])
        known_part -= 0.0 if tilt > -1.0 else math.exp(epsilon + cumulant.real(-1.0)[0])
    elif tilt <= 0.0:
        known_part = 1.0 - apart_outside if tilt > -1.0 else -math.expm1(epsilon)
    exponent = tilt * epsilon - cumulant.real(tilt)[0]
    if known_part > 0.0:
        exponent = min(exponent, -math.log(known_part))
    poles = (0.0,) if tilt > 0.0 else (0.0, -1.0)
    line = lines.flat_line(cumulant, tilt, epsilon, width, exponent, poles, _FINENESS[which % 2])
    scale, (integral,) = _sums(line, epsilon, 1.0 / (line.z * (line.z + 1.0)))
    if known_part == 0.0:
        return scale + math.log(integral) if integral > 0.0 else -math.inf
    delta = math.exp(scale) * integral + known_part
    return math.log(delta) if delta > 0.0 else -math.inf


def _leaving_out_for(cumulant: LossCumulant, epsilon: float) -> LossCumulant:
    """Return the cumulant without losses whose probability is small against an estimate of delta(epsilon)."""
    left_out = -60.0
    for _ in range(60):
        trial = cumulant.leaving_out(left_out)
        capped = lines.capped_for(trial, epsilon, lines.flat_width(trial, epsilon))
        try:
            centre = lines.saddle(capped, epsilon)
        except Unreliable:  # all losses are smaller than epsilon
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
    """Return the false negative rate of the likelihood ratio test whose false positive rate is ``fpr``."""
    above = fpr <= 0.5
    log_rate = math.log(fpr if above else 1.0 - fpr)
    uncapped = cumulant.leaving_out(log_rate + _LEFT_OUT)
    edge, loss = uncapped.edge(), lines.start(uncapped, log_rate, pole=-1.0, sign=1.0 if above else -1.0)[1]
    loss = max(loss, edge + 1e-2 * uncapped.core)
    before, narrower = math.inf, 0
    for which in range(_MOST_THRESHOLDS):
        width = _NARROWER**-narrower * lines.flat_width(uncapped, loss)
        reach = edge + 0.5 * (loss - edge), edge + 2.0 * (loss - edge)
        cumulant = lines.capped_for(uncapped, reach[1], width)
        tilt = lines.between(cumulant, loss)
        tilt = tilt if which % 2 == 0 else lines.beside(cumulant, tilt, 0.0 if tilt > -0.5 else -1.0)
        line = lines.flat_line(cumulant, tilt, loss, width, -log_rate, (0.0, -1.0), _FINENESS[which % 2])
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
    """Return the threshold l in [low, high] with Q(loss > l) = fpr on one line, and the false negative rate."""
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


# Bounds on the false negative rate: closed forms for little noise or a rare canary. The total loss is then hardly
# above its edge, sum_t log(1 - q_t), unless the canary was used.


def fnr_bounds(cumulant: LossCumulant, fpr: float) -> tuple[float, float]:
    """Return a lower and an upper bound on the smallest false negative rate, P over Q.

    Lower bound: with probability exp(edge) the canary is in no sampled batch. The batches that have it for certain are
    one Gaussian mechanism. Upper bound: a test decides for "in" if any sampled step exceeds a threshold of its own.
    """
    if cumulant.is_unbounded:
        return 0.0, 1.0 - fpr
    sampled = cumulant.rates < 1.0
    counts, rates, sigmas = cumulant.counts[sampled], cumulant.rates[sampled], cumulant.sigmas[sampled]
    mu = math.sqrt(float(np.sum(cumulant.counts[~sampled] / cumulant.sigmas[~sampled] ** 2))) * cumulant.group
    unseen = 1.0 - fpr if mu == 0.0 else float(ndtr(-ndtri(fpr) - mu))
    lower = math.exp(float(counts @ np.log1p(-rates)) * cumulant.group) * unseen
    upper = _of_tests_step_by_step(counts, rates, 1.0 / sigmas, fpr) if counts.size else 1.0 - fpr
    return min(lower, upper), min(upper, 1.0 - fpr)


def _of_tests_step_by_step(counts: FloatArray, rates: FloatArray, slopes: FloatArray, fpr: float) -> float:
    """Return the false negative rate of a test that decides for "in" if the likelihood ratio of any step is large."""
    log_odds = np.log(rates) - np.log1p(-rates)
    goal, widest = math.log1p(-fpr), float(np.max(slopes * (0.5 * slopes + 40.0) + np.abs(log_odds)))
    low, high = -widest, widest  # range of the log of the likelihood ratio
    for _ in range(100):
        middle = 0.5 * (low + high)
        thresholds = 0.5 * slopes + (middle - log_odds) / slopes
        enough = float(counts @ log_ndtr(thresholds)) >= goal
        low, high = (low, middle) if enough else (middle, high)
    thresholds = 0.5 * slopes + (high - log_odds) / slopes
    accepted = np.logaddexp(np.log1p(-rates) + log_ndtr(thresholds), np.log(rates) + log_ndtr(thresholds - slopes))
    return math.exp(min(float(counts @ accepted), 0.0))
