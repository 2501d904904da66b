"""The curves of small runs by sums over every value that S can take: slow, and independent of the kernels.

P(A) - e^epsilon Q(A) is at most delta for every set A, whatever the threshold: a sloppy root makes it only too small,
and to second order.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, logsumexp
from scipy.stats import binom

from lastiterate import DPSGD

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_PANELS = 24
ROUNDING = 1e-13


@dataclass(frozen=True)
class Mixture:
    """S + N against N, S having these values with these logarithms of probabilities."""

    points: np.ndarray
    log_mass: np.ndarray
    noise: float

    def delta(self, epsilon: float) -> tuple[float, float]:
        """The larger direction's delta, and by how much rounding may have changed it."""
        with np.errstate(all="ignore"):
            (low, high), inside = self._where(epsilon), self._where(-epsilon)
            remove = self._excess([(-math.inf, low), (high, math.inf)], epsilon)
            add = self._lack([inside], epsilon) if inside[0] < inside[1] else (0.0, 0.0)
        return max(remove[0], add[0]), max(remove[1], add[1])

    def loss(self, y: np.ndarray) -> np.ndarray:
        """f(y), by the sum of mass times (ratio - 1) where that is small."""
        exponent = self.points * (y[:, None] - 0.5 * self.points) / self.noise**2
        logs = self.log_mass + exponent
        top = logs.max(axis=1)
        result = np.log(np.exp(logs - top[:, None]).sum(axis=1)) + top
        small = np.abs(result) < 0.4
        if small.any():
            far = np.exp(np.where(exponent[small] > 1.0, logs[small], -np.inf)).sum(axis=1)
            near = np.where(exponent[small] > 1.0, -1.0, np.expm1(np.minimum(exponent[small], 1.0)))
            result[small] = np.log1p(far + near @ np.exp(self.log_mass))
        return result

    def _loss(self, y: float) -> float:
        return float(self.loss(np.array([y]))[0])

    def _slope(self, y: float) -> float:
        exponent = self.log_mass + self.points * (y - 0.5 * self.points) / self.noise**2
        ratio = np.exp(exponent - exponent.max())
        return float(ratio @ self.points / (ratio.sum() * np.abs(self.points).max()))

    @cached_property
    def _bottom(self) -> float:
        """Where f, which is convex, is smallest, if S has both signs."""
        left, right = -self.noise, self.noise
        while self._slope(left) > 0.0:
            left *= 2.0
        while self._slope(right) < 0.0:
            right *= 2.0
        return float(brentq(self._slope, left, right, xtol=1e-300, rtol=1e-15, maxiter=2000))

    def _where(self, loss: float) -> tuple[float, float]:
        """Where f lies below ``loss``: an empty interval if nowhere, a half-line where S has one sign."""
        if self.points.min() >= 0.0:
            return -math.inf, self._crossing(loss, 1.0, -60.0 * self.noise)
        if self.points.max() <= 0.0:
            return -self._crossing(loss, -1.0, -60.0 * self.noise), math.inf
        if self._loss(self._bottom) >= loss:
            return self._bottom, self._bottom
        return -self._crossing(loss, -1.0, -self._bottom), self._crossing(loss, 1.0, self._bottom)

    def _crossing(self, loss: float, sign: float, low: float) -> float:
        """The y > low at which f(sign y) rises above ``loss``."""
        if self._loss(sign * low) >= loss:
            return low
        reach = self.noise
        while self._loss(sign * (low + reach)) < loss:
            reach *= 2.0
        root = brentq(lambda y: self._loss(sign * y) - loss, low, low + reach, xtol=1e-300, rtol=1e-14, maxiter=2000)
        return float(root)

    def _excess(self, pieces, epsilon: float) -> tuple[float, float]:
        """P - e^epsilon Q of the pieces."""
        log_p = logsumexp([self._log_p(*piece) for piece in pieces])
        log_q = epsilon + logsumexp([_log_interval(low / self.noise, high / self.noise) for low, high in pieces])
        difference = -math.expm1(min(log_q - log_p, 0.0)) * math.exp(log_p) if log_p > -math.inf else 0.0
        rounding = ROUNDING * math.exp(log_p) * (1.0 + 1e-3 * abs(epsilon))
        if difference > 1e-6 * math.exp(log_p) or epsilon > 30.0:
            return difference, rounding
        return self._integral(pieces, lambda f: np.exp(epsilon) * np.expm1(f - epsilon))

    def _lack(self, pieces, epsilon: float) -> tuple[float, float]:
        """Q - e^epsilon P of the pieces."""
        log_p = epsilon + logsumexp([self._log_p(*piece) for piece in pieces])
        log_q = logsumexp([_log_interval(low / self.noise, high / self.noise) for low, high in pieces])
        difference = -math.expm1(min(log_p - log_q, 0.0)) * math.exp(log_q) if log_q > -math.inf else 0.0
        if difference > 1e-6 * math.exp(log_q) or epsilon > 30.0:
            return difference, ROUNDING * math.exp(log_q) * (1.0 + 1e-3 * abs(epsilon))
        return self._integral(pieces, lambda f: -np.expm1(f + epsilon))

    def _log_p(self, low: float, high: float) -> float:
        values = _log_interval((low - self.points) / self.noise, (high - self.points) / self.noise)
        return float(logsumexp(self.log_mass + values))

    def _integral(self, pieces, gain) -> tuple[float, float]:
        """The integral of q gain(f): positive, so that nothing cancels; P and Q are close, so that f is smooth."""
        total, size = 0.0, 0.0
        for low, high in pieces:
            low, high = (float(np.clip(end, -38.0 * self.noise, 38.0 * self.noise)) for end in (low, high))
            edges = _edges(low, high, self.noise)
            half = 0.5 * np.diff(edges)
            y = (0.5 * (edges[1:] + edges[:-1]))[:, None] + half[:, None] * _NODES
            q = np.exp(-0.5 * (y / self.noise) ** 2) / (self.noise * math.sqrt(2.0 * math.pi))
            f = self.loss(y.ravel()).reshape(y.shape)
            total += float(np.sum(half[:, None] * _WEIGHTS * q * np.maximum(gain(f), 0.0)))
            size += float(np.sum(half[:, None] * _WEIGHTS * q))
        return total, 1e-9 * total + 1e-15 * size


def _edges(low: float, high: float, noise: float) -> np.ndarray:
    """Panels of about one standard deviation, from whichever end is nearer to 0; further out there is nothing."""
    if high <= low:
        return np.array([low, low])
    if low >= 0.0:
        return np.linspace(low, min(high, low + _PANELS * noise), _PANELS + 1)
    if high <= 0.0:
        return np.linspace(max(low, high - _PANELS * noise), high, _PANELS + 1)
    return np.concatenate((_edges(low, 0.0, noise), _edges(0.0, high, noise)[1:]))


def _log_interval(low, high):
    """log of the standard normal's probability between two ends."""
    low, high = np.asarray(low, float), np.asarray(high, float)
    flip = low + high > 0.0
    near, far = log_ndtr(np.where(flip, -low, high)), log_ndtr(np.where(flip, -high, low))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(high > low, near + np.log(-np.expm1(far - near)), -np.inf)


def mixture_of(run: DPSGD) -> Mixture:
    """Every outcome by itself."""
    weights = np.broadcast_to(np.asarray(run.effective_weights(), float), (run.steps,))
    noise = math.sqrt(math.fsum((weights * np.broadcast_to(run.noise_multiplier, (run.steps,))) ** 2))
    if run.sampling == "shuffled":
        points, masses = _shuffled(weights, float(run.sample_rate))
        keep = masses > 0.0
        return Mixture(points[keep], np.log(masses[keep]), noise)
    rates = np.broadcast_to(np.asarray(run.sample_rate, float), (run.steps,))
    if np.ptp(weights) == 0.0 and np.ptp(rates) == 0.0:
        count = np.arange(run.steps + 1)
        log_mass = binom.logpmf(count, run.steps, rates[0])
        log_mass -= logsumexp(log_mass)  # SciPy's logarithms of factorials share their errors
        return Mixture(*_present(count * weights[0], log_mass), noise)
    points, log_mass = np.zeros(1), np.zeros(1)
    with np.errstate(divide="ignore"):
        for weight, log_in, log_out in zip(weights, np.log(rates), np.log1p(-rates), strict=True):
            points = np.concatenate((points, points + weight))
            log_mass = np.concatenate((log_mass + log_out, log_mass + log_in))
    return Mixture(*_present(points, log_mass), noise)


def _present(points, log_mass):
    keep = log_mass > -np.inf
    return points[keep], log_mass[keep]


def _shuffled(weights: np.ndarray, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """The canary is in one batch of each epoch; the last batch of an epoch takes what is left."""
    length = math.ceil(1.0 / rate - 1e-9)
    chances = np.full(length, rate)
    chances[-1] = 1.0 - rate * (length - 1)
    points, masses = np.zeros(1), np.ones(1)
    for start in range(0, weights.size, length):
        values = np.zeros(length)
        epoch = weights[start : start + length]
        values[: epoch.size] = epoch
        points, masses = np.add.outer(points, values).ravel(), np.multiply.outer(masses, chances).ravel()
    return points, masses


def told_delta(run: DPSGD, epsilon: float) -> tuple[float, float]:
    """Delta where the number of batches with the canary is told: Gaussians, by the binomial's weights."""
    sigma, rate = float(np.min(run.noise_multiplier)), float(np.max(run.sample_rate))
    if run.sampling == "shuffled":
        count, log_mass = np.array([math.ceil(run.steps / math.ceil(1.0 / rate - 1e-9))]), np.zeros(1)
    else:
        count = np.arange(run.steps + 1)
        count, log_mass = _present(count, binom.logpmf(count, run.steps, rate))
    mu, log_mass = np.sqrt(count[count > 0]) / sigma, log_mass[count > 0]
    log_p, log_q = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    terms = np.exp(log_mass + log_p) * -np.expm1(np.minimum(log_q - log_p, 0.0))
    return float(terms.sum()), ROUNDING * float(np.exp(log_mass + log_p).sum()) * (1.0 + 1e-3 * epsilon)


def two_step_delta(rates, sigmas, epsilon: float) -> tuple[float, float]:
    """Composition of two steps: the mean over the first step's loss of what is left for the second."""
    return max(_two_steps(rates, sigmas, epsilon, add) for add in (False, True)), 1e-9


def two_step_fnr(rates, sigmas, fpr: float, cells: int = 1200) -> float:
    """The false negative rate of composition of two steps: both are put on grids, which can only raise it."""
    log_p, log_q = np.zeros(1), np.zeros(1)
    for rate, sigma in zip(rates, sigmas, strict=True):
        edges = np.concatenate(([-math.inf], np.linspace(-9.0, 9.0 + 1.0 / sigma, cells), [math.inf]))
        q = _log_interval(edges[:-1], edges[1:])
        shifted = math.log(rate) + _log_interval(edges[:-1] - 1.0 / sigma, edges[1:] - 1.0 / sigma)
        p = np.logaddexp(math.log1p(-rate) + q, shifted) if rate < 1.0 else shifted
        log_p, log_q = np.add.outer(log_p, p).ravel(), np.add.outer(log_q, q).ravel()
    order = np.argsort(log_q - log_p)
    accepted = np.append(0.0, np.cumsum(np.exp(log_q[order])))
    return float(np.interp(fpr, accepted, 1.0 - np.append(0.0, np.cumsum(np.exp(log_p[order])))))


def _two_steps(rates, sigmas, epsilon: float, add: bool) -> float:
    (rate, other), (sigma, other_sigma) = rates, sigmas
    edges = np.linspace(-13.0 * sigma, 1.0 + 13.0 * sigma, 400)
    if other < 1.0:
        edges = _finer(edges, _where_loss_is(-math.log1p(-other) + (-epsilon if add else epsilon), rate, sigma))
    half = 0.5 * np.diff(edges)
    x = ((0.5 * (edges[1:] + edges[:-1]))[:, None] + half[:, None] * _NODES).ravel()
    log_q = -0.5 * (x / sigma) ** 2 - math.log(sigma * math.sqrt(2.0 * math.pi))
    loss = _one_loss(x, rate, sigma)
    weight = (half[:, None] * _WEIGHTS).ravel() * np.exp(log_q if add else log_q + loss)
    return float(weight @ _one_step(epsilon + loss if add else epsilon - loss, other, other_sigma, add))


def _where_loss_is(loss: float, rate: float, sigma: float) -> float | None:
    """Where one step has this loss; None: it never has."""
    least = math.log1p(-rate) if rate < 1.0 else -math.inf
    if loss <= least:
        return None
    return 0.5 + sigma**2 * (loss + math.log(-math.expm1(least - loss)) - math.log(rate))


def _finer(edges: np.ndarray, kink: float | None) -> np.ndarray:
    """Edges that crowd where the second step begins to matter, beyond which the integrand is as good as constant."""
    if kink is None or not edges[0] < kink < edges[-1]:
        return edges
    near = (edges[1] - edges[0]) * 2.0 ** -np.arange(40.0)
    crowd = np.concatenate(([kink], kink + near, kink - near))
    return np.unique(np.clip(np.concatenate((edges, crowd)), edges[0], edges[-1]))


def _one_loss(x, rate, sigma):
    return np.logaddexp(math.log1p(-rate) if rate < 1.0 else -math.inf, math.log(rate) + (x - 0.5) / sigma**2)


def _one_step(epsilon: np.ndarray, rate: float, sigma: float, add: bool) -> np.ndarray:
    """P - e^epsilon Q (or Q - e^epsilon P) of the best set, for any real epsilon."""
    target = -epsilon if add else epsilon
    gap = target - (math.log1p(-rate) if rate < 1.0 else -math.inf)
    with np.errstate(all="ignore"):
        x = sigma**2 * (target + np.log(-np.expm1(-gap)) - math.log(rate)) + 0.5
        side = 1.0 if add else -1.0
        log_q = log_ndtr(side * x / sigma)
        log_p = np.logaddexp(np.log1p(-rate) + log_q, math.log(rate) + log_ndtr(side * (x - 1.0) / sigma))
        inside = np.exp(log_q) - np.exp(epsilon + log_p) if add else np.exp(log_p) - np.exp(epsilon + log_q)
        return np.where(gap > 0.0, inside, 0.0 if add else -np.expm1(epsilon))  # or the loss is always larger


def discrete_delta(p: np.ndarray, q: np.ndarray, epsilon: float) -> tuple[float, float]:
    """Delta of two distributions on the same points."""
    factor = math.exp(epsilon)
    return max(float(np.maximum(p - factor * q, 0).sum()), float(np.maximum(q - factor * p, 0).sum())), ROUNDING


def all_prefixes(run: DPSGD) -> list[Mixture]:
    """The run stopped at every step; what has learnt nothing by then is left out."""
    weights = (run.prefix(t) for t in range(1, run.steps + 1))
    return [mixture_of(prefix) for prefix in weights if np.any(prefix.effective_weights())]
