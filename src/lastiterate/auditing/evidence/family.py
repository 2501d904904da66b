"""Families of mechanisms whose amount of noise is unknown: the paper's "PLD approach".

Upper bounds on both error rates lie on or above the trade-off curve of the true mechanism. More noise means a higher
curve. So the noise whose curve passes through the upper bounds is the largest noise that the scores allow.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import ndtr, ndtri

from lastiterate.common.errors import BadArgument
from lastiterate.common.types import FloatArray
from lastiterate.privacy.analyses.calibrate import bracket_noise, calibrate
from lastiterate.privacy.analyses.composition import composition
from lastiterate.privacy.analyses.last_iterate import last_iterate
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures.law import Law, released_laws
from lastiterate.privacy.mixtures.solve import Secants, invert
from lastiterate.run import DPSGD

_GAUSSIAN = DPSGD(steps=1, sample_rate=1.0, noise_multiplier=1.0)
_LEAST_NOISE, _MOST_NOISE = 1e-4, 1e12  # range of noise multipliers that are tried
_STEP, _STEP_OF_COMPOSITION = math.log(4.0), math.log(1.3)  # steps of log noise while a root is bracketed
_MOST_EPSILON, _DELTA = 50.0, 1e-5  # the composition family is evaluated up to this epsilon at this delta
_NODES, _NODES_OF_COMPOSITION = 32, 10  # nodes of a curve that only ranks thresholds
_SMALLEST, _LARGEST = 1e-300, 1.0 - 1e-16  # rates with a finite normal quantile


def normal_quantiles(rates: FloatArray, largest: float = _LARGEST) -> FloatArray:
    """Return the normal quantiles of rates. All of them are finite."""
    return np.asarray(ndtri(np.clip(rates, _SMALLEST, largest)))


def curve_in_quantiles(curve: PrivacyCurve, low: float, high: float, nodes: int) -> tuple[FloatArray, FloatArray]:
    """Return normal quantiles of false positive rates and of a curve's false negative rates, to interpolate between.

    Trade-off curves are nearly straight in normal quantiles.
    """
    at = np.linspace(low, high, nodes)
    return at, normal_quantiles(np.asarray(curve.fnr(ndtr(at))))


@dataclass(frozen=True)
class Family:
    """A family of mechanisms: a run under one analysis, with its noise multipliers scaled by an unknown factor."""

    name: str
    analysis: Callable[[DPSGD], PrivacyCurve]
    run: DPSGD

    @property
    def is_slow(self) -> bool:
        """True if privacy losses of several blocks or steps are added. Curves with little noise then take minutes."""
        return self.name == "composition" or (self.name == "last-iterate" and self.run.release_count > 1)

    def curve(self, factor: float) -> PrivacyCurve:
        """Return the privacy curve of the run with its noise scaled by ``factor``."""
        return self.analysis(self.run.replace(noise_multiplier=self.run.noise_multiplier * factor))

    def factor(self, fpr: float, fnr: float) -> float:
        """Return the noise factor whose trade-off curve passes through these error rates.

        The factor is infinite if random guessing explains the rates, and 0 if the rates are below all curves.
        """
        if fnr >= 1.0 - fpr:
            return math.inf
        if fnr <= float(self.least_fnr(np.array(fpr))):
            return 0.0
        return _factor(self, fpr, fnr)

    def epsilon(self, fpr: float, fnr: float, delta: float) -> float:
        """Return a lower bound on epsilon, from upper bounds on the false positive and false negative rates."""
        return self.epsilon_at(self.factor(fpr, fnr), delta)

    def epsilon_at(self, factor: float, delta: float) -> float:
        """Return epsilon for the noise scaled by ``factor``. It is 0 for infinite noise, and infinite for no noise."""
        if factor in (0.0, math.inf):
            return math.inf if factor == 0.0 else 0.0
        return float(self.curve(factor).epsilon(delta))

    def noise_multiplier(self, fpr: float, fnr: float) -> float:
        """Return the largest noise multiplier of the first step that the upper bounds on the two rates allow."""
        return self.noise_at(self.factor(fpr, fnr))

    def noise_at(self, factor: float) -> float:
        """Return the noise multiplier of the first step, scaled by the factor."""
        return float(np.ravel(self.run.noise_multiplier)[0]) * factor

    def merits(self, fpr: FloatArray, fnr: FloatArray, delta: float) -> FloatArray:
        """Return the merit of each row of possible upper bounds: the mean distance below one curve of the family.

        This curve passes through the medians of the row that is best for a Gaussian mechanism. Distances are measured
        in normal quantiles, in which the curves of a family are nearly parallel.
        """
        distance = ndtri(fnr)
        gaussian: FloatArray = -(ndtri(fpr).mean(axis=1) + distance.mean(axis=1))
        best = int(np.argmax(gaussian))
        if self.run.release_count > 1 and self.is_slow:
            return gaussian
        factor = self.factor(float(np.median(fpr[best])), float(np.median(fnr[best])))
        if self.name == "gdp" or factor in (0.0, math.inf) or np.any(np.asarray(self.run.effective_weights()) < 0.0):
            return gaussian  # a curve with weights of both signs takes long to compute
        at = normal_quantiles(fpr, 1.0 - 1e-12)
        count = _NODES_OF_COMPOSITION if self.name == "composition" else _NODES
        nodes, values = curve_in_quantiles(self.curve(factor), at.min(), at.max(), count)
        return np.asarray(np.interp(at, nodes, values).mean(axis=1) - distance.mean(axis=1))

    @cached_property
    def least_log_factor(self) -> float:
        """The logarithm of the least factor that is tried.

        Slow families are evaluated up to the larger of 50 and twice the run's epsilon. Above this
        limit one value takes up to a minute. The limit is still a lower bound, as less noise means a larger epsilon.
        """
        if not self.is_slow:
            return math.log(_LEAST_NOISE / float(np.min(self.run.noise_multiplier)))
        most = max(_MOST_EPSILON, 2.0 * float(self.curve(1.0).epsilon(_DELTA)))
        least = calibrate(self.run, epsilon=most, delta=_DELTA, analysis=self.analysis)
        return math.log(float(np.max(least.noise_multiplier)) / float(np.max(self.run.noise_multiplier)))

    @property
    def most_log_factor(self) -> float:
        """The logarithm of the largest factor that is tried."""
        return math.log(_MOST_NOISE / float(np.max(self.run.noise_multiplier)))

    def least_fnr(self, fpr: FloatArray) -> FloatArray:
        """Return the false negative rates if there is no noise, so that every use of the canary is seen."""
        if self.run.is_mirrored:
            return np.maximum(self.never_used - fpr, 0.0)
        return self.never_used * (1.0 - fpr)

    @cached_property
    def never_used(self) -> float:
        """The probability that a model with the canary never used the canary."""
        if self.name == "composition":
            missed = (1.0 - np.asarray(self.run.sample_rate)) ** self.run.group_size
            return float(np.prod(missed) if missed.ndim else missed**self.run.steps)
        return float(np.prod([_never_used(law) ** count for count, law in released_laws(self.run)]))


def _never_used(law: Law) -> float:
    if law.constant != 0.0:
        return 0.0
    blocks = math.prod(float(np.sum(p[v == 0.0])) for v, p in law.blocks)
    return blocks * float(np.exp(np.sum(law.counts * np.log1p(-law.rates))))


def family_of(method: str, run: DPSGD | None) -> Family:
    """Return the family of a method. "gdp" is one full-batch step and needs no run."""
    if method == "gdp":
        return Family("gdp", last_iterate, _GAUSSIAN)
    if run is None:
        raise BadArgument(
            "run", f"must be given for method {method!r}, to know steps, sample rate and weights; got None"
        )
    if run.optimizer is not None and run.release_count == 1:  # with several releases, each block has its own weights
        run = run.replace(optimizer=None, weights=run.effective_weights())
    family = Family(method, last_iterate if method == "last-iterate" else composition, run)
    family.curve(1.0)  # raises an error at once if the analysis refuses the run
    return family


@lru_cache(maxsize=4096)
def _factor(family: Family, fpr: float, fnr: float) -> float:
    goal = np.float64(ndtri(fnr))

    def normal_quantile(log_factor: float) -> float:
        return float(ndtri(max(family.curve(math.exp(log_factor)).fnr(fpr), _SMALLEST)))

    quantile = Secants(normal_quantile)
    start, step = 0.0, _STEP
    if family.is_slow:
        # Start at the run's own noise or above: the smallest noise to try takes long to find and is seldom needed.
        start = max(near_composition(family.run, float(-ndtri(fpr) - goal)), 0.0)
        step = _STEP_OF_COMPOSITION
    low, high = bracket_noise(
        lambda log_factor: bool(quantile(np.float64(log_factor))[0] >= goal),
        start,
        lambda log_factor: min(family.least_log_factor, 0.0) if log_factor <= 0.0 else 0.0,
        family.most_log_factor,
        lambda: _stride(quantile.seen, float(goal), step),
    )
    if high == math.inf:
        return math.inf
    if low == -math.inf:
        return math.exp(high) if family.is_slow else 0.0
    ends = np.array(sorted((value, x) for x, value in quantile.seen if low <= x <= high))
    between = np.float64(np.interp(goal, ends[:, 0], ends[:, 1]))
    return math.exp(float(invert(quantile, goal, between, np.float64(low), np.float64(high))))


def _stride(seen: list[tuple[float, float]], goal: float, longest: float) -> float:
    """Return a step slightly beyond the root of a secant. A longer step may reach curves with little noise, which are
    slow.
    """
    (x, value), (before, earlier) = seen[-1], seen[-2] if len(seen) > 1 else seen[-1]
    slope = (value - earlier) / (x - before) if x != before else 0.0
    return min(1.1 * abs(goal - value) / slope + 0.01, longest) if slope > 0.0 else 0.4 * longest


def near_composition(run: DPSGD, mu: float) -> float:
    """Return the logarithm of the factor at which composition is about mu-Gaussian DP (Bu et al. 2020)."""
    times = 1 if np.ndim(run.sample_rate) else run.steps
    apart = run.group_size * (2 if run.is_mirrored else 1)
    squares = float(np.sum(np.square(apart * np.asarray(run.sample_rate)))) * times
    precision = float(np.mean(np.square(1.0 / np.asarray(run.noise_multiplier))))
    return -0.5 * math.log(math.log1p(mu * mu / squares) / precision)
