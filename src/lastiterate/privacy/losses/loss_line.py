"""Where to put the line: saddle points of the privacy loss, Chernoff's bound, and nodes that suffice."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from lastiterate.privacy.losses.loss_cumulant import LossCumulant
from lastiterate.privacy.mixtures.contour import Line, Unreliable

_NEGLIGIBLE = 34.0  # aliasing is below exp(-_NEGLIGIBLE) of the result
_TRUNCATION = 1e-9  # of what lies beyond the last node
_FIRST_BLOCK = 32
_SOME_WORK = 1e6
_MOST_WORK = 3e7  # evaluations of exp(sL) for one line: about a second
_FROM_POLE = 2.5  # distance of a line to the pole, in units of 1 / standard deviation of the loss
_JUMP = 3.0  # of the variance, by which a jump is told
_LARGEST_CONDITION = 29.0  # log of the largest cancellation that leaves three digits


def start(cumulant: LossCumulant, log_tail: float, pole: float = 0.0, sign: float = 1.0) -> tuple[float, float]:
    """A tilt for the threshold whose tail (above if sign = 1, below if -1) is exp(log_tail), and about that threshold.

    The tail is under P for the pole at 0 and under Q for the pole at -1. Chernoff's exponent grows with the distance x
    of the tilt from the pole, so bisection between Newton's steps cannot fail, even where the tilted loss jumps.
    """
    variance = cumulant.real(pole)[2]
    if not variance > 0.0:
        raise Unreliable
    low, high = 0.0, math.inf
    x = math.sqrt(-2.0 * log_tail / variance)
    for _ in range(200):
        theta = pole + sign * x
        value, mean, variance = cumulant.real(theta)
        missing = (theta - pole) * mean - value + 0.5 * math.log1p(2.0 * math.pi * x * x * variance) + log_tail
        if abs(missing) < 0.05 or high - low < 1e-3 * x:
            break
        low, high = (x, high) if missing < 0.0 else (low, x)
        newton = x - missing / (x * variance) if variance > 0.0 else low
        x = newton if low < newton < min(high, 4.0 * x) else 0.5 * (low + high) if math.isfinite(high) else 2.0 * x
    return _before_jump(cumulant, log_tail, pole, sign, x)


def _before_jump(cumulant: LossCumulant, log_tail: float, pole: float, sign: float, x: float) -> tuple[float, float]:
    """Step back from a tilt at which rare large losses have begun to take over, which needs many more nodes.

    Stepping back costs digits, as many as exp(K - theta loss) is above the tail; some can be spared.
    """
    _, mean, variance = cumulant.real(pole + sign * x)
    for _ in range(60):
        value, closer_mean, closer_variance = cumulant.real(pole + 0.5 * sign * x)
        if not variance > _JUMP * closer_variance or value - log_tail > _LARGEST_CONDITION:
            break
        x, mean, variance = 0.5 * x, closer_mean, closer_variance
    return pole + sign * _clear_of_pole(cumulant, pole, sign, x), mean


def _clear_of_pole(cumulant: LossCumulant, pole: float, sign: float, x: float) -> float:
    """A distance of at least some standard deviations, but short of a jump: near a pole more nodes are needed."""
    variance = cumulant.real(pole + sign * x)[2]
    clear = max(x, _FROM_POLE / math.sqrt(variance))
    while clear > x and cumulant.real(pole + sign * clear)[2] > _JUMP * variance:
        clear = max(x, 0.7 * clear)
    return clear


def saddle(cumulant: LossCumulant, loss: float) -> float:
    """The theta at which K' is ``loss``, to a twentieth of a standard deviation."""
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


def around(cumulant: LossCumulant, centre: float, loss: float) -> float:
    """A line near the saddle point of a loss that keeps its distance from the poles at 0 and -1, and from jumps."""
    clear = _FROM_POLE / math.sqrt(cumulant.real(centre)[2])
    if centre > -0.2 * clear:
        x = max(centre, 0.04 * clear)
        smallest = cumulant.real(x)[0] - x * loss
        while cumulant.real(x)[2] > _JUMP * cumulant.real(0.5 * x)[2]:
            if cumulant.real(0.5 * x)[0] - 0.5 * x * loss > smallest + _LARGEST_CONDITION:
                break
            x *= 0.5
        return _clear_of_pole(cumulant, 0.0, 1.0, x)
    distance = min(0.5, 0.4 * clear)
    return min(max(centre, distance - 1.0), -distance) if centre > -1.0 else min(centre, -1.0 - distance)


def clear_of(cumulant: LossCumulant, centre: float, pole: float) -> float:
    """A line near a saddle point that keeps its distance from one pole."""
    sign = 1.0 if centre >= pole else -1.0
    least = 0.04 * _FROM_POLE / math.sqrt(cumulant.real(centre)[2])
    return pole + sign * _clear_of_pole(cumulant, pole, sign, max(abs(centre - pole), least))


def beside(cumulant: LossCumulant, theta: float, pole: float = 0.0) -> float:
    """Another line, a little closer to the pole, for comparison."""
    distance = theta - pole
    step = min(0.15 * abs(distance), 1.0 / math.sqrt(cumulant.real(theta)[2]))
    return theta - math.copysign(step, distance)


def add_matters(cumulant: LossCumulant, epsilon: float, log_delta: float) -> bool:
    """Whether delta of this direction (Q over P) may exceed the given one: not if Chernoff's bound is below it."""
    if epsilon >= cumulant.largest_loss():
        return False
    scale = math.sqrt(-2.0 * log_delta / max(cumulant.real(0.0)[2], 1e-200))
    return all(_chernoff(cumulant, factor * scale) - factor * scale * epsilon > log_delta for factor in _TILTS)


def chernoff(cumulant: LossCumulant, epsilon: float) -> float:
    """An upper bound on log delta: Chernoff's, with the factor by which delta is below the tail."""
    if epsilon >= cumulant.largest_loss():
        return -math.inf
    return min((value - theta * epsilon for theta, value in _chernoff_values(cumulant)), default=0.0)


def chernoff_epsilon(cumulant: LossCumulant, log_delta: float) -> float:
    """The same bound, solved for epsilon."""
    return min(((value - log_delta) / theta for theta, value in _chernoff_values(cumulant)), default=math.inf)


_TILTS = (1.0, 0.5, 2.0, 0.25, 4.0, 0.1, 10.0)


def _chernoff(cumulant: LossCumulant, theta: float) -> float:
    """log of a bound on delta e^(theta epsilon), for any theta > 0; inf where K cannot be had."""
    try:
        value = cumulant.real(theta)[0]
    except Unreliable:
        return math.inf
    return value + theta * math.log(theta) - (1.0 + theta) * math.log1p(theta)


@lru_cache(maxsize=64)
def _chernoff_values(cumulant: LossCumulant) -> list[tuple[float, float]]:
    """Tilts over a wide range, each with its bound."""
    try:
        scale = math.sqrt(max(cumulant.real(0.0)[2], 1e-200))
    except Unreliable:
        return []
    return [(theta, _chernoff(cumulant, theta)) for theta in np.geomspace(1e-4 / scale, 100.0 / scale, 48).tolist()]


def line_through(
    cumulant: LossCumulant,
    theta: float,
    loss: float,
    poles: tuple[float, ...],
    exponent: float,
    resolution: float = 1.0,
    order: int = 2,
) -> Line:
    """Nodes on the line at ``theta`` that suffice for results of size exp(-exponent) at thresholds near ``loss``.

    ``order`` is that of the kernel's own decay: 2 for 1 / (z (z + 1)), 1 for the tails' 1 / z.
    """
    value, _, variance = cumulant.real(theta)
    deviation = math.sqrt(variance)
    log_scale = max(value - theta * loss, -exponent) + exponent  # the integrand at u = 0 over the result
    period = max(
        *((_NEGLIGIBLE + max(exponent, 0.0)) / abs(theta - pole) for pole in poles),
        *(_spread(cumulant, theta, loss, value - log_scale, side / deviation) for side in (1.0, -1.0)),
    )
    spacing = 2.0 * math.pi / ((period + deviation) * resolution)
    most_work = _MOST_WORK * min(max(1.0, cumulant.counts.size / 3.0), 40.0)
    nodes, values, count, work = [], [], 0, 0.0
    missing = math.inf  # log of what lies beyond the last node, over what may
    while True:
        u = (np.arange(count, max(2 * count, _FIRST_BLOCK)) + 0.5) * spacing
        work += u.size * cumulant.work(theta, float(u[-1]))
        if work > most_work:
            raise Unreliable
        nodes.append(u)
        values.append(cumulant.along(theta, u))
        count += u.size
        last = float(u[-1])
        # The rest of an oscillating integral is about its integrand over the frequency, here the loss itself.
        tail = min(last, 1.0 / max(abs(loss), 1e-300)) / (last * max(last, 1.0) ** (order - 1))
        size = float(values[-1].real.max()) - value  # over a whole block: it may vanish and come back
        before, missing = missing, size + log_scale + math.log(tail / _TRUNCATION)
        if missing < 0.0 and last > cumulant.recurrence():
            return Line(theta + 1j * np.concatenate(nodes), np.concatenate(values), spacing)
        # Each doubling takes four times the work; give up early where that would gain too little.
        if work > _SOME_WORK and missing > (before - missing) * 1.5 * math.log(most_work / work, 4.0):
            raise Unreliable


def _spread(cumulant: LossCumulant, theta: float, loss: float, value: float, unit: float) -> float:
    """How far from ``loss``, on one side, the tilted loss has mass that counts against exp(value) (Chernoff)."""
    best = math.inf
    for factor in (4.0, 2.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01):
        step = factor * unit
        rise = cumulant.real(theta + step)[0] - value - step * loss
        bound = (rise + _NEGLIGIBLE) / abs(step)
        if bound > 1.5 * best:
            break
        best = min(best, bound)
    return best
