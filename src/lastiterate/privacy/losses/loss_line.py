"""Choice of integration lines and their nodes: saddle points of the privacy loss, periods and a cutoff.

The cutoff is flat on top: the integrand is multiplied by F(wu) = Q(16, (wu)^2 / 2), where Q is the incomplete gamma
function. F is 1 up to 5e-10 for wu < 2 and below 1e-16 for wu > 12.2. In terms of the loss, the cutoff convolves
exp(theta loss) delta(loss) with a kernel of width w that has 31 vanishing moments. So only the smoothness of delta
within about 13 w of the loss matters. Sharp features farther away have no effect.
"""

import math

import numpy as np

from lastiterate.privacy.losses.loss_cumulant import LossCumulant
from lastiterate.privacy.mixtures.fourier import Line, Unreliable

_OF_GAUSSIAN = 4.5  # (standard deviation / width) of a cutoff that does not change a Gaussian
_LITTLE = 0.5  # noise below which losses cluster by the number of uses of the canary
_FARTHEST = 13.0  # distance in widths beyond which the cutoff's kernel is below 1e-15
_ORDER = 16  # order of the cutoff
_END = 12.2  # end of the cutoff, in units of 1 / w
_NEGLIGIBLE = 34.0  # aliasing is below exp(-_NEGLIGIBLE) of the result
_OFTEN_ENOUGH = 12.0  # first trial of the last node, in units of 1 / standard deviation
_TRUNCATION = 1e-13  # relative size of the integral beyond the last node
_LOOSE = 1.5  # largest ratio of a reused cap to the smallest possible cap
_FEW_NODES = 250.0  # a number of nodes that costs next to nothing
_MOST_NODES = 200_000  # largest number of nodes of a line
_TILTS = (1.0, 0.5, 2.0, 0.25, 4.0, 0.1, 10.0)  # tilts of Chernoff's bound, in units of a Gaussian's tilt
_LEFT_OUT = math.log(1e-9)  # log of (probability of losses left out / delta to compare with)
_MARGIN = 1e-5  # far above the errors of rounding and quadrature in log delta
_REPELLED = 4.0  # power of the distance from the pole in `tilt_for`
_FROM_POLE = 2.5  # distance of a line to the pole, in units of 1 / standard deviation of the loss


def start(cumulant: LossCumulant, log_tail: float, pole: float = 0.0, sign: float = 1.0) -> tuple[float, float]:
    """Return a tilt and an approximate threshold. The probability above (sign 1) or below (-1) it is exp(log_tail).

    The probability is under P for the pole at 0 and under Q for the pole at -1. Chernoff's exponent grows with the
    distance x of the tilt from the pole, so bisection between Newton's steps cannot fail.
    """
    variance = cumulant.real(pole)[2]
    if not variance > 0.0:
        raise Unreliable
    low, high = 0.0, math.inf
    x = math.sqrt(-2.0 * log_tail / variance)
    for _ in range(200):
        theta = pole + sign * x
        try:
            value, mean, variance = cumulant.real(theta)
        except Unreliable:  # the tilt is too strong: only the largest losses count
            high, x = x, 0.5 * (low + x)
            continue
        missing = (theta - pole) * mean - value + 0.5 * math.log1p(2.0 * math.pi * x * x * variance) + log_tail
        if abs(missing) < 0.05 or high - low < 1e-3 * x:
            break
        low, high = (x, high) if missing < 0.0 else (low, x)
        newton = x - missing / (x * variance) if variance > 0.0 else low
        x = newton if low < newton < min(high, 4.0 * x) else 0.5 * (low + high) if math.isfinite(high) else 2.0 * x
    # Solve the saddle point approximation for the threshold. K' is no guide where the tilted loss jumps.
    value, _, variance = cumulant.real(pole + sign * x)
    threshold = sign * (value - log_tail - 0.5 * math.log1p(2.0 * math.pi * x * x * variance)) / x
    if not math.isfinite(threshold):
        raise Unreliable
    return tilt_for(cumulant, threshold, pole, sign), threshold


def saddle(cumulant: LossCumulant, loss: float) -> float:
    """Return the theta with K'(theta) = ``loss``, up to a twentieth of a standard deviation."""
    low, high = -math.inf, math.inf
    theta = 0.0
    variance = cumulant.real(theta)[2]
    if not variance > 0.0:
        raise Unreliable
    step = 1.0 / math.sqrt(variance)
    for _ in range(400):
        _, mean, variance = cumulant.real(theta)
        if abs(mean - loss) <= 0.05 * math.sqrt(variance) or high - low < 1e-6 * max(abs(low), abs(high)):
            return theta
        low, high = (theta, high) if mean < loss else (low, theta)
        newton = theta + (loss - mean) / max(variance, 1e-300)
        if low < newton < high and abs(newton - theta) <= step:
            theta = newton
        elif math.isfinite(low) and math.isfinite(high):
            theta = 0.5 * (low + high)
        else:
            theta, step = theta + math.copysign(step, loss - mean), 2.0 * step
    raise Unreliable


def tilt_for(
    cumulant: LossCumulant, loss: float, pole: float = 0.0, sign: float = 1.0, near: float | None = None
) -> float:
    """Return the theta of a line on one side of a pole, as far from the pole as cancellation allows.

    This theta minimises the convex function K - theta loss - _REPELLED log x, where x is the distance from the pole.
    The search begins at ``near`` if ``near`` is given.
    """
    low, high, before = 0.0, math.inf, math.inf
    x = math.sqrt(_REPELLED / max(cumulant.real(pole)[2], 1e-300)) if near is None else abs(near - pole)
    for _ in range(200):
        try:
            _, mean, variance = cumulant.real(pole + sign * x)
        except Unreliable:
            high, x = x, 0.5 * (low + x)
            continue
        force = sign * (mean - loss) - _REPELLED / x
        stiffness = variance + _REPELLED / (x * x)
        if abs(force) < 0.1 * math.sqrt(stiffness) or high - low < 1e-3 * x:
            break
        low, high = (x, high) if force < 0.0 else (low, x)
        newton = x - force / stiffness
        if abs(force) < 0.5 * before and max(low, 0.25 * x) < newton < min(high, 4.0 * x):
            x, before = newton, abs(force)
        else:
            x, before = math.sqrt(max(low, 0.1 * x) * min(high, 10.0 * x)), math.inf
    return pole + sign * x


def between(cumulant: LossCumulant, loss: float) -> float:
    """Return the theta of a line: right of the poles at 0 and -1, left of both, or between them if there is room."""
    centre = saddle(cumulant, loss)
    clear = 0.4 * _FROM_POLE / math.sqrt(cumulant.real(centre)[2])
    if clear < 0.3 and clear - 1.0 < centre < -clear:
        return centre
    right, left = tilt_for(cumulant, loss), tilt_for(cumulant, loss, -1.0, -1.0)
    return right if right > -1.0 - left else left


def flat_width(cumulant: LossCumulant, loss: float) -> float:
    """Return a width of the cutoff, narrow if delta is sharp: at the edge, and at single steps with little noise."""
    core = cumulant.core / _OF_GAUSSIAN
    from_edge = math.inf if cumulant.mirrored else max(abs(loss - cumulant.edge()) / _FARTHEST, 1e-3 * core)
    steep = float(np.min(1.0 / cumulant.sigmas[cumulant.sigmas < _LITTLE], initial=math.inf)) / _OF_GAUSSIAN
    return min(from_edge, max(core, abs(loss) / _FARTHEST), steep)


def capped_for(cumulant: LossCumulant, loss: float, width: float, before: LossCumulant | None = None) -> LossCumulant:
    """Cap the losses that need no integral. Return ``before`` if its cap is suitable."""
    cap = 1.1 * (loss - cumulant.edge()) + (_FARTHEST + 2.0) * width
    if before is not None and cap <= before.cap <= _LOOSE * cap:
        return before
    return cumulant.capped(cap)


def beside(cumulant: LossCumulant, theta: float, pole: float = 0.0) -> float:
    """Return the theta of another line for comparison, a little closer to the pole."""
    distance = theta - pole
    step = min(0.15 * abs(distance), 1.0 / math.sqrt(cumulant.real(theta)[2]))
    return theta - math.copysign(step, distance)


def flat_line(
    cumulant: LossCumulant,
    theta: float,
    loss: float,
    width: float,
    exponent: float,
    poles: tuple[float, ...] = (0.0,),
    resolution: float = 1.0,
) -> Line:
    """Return nodes on the line at ``theta`` for results of size exp(-exponent) at thresholds near ``loss``."""
    value, _, variance = cumulant.real(theta)
    deviation = math.sqrt(variance)
    log_scale = max(value - theta * loss + exponent, 0.0)  # log of (integrand at u = 0 / result)
    spacing = 2.0 * math.pi / (resolution * period(cumulant, theta, loss, exponent, poles, _NEGLIGIBLE))
    last = _END / min(width, deviation / _OF_GAUSSIAN)
    width = _END / last
    end = min(max(_OFTEN_ENOUGH / deviation, cumulant.recurrence(), _FEW_NODES * spacing), last)
    while True:
        if not (spacing > 0.0 and end <= _MOST_NODES * spacing):
            raise Unreliable
        count = math.ceil(end / spacing) + 1
        values = cumulant.along(theta, spacing, count, resolution)
        u = spacing * np.arange(count, dtype=np.float64)
        if end >= last:
            break
        rest = float(values[2 * count // 3 :].real.max()) - value + log_scale - math.log(max(end * deviation, 1.0))
        if rest < math.log(_TRUNCATION):
            break
        end = min(4.0 * end, last)
    square = 0.5 * (width * u) * (width * u)
    total = np.ones_like(u)
    for order in range(_ORDER - 1, 0, -1):  # Q(16, square) is a sum of 16 terms
        total = 1.0 + total * square / order
    values = values + (np.log(total) - square)
    values[0] -= math.log(2.0)  # half weight: the trapezoid rule
    z = np.empty(count, dtype=np.complex128)
    z.real, z.imag = theta, u
    return Line(z, values, spacing)


def period(
    cumulant: LossCumulant, theta: float, loss: float, exponent: float, poles: tuple[float, ...], negligible: float
) -> float:
    """Return a period in the loss whose aliases are at most exp(-negligible) of results of size exp(-exponent)."""
    deviation = math.sqrt(cumulant.real(theta)[2])
    if not deviation > 0.0:  # the remaining loss has only one value
        raise Unreliable
    spans = [deviation]
    for pole in poles:
        at_pole = cumulant.real(pole)[0] - pole * loss
        spans.append((negligible + max(exponent + at_pole, 0.0)) / abs(theta - pole))
    for sign in (1.0, -1.0) if len(poles) > 1 or theta < poles[0] else (1.0,):
        best = math.inf
        for factor in (8.0, 4.0, 2.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01):
            step = sign * factor / deviation
            try:
                rise = cumulant.real(theta + step)[0] - (theta + step) * loss + exponent
            except Unreliable:
                continue
            bound = (rise + negligible) / abs(step)
            if bound > 1.5 * best:
                break
            best = min(best, bound)
        spans.append(best)
    return max(spans) + deviation


def chernoff(cumulant: LossCumulant, theta: float, epsilon: float) -> float:
    """Return the log of Chernoff's upper bound on delta(epsilon) of the losses not left out, for any theta > 0."""
    return cumulant.real(theta)[0] + below_tail(theta) - theta * epsilon


def below_tail(theta: float) -> float:
    """Return the log of the ratio of Chernoff's bounds on delta and on the tail probability."""
    return theta * math.log(theta) - (1.0 + theta) * math.log1p(theta)


def chernoff_bound(cumulant: LossCumulant, epsilon: float, log_goal: float) -> float:
    """Return the log of an upper bound on delta(epsilon), the best of a few tilts for a delta near exp(log_goal)."""
    log_left_out = log_goal + _LEFT_OUT
    best, _ = chernoff_tilt(cumulant.leaving_out(log_left_out), epsilon, log_goal)
    return float(np.logaddexp(best, log_left_out)) + _MARGIN


def chernoff_tilt(cumulant: LossCumulant, epsilon: float, log_goal: float) -> tuple[float, float]:
    """Return the smallest of a few Chernoff bounds on the losses not left out, and its tilt."""
    scale = math.sqrt(-2.0 * log_goal / max(cumulant.real(0.0)[2], 1e-300))
    best = math.inf, scale
    for factor in _TILTS:
        best = min(best, (chernoff(cumulant, factor * scale, epsilon), factor * scale))
        if best[0] < log_goal - 1.0:
            break
    return best


def chernoff_bound_at(cumulant: LossCumulant, epsilon: float) -> float:
    """Return the log of an upper bound on delta(epsilon). Delta may be arbitrarily small."""
    best = 0.0
    for log_left_out in (-100.0, -250.0, -800.0):
        trial = cumulant.leaving_out(log_left_out)
        try:
            bound = chernoff(trial, tilt_for(trial, epsilon), epsilon)
        except Unreliable:
            continue
        best = min(best, float(np.logaddexp(bound, log_left_out)) + _MARGIN)
        if best > log_left_out + 30.0:
            break
    return best
