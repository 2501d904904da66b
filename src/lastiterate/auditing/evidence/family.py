"""Families of mechanisms that are known up to the amount of noise: the paper's "PLD approach".

Upper bounds on both error rates lie on or above the trade-off curve of the true mechanism. More noise means a higher
curve. So the noise whose curve passes through the upper bounds is the largest that the scores allow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import ndtr, ndtri

from lastiterate.common.types import FloatArray
from lastiterate.privacy.analyses.calibrate import bracket_noise, calibrate
from lastiterate.privacy.analyses.composition import composition
from lastiterate.privacy.analyses.last_iterate import last_iterate
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.released_blocks import released_laws
from lastiterate.privacy.mixtures.solve import Secants, invert
from lastiterate.run import DPSGD

_GAUSSIAN = DPSGD(steps=1, sample_rate=1.0, noise_multiplier=1.0)
_LEAST_NOISE, MOST_NOISE = 1e-4, 1e12  # range of noise multipliers that are tried
_STEP, _STEP_OF_COMPOSITION = math.log(4.0), math.log(1.3)  # of log noise, while the root is being bracketed
_MOST_EPSILON, _DELTA = 50.0, 1e-5  # the composition family is followed up to this epsilon at this delta
_NODES, _NODES_OF_COMPOSITION = 32, 10  # of a curve that only ranks thresholds
_SMALLEST, _LARGEST = 1e-300, 1.0 - 1e-12  # rates with a finite normal quantile


@dataclass(frozen=True)
class Family:
    """A run whose noise multipliers are known up to one factor, under one analysis."""

    name: str
    analysis: Callable[[DPSGD], PrivacyCurve]
    run: DPSGD

    @property
    def is_slow(self) -> bool:
        """True if privacy losses of several blocks or steps add up: curves with little noise take up to minutes."""
        return self.name == "composition" or (self.name == "last-iterate" and self.run.release_count > 1)

    def curve(self, factor: float) -> PrivacyCurve:
        """Return the curve of the family's member with the noise scaled by this factor."""
        return self.analysis(self.run.replace(noise_multiplier=self.run.noise_multiplier * factor))

    def factor(self, fpr: float, fnr: float) -> float:
        """Return the factor whose curve passes through these rates.

        The factor is infinite if guessing explains the rates. It is 0 if the rates are below the curve of every member:
        even without noise, a model whose batches never had the canary looks like a model without it.
        """
        if fnr >= 1.0 - fpr:
            return math.inf
        if fnr <= float(self.least_fnr(np.array(fpr))):
            return 0.0
        return _factor(self, fpr, fnr)

    def epsilon(self, fpr: float, fnr: float, delta: float) -> float:
        """Return the lower bound on epsilon that upper bounds on the two rates imply."""
        factor = self.factor(fpr, fnr)
        if factor in (0.0, math.inf):
            return math.inf if factor == 0.0 else 0.0
        return float(self.curve(factor).epsilon(delta))

    def noise_multiplier(self, fpr: float, fnr: float) -> float:
        """Return the largest noise multiplier of the first step that the two rates allow."""
        return float(np.ravel(self.run.noise_multiplier)[0]) * self.factor(fpr, fnr)

    def merits(self, fpr: FloatArray, fnr: FloatArray, delta: float) -> FloatArray:
        """Return the merit of each row of possible upper bounds: its mean distance below the curve of one member.

        The curve of this member passes through the medians of the row that is best for a Gaussian mechanism. Distances
        are between normal quantiles, in which curves of a family are nearly parallel.
        """
        distance = ndtri(fnr)
        gaussian: FloatArray = -(ndtri(fpr).mean(axis=1) + distance.mean(axis=1))
        best = int(np.argmax(gaussian))
        if self.run.release_count > 1 and self.is_slow:
            return gaussian
        factor = self.factor(float(np.median(fpr[best])), float(np.median(fnr[best])))
        if self.name == "gdp" or factor in (0.0, math.inf) or np.any(np.asarray(self.run.effective_weights()) < 0.0):
            return gaussian  # a curve with weights of both signs takes long
        below: FloatArray = self._quantiles(factor, fpr).mean(axis=1) - distance.mean(axis=1)
        return below

    def _quantiles(self, factor: float, fpr: FloatArray) -> FloatArray:
        """Return normal quantiles of a curve's false negative rates, interpolated between a few nodes."""
        at = ndtri(np.clip(fpr, _SMALLEST, _LARGEST))
        count = _NODES_OF_COMPOSITION if self.name == "composition" else _NODES
        nodes = np.linspace(at.min(), at.max(), count)
        rates = self.curve(factor).fnr(ndtr(nodes))
        between: FloatArray = np.interp(at, nodes, ndtri(np.maximum(rates, _SMALLEST)))
        return between

    @cached_property
    def least_log_factor(self) -> float:
        """The logarithm of the least factor that is tried.

        Composition, and several releases, are followed up to an epsilon of 50 or twice the run's own, whichever is
        larger. Beyond, one value of the curve takes up to a minute. The epsilon at this limit is still a lower bound,
        because more noise means a smaller epsilon.
        """
        if not self.is_slow:
            return math.log(_LEAST_NOISE / float(np.min(self.run.noise_multiplier)))
        most = max(_MOST_EPSILON, 2.0 * float(self.curve(1.0).epsilon(_DELTA)))
        least = calibrate(self.run, epsilon=most, delta=_DELTA, analysis=self.analysis)
        return math.log(float(np.max(least.noise_multiplier)) / float(np.max(self.run.noise_multiplier)))

    def least_fnr(self, fpr: FloatArray) -> FloatArray:
        """Return the false negative rates of the curve without any noise.

        Every use of the canary is then seen. If another example replaces the canary, the use of this example is seen as
        well, so false positives come only from models that used neither.
        """
        if self.run.neighbours == "replace":
            return np.maximum(self.never_used - fpr, 0.0)
        return self.never_used * (1.0 - fpr)

    @cached_property
    def never_used(self) -> float:
        """The probability that a model with the canary never used it, so that only noise distinguishes the worlds."""
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
        raise ValueError(f"run must be given with method {method!r}, for its steps, sample rate and weights; got None")
    if run.optimizer is not None and run.release_count == 1:  # with several releases, each block has its own weights
        run = run.replace(optimizer=None, weights=run.effective_weights())
    family = Family(method, last_iterate if method == "last-iterate" else composition, run)
    family.curve(1.0)  # raises an error at once if the analysis refuses the run
    return family


@lru_cache(maxsize=4096)
def _factor(family: Family, fpr: float, fnr: float) -> float:
    """Return the factor whose curve passes through these rates, by root finding."""
    goal = np.float64(ndtri(fnr))

    def normal_quantile(log_factor: float) -> float:
        """Return the normal quantile of the member's false negative rate at the given false positive rate."""
        return float(ndtri(max(family.curve(math.exp(log_factor)).fnr(fpr), _SMALLEST)))

    quantile = Secants(normal_quantile)
    most = math.log(MOST_NOISE / float(np.max(family.run.noise_multiplier)))
    start, step = 0.0, _STEP
    if family.is_slow:
        # Start at the run's own noise or above: the least noise to try takes long to find and is seldom needed.
        start = max(near_composition(family.run, float(-ndtri(fpr) - goal)), 0.0)
        step = _STEP_OF_COMPOSITION
    low, high = bracket_noise(
        lambda log_factor: bool(quantile(np.float64(log_factor))[0] >= goal),
        start,
        lambda log_factor: min(family.least_log_factor, 0.0) if log_factor <= 0.0 else 0.0,
        most,
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
    """Return a step slightly beyond the root of a secant. Longer steps may reach slow curves with little noise."""
    (x, value), (before, earlier) = seen[-1], seen[-2] if len(seen) > 1 else seen[-1]
    slope = (value - earlier) / (x - before) if x != before else 0.0
    return min(1.1 * abs(goal - value) / slope + 0.01, longest) if slope > 0.0 else 0.4 * longest


def near_composition(run: DPSGD, mu: float) -> float:
    """Return the logarithm of a factor near the root, by the central limit theorem of Bu et al. (2020)."""
    times = 1 if np.ndim(run.sample_rate) else run.steps
    apart = run.group_size * (2 if run.neighbours == "replace" else 1)
    squares = float(np.sum(np.square(apart * np.asarray(run.sample_rate)))) * times
    precision = float(np.mean(np.square(1.0 / np.asarray(run.noise_multiplier))))
    return -0.5 * math.log(math.log1p(mu * mu / squares) / precision)
