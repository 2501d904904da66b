"""S + N against N, by inverting a Laplace transform along a vertical line in the complex plane.

K(z) = log E exp(z (S + N)) is known for every run. With z = theta + iu,

    density p(y) = 1/pi  integral_0^inf  Re exp(K(z) - z y) du,      upper tail: the same, divided by z (theta > 0).

This is Bromwich's formula for the inverse of a Laplace transform, from which Daniels (1954) and Lugannani and Rice
(1980) derive their approximations. Here the integral is computed by the midpoint rule in u. Its error is the mass
further than 2 pi / step from y (Poisson summation), which Bernstein's inequality bounds. For analytic integrands
that fall off like a Gaussian the rule converges geometrically (Trefethen and Weideman, 2014). The integrand does not
oscillate near its saddle point K'(theta) = y. So the sums keep their relative accuracy however small p(y) is, and a few
dozen nodes suffice.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import erfcx, log_ndtr

from lastiterate.common.types import FloatArray, Floats
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.solve import HALF_LOG_TAU, SQRT_HALF, SQRT_HALF_PI, Side, saddle_point

# Line integrals: 1/pi times the integral of Re exp(K(z) - zy) k(z) over u > 0, by the midpoint rule on z = theta + iu.
# k is 1 for the density at y and 1/z for the tail beyond y; other k give hockey-stick divergences.

LARGEST_CANCELLATION = 1e-5  # smallest ratio of a sum to the sum of moduli; rounding errors are then below 1e-11

Complex = npt.NDArray[np.complex128]


class Unreliable(ArithmeticError):
    """Error for an integral whose terms cancel, or that needs too many nodes."""


@dataclass
class Effort:
    """A limit on the amount of computation, counted in numbers computed and not in seconds."""

    left: float = math.inf

    def spend(self, numbers: float) -> None:
        """Count work. Raise Unreliable if the limit is exceeded."""
        self.left -= numbers
        if self.left < 0.0:
            raise Unreliable


@dataclass(frozen=True)
class Line:
    """The nodes z of an integration line, and K at these nodes."""

    z: Complex
    log_values: Complex
    spacing: float

    @property
    def theta(self) -> float:
        return float(self.z[0].real)

    def integral(self, y: float, kernel: Complex | float, least: float = LARGEST_CANCELLATION) -> tuple[float, float]:
        """Return log(scale), and 1/pi times the integral of Re exp(K(z) - zy) kernel(z) divided by this scale.

        Raises Unreliable if the sum is below ``least`` times the sum of the moduli of its terms.
        """
        exponent = self.log_values - self.z * y
        scale = float(exponent.real.max())
        terms = np.exp(exponent - scale) * kernel
        total = float(terms.real.sum())
        if not total > least * float(np.abs(terms).sum()):
            raise Unreliable
        return scale, total * self.spacing / math.pi


# Kernel: the cumulant of S + N, and the contour through a saddle point.

NEGLIGIBLE = 36.0  # neglected terms are below exp(-NEGLIGIBLE) of the total
LARGEST_CANCELLATION_OF_DELTA = 1e-9  # the same for delta: if P and Q are so close, its error hardly changes epsilon
MOST_NODES = 20_000
_CHUNK = 200_000  # complex numbers in memory at once
_FROM_POLE = 2.5  # distance of the contour to the pole at 0, in units of 1 / standard deviation
_I = np.complex128(1j)


class Cumulant:
    """K(z) of S + N, for a law of S."""

    def __init__(self, law: Law) -> None:
        self.law = law
        values = [np.abs(law.weights).max(initial=0.0)] + [float(np.ptp(v)) for v, _ in law.blocks]
        self.largest_jump = float(max(values))

    def real(self, theta: float) -> tuple[float, float, float]:
        """Return K, K' and K'' at a real point."""
        law = self.law
        value, mean, variance = law.constant * theta, law.constant, 0.0
        for start in range(0, law.counts.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            counts, rates, weights = law.counts[part], law.rates[part], law.weights[part]
            exponent = weights * theta
            shift = np.maximum(exponent, 0.0)
            inside, outside = rates * np.exp(exponent - shift), (1.0 - rates) * np.exp(-shift)
            total = inside + outside
            tilted = inside / total
            value += float(np.sum(counts * (np.log(total) + shift)))
            mean += float(np.sum(counts * weights * tilted))
            variance += float(np.sum(counts * weights**2 * tilted * (1.0 - tilted)))
        for values, probabilities in law.blocks:
            top = float(np.max(values * theta))
            mass = probabilities * np.exp(values * theta - top)
            total_mass = float(mass.sum())
            average = float(mass @ values) / total_mass
            value += math.log(total_mass) + top
            mean += average
            variance += float(mass @ (values - average) ** 2) / total_mass
        square = law.noise**2
        return value + 0.5 * square * theta * theta, mean + square * theta, variance + square

    def along(self, theta: float, u: FloatArray) -> Complex:
        """Return K(theta + iu) - K(theta), up to multiples of 2 pi i."""
        law = self.law
        result: Complex = _I * u * (law.constant + law.noise**2 * theta) - 0.5 * law.noise**2 * u * u
        width = max(1, _CHUNK // u.size)
        for start in range(0, law.counts.size, width):
            part = slice(start, start + width)
            weights, rates = law.weights[part, None], law.rates[part, None]
            odds = np.exp(np.clip(weights * theta, -700.0, 700.0)) * rates
            tilted = odds / (odds + (1.0 - rates))
            # log(1 + p (e^ix - 1)) in real arithmetic, which is faster and keeps small p exact
            sine, cosine = np.sin(0.5 * weights * u), np.cos(0.5 * weights * u)
            square = sine * sine
            log_modulus = 0.5 * np.log1p(-4.0 * tilted * (1.0 - tilted) * square)
            angle = np.arctan2(2.0 * tilted * sine * cosine, 1.0 - 2.0 * tilted * square)
            result += law.counts[part] @ log_modulus + 1j * (law.counts[part] @ angle)
        for values, probabilities in law.blocks:
            mass = probabilities * np.exp(values * theta - np.max(values * theta))
            mass /= mass.sum()
            total = np.zeros(u.size, dtype=np.complex128)
            for start in range(0, values.size, width):
                part = slice(start, start + width)
                total += mass[part] @ np.exp(1j * values[part, None] * u)
            result += np.log(total)
        return result

    def saddle(self, y: float) -> float:
        """Find the theta with K'(theta) = y, up to a twentieth of a standard deviation."""
        square = self.law.noise**2
        low, high = (y - self.law.high) / square, (y - self.law.low) / square
        theta = min(max((y - self.law.mean) / (square + self.law.variance), low), high)
        at, bottom, top = (np.float64(value) for value in (theta, low, high))
        return float(saddle_point(lambda theta: self.real(float(theta))[1:], np.float64(y), at, bottom, top, 0.05))

    def start(self, log_delta: float) -> float:
        """Estimate the threshold that S + N exceeds with probability delta (see `support.tilt_for`)."""
        goal = -2.0 * log_delta
        theta = math.sqrt(goal / (self.law.noise**2 + self.law.variance))
        for _ in range(6):
            value, mean, variance = self.real(theta)
            exponent = math.sqrt(max(2.0 * (theta * mean - value), 1e-300))
            aim = math.sqrt(max(goal - math.log1p(2.0 * math.pi * theta**2 * variance), 0.01))
            theta = min(max(theta + (aim - exponent) * exponent / (theta * variance), 0.3 * theta), 2.0 * theta)
        return self.real(theta)[1]


@dataclass(frozen=True)
class Contour:
    """The pair S + N against N near the threshold ``centre``, from K(z) on a line z = theta + iu."""

    noise: float
    centre: float
    reach: float
    line: Line

    def covers(self, y: Floats) -> bool:
        return abs(float(y) - self.centre) <= self.reach

    def remove(self, y: Floats) -> Side:
        """Return P over Q. The term 1/z gives P(>= y). The constant gives e^f Q(>= y) = p(y) Q(>= y) / q(y)."""
        loss, slope = self.loss(y)
        over_density = self.noise * _mills(y / self.noise)
        if self._upper:
            scale, delta = self.line.integral(float(y), 1.0 / self.line.z - over_density, LARGEST_CANCELLATION_OF_DELTA)
            log_delta = scale + math.log(delta)
        else:
            log_delta = math.log1p(-math.exp(self.log_lower(y)) - math.exp(loss + float(log_ndtr(-y / self.noise))))
        log_slope = loss + float(log_ndtr(-y / self.noise)) - log_delta
        return _side(loss, slope, log_delta, -slope * math.exp(log_slope))

    def add(self, r: Floats) -> Side:
        y = -r
        loss, slope = self.loss(y)
        x0 = float(y) / self.noise
        log_shared = float(self.log_lower(y)) - float(loss)  # e^-f P(<= y)
        if not self._upper and x0 < 30.0:
            _, excess = self.line.integral(
                float(y), 1.0 / self.line.z + self.noise * _mills(-x0), LARGEST_CANCELLATION_OF_DELTA
            )
            _, density = self.line.integral(float(y), 1.0)
            log_delta = math.log(excess / density / self.noise) - 0.5 * x0 * x0 - HALF_LOG_TAU
        else:
            share = math.exp(min(log_shared - float(log_ndtr(x0)), 0.0))
            log_delta = float(log_ndtr(x0)) + (math.log1p(-share) if share < 1.0 else -math.inf)
        return _side(-loss, slope, log_delta, -slope * np.exp(log_shared - log_delta))

    def loss(self, y: Floats) -> tuple[Floats, Floats]:
        scale, density = self.line.integral(float(y), 1.0)
        _, moment = self.line.integral(float(y), self.line.z, -math.inf)
        x0 = y / self.noise
        loss = scale + math.log(density) + 0.5 * x0 * x0 + math.log(self.noise) + HALF_LOG_TAU
        return np.float64(loss), np.float64(x0 / self.noise - moment / density)

    def log_lower(self, y: Floats) -> Floats:
        return self._log_tail(y, direct=not self._upper)

    def log_upper(self, y: Floats) -> Floats:
        return self._log_tail(y, direct=self._upper)

    @property
    def _upper(self) -> bool:
        return bool(self.line.theta > 0.0)

    def _log_tail(self, y: Floats, direct: bool) -> Floats:
        scale, tail = self.line.integral(float(y), (1.0 if self._upper else -1.0) / self.line.z)
        log_tail = scale + math.log(tail)
        return np.float64(log_tail if direct else math.log1p(-min(math.exp(log_tail), 1.0 - 1e-16)))


def contour(cumulant: Cumulant, y: float) -> Contour:
    """Return the line through the saddle point for y, or next to it if the saddle point is near the pole at z = 0."""
    saddle = cumulant.saddle(y)
    clear = _FROM_POLE / math.sqrt(cumulant.real(saddle)[2])
    theta = max(saddle, clear) if saddle > -0.3 * clear else min(saddle, -clear)
    value, mean, variance = cumulant.real(theta)
    deviation = math.sqrt(variance)
    reach = 1.5 * deviation
    third = NEGLIGIBLE * cumulant.largest_jump / 3.0
    spread = third + math.sqrt(third * third + 2.0 * NEGLIGIBLE * variance)
    # Further than a period from y the tilted density is negligible. So is the residue of the pole.
    exponent = max(theta * y - value, 0.0) + math.log1p(abs(theta) * deviation)
    period = max(spread + abs(mean - y), (exponent + NEGLIGIBLE) / abs(theta)) + reach
    needed = math.sqrt(2.0 * NEGLIGIBLE) / cumulant.law.noise * period / (2.0 * math.pi)
    if not needed <= MOST_NODES:
        raise Unreliable
    nodes = math.ceil(needed)
    spacing = 2.0 * math.pi / period
    u = (np.arange(float(nodes)) + 0.5) * spacing
    line = Line(theta + _I * u, value + cumulant.along(theta, u), spacing)
    return Contour(cumulant.law.noise, y, reach, line)


def _mills(x: Floats | float) -> float:
    return SQRT_HALF_PI * float(erfcx(SQRT_HALF * x))


def _side(*values: Floats | float) -> Side:
    return Side(*(np.float64(value) for value in values))
