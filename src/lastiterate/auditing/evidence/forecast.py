"""Forecasts of an audit: the distribution of its bounds, before it begins.

At a threshold that is fixed in advance, the numbers of false positives and of false negatives are binomial, and their
rates follow from the law of the scores (`score_signal`). So the probability that a bound reaches an epsilon is a sum.
If the scores choose the threshold, audits are simulated (`simulated_audits`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.special import ndtr, ndtri

from lastiterate.attacks.attack import ExpectedScores, LikelihoodRatio, LinearScores, Unknown
from lastiterate.auditing.evidence.error_rates import ErrorCounts, bound_on_rates, epsilon_of, upper_bound
from lastiterate.auditing.evidence.estimates import a_priori_threshold, likelihood_ratios
from lastiterate.auditing.evidence.family import MOST_NOISE, Family, family_of
from lastiterate.auditing.evidence.one_run.guesses import usual_guesses, ways_of
from lastiterate.auditing.evidence.one_run.one_run_power import OneRunPlan, best_guesses
from lastiterate.auditing.evidence.score_signal import Kind, false_alarms, score_below, sees_every_step
from lastiterate.auditing.evidence.simulated_audits import Procedure
from lastiterate.auditing.evidence.threshold import predicted_threshold, rule_of
from lastiterate.common.types import FloatArray, IntArray
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.registry import FAMILIES
from lastiterate.run import DPSGD

IDEAL = LinearScores()  # scores of an attack that sees all of the canary, and nothing else but the noise
CHANCE = 0.8  # the required power: the probability of a "detectable" epsilon, and of refuting a claim
_NEAR = 1e-11  # tolerance of an epsilon, or of log noise
_NODES = 129  # of an interpolated curve
_SMALLEST, _LARGEST = 1e-300, 1.0 - 1e-16  # rates with a finite normal quantile
_STEP = math.log(4.0)  # of log noise, while the root is being bracketed


@dataclass(frozen=True)
class Outlook:
    """The forecast of an audit of many models.

    Attributes:
        run: the run, trained exactly as described.
        models: number of counted models in each world.
        delta: of (epsilon, delta)-DP.
        confidence: of the bounds.
        expected: the law of the scores by which thresholds are predicted.
        validity: "fixed" or "anytime", as in ``estimate``.
        threshold: a number chosen in advance, "split" or "corrected". None: the predicted threshold.
        horizon: number of models a world for which thresholds are predicted. None: ``models``.
        scores: the true law of the scores. None: ``expected``.
    """

    run: DPSGD
    models: int
    delta: float = 1e-5
    confidence: float = 0.95
    expected: ExpectedScores = IDEAL
    validity: str = "fixed"
    threshold: float | str | None = None
    horizon: int | None = None
    scores: ExpectedScores | None = None

    @property
    def kind(self) -> Kind:
        """The kind of the scores."""
        return Kind.ALL_ITERATES if sees_every_step(self.expected) else Kind.LAST_ITERATE

    def procedure(self) -> Procedure:
        """Return the procedure that simulates this audit."""
        rule = self.threshold if isinstance(self.threshold, str) else self.threshold_for
        return Procedure(self.run, self.models, self.delta, self.confidence, self.kind, rule, self.validity)

    def reached(self, method: str, chance: float = CHANCE) -> float:
        """The largest epsilon that the bound of this method reaches with at least this probability."""
        if isinstance(self.threshold, str):
            fpr, fnr = self.procedure().reached(method, chance, self.expected)
            return rule_of(method, self.run).epsilon(fpr, fnr, self.delta)
        if method in FAMILIES and (slow := family_of(method, self.run)).is_slow:
            return self._slowly(slow, chance)
        errors = self.errors_at(self.threshold_for(method, self.confidence), self.expected)
        upper = self.upper_bounds(errors, self.confidence)
        if method in FAMILIES:
            family = family_of(method, self.run)
            factor = _least_factor(family, errors, upper, chance)
            return _epsilon_of(family, factor, self.delta)
        return _free(errors, upper, self.delta, chance)

    def threshold_for(self, method: str, confidence: float) -> float:
        """Return the threshold that is fixed in advance for this method."""
        if self.threshold is not None:
            return float(self.threshold)
        sizes = (self.horizon or self.models,) * 2
        expected = IDEAL if isinstance(self.expected, Unknown) else self.expected
        return a_priori_threshold(self.run, expected, sizes, self.delta, confidence, method, self.validity)

    def errors_at(self, threshold: float, scores: ExpectedScores) -> tuple[ErrorCounts, ErrorCounts]:
        """Return the laws of the numbers of false positives and of false negatives for this law of the scores."""
        fpr, fnr = error_rates(self.run, scores, threshold)
        return ErrorCounts.of(self.models, fpr), ErrorCounts.of(self.models, fnr)

    def upper_bounds(self, errors: tuple[ErrorCounts, ErrorCounts], confidence: float) -> tuple[FloatArray, FloatArray]:
        """Return the upper bounds on both rates for each number of errors."""
        bound, error = bound_on_rates("a-priori", self.validity), 0.5 * (1.0 - confidence)
        fpr, fnr = (np.asarray(bound(each.counts, self.models, error)) for each in errors)
        return fpr, fnr

    def _slowly(self, family: Family, chance: float) -> float:
        """Return the largest epsilon reached with this probability, for a family whose curves take long.

        A quicker family with nearly parallel curves ranks the outcomes. The epsilon of the chosen outcome is the slow
        family's own.
        """
        errors = self.errors_at(self.threshold_for(family.name, self.confidence), self.expected)
        upper = self.upper_bounds(errors, self.confidence)
        quicker = family_of("gdp" if isinstance(self.expected, LikelihoodRatio) else "last-iterate", self.run)
        factor = _least_factor(quicker, errors, upper, chance)
        if factor in (0.0, math.inf):
            return math.inf if factor == 0.0 else 0.0
        limit = fnr_of(quicker.curve(factor), upper[0])
        fitting = np.searchsorted(upper[1], limit + 1e-12, side="right") - 1  # the worst outcome in the limit, by row
        gap = np.where(fitting >= 0, limit - upper[1][np.maximum(fitting, 0)], np.inf)
        row = int(np.argmin(gap))
        column = int(fitting[row])
        return family.epsilon(float(upper[0][row]), float(upper[1][column]), self.delta)


@dataclass(frozen=True)
class OneRunOutlook:
    """The forecast of an audit of many canaries in one training; attributes as in ``Outlook``."""

    run: DPSGD
    models: int
    delta: float = 1e-5
    confidence: float = 0.95
    expected: ExpectedScores = IDEAL
    threshold: float | str | None = None
    scores: ExpectedScores | None = None

    def procedure(self) -> Procedure:
        """Return the procedure that simulates this audit."""
        rule = self.threshold or "a-priori"
        fixed = rule if isinstance(rule, str) else lambda method, confidence: float(rule)
        return Procedure(self.run, self.models, self.delta, self.confidence, Kind.ONE_MODEL, fixed, plans=self.plan)

    def reached(self, method: str, chance: float = CHANCE) -> float:
        """The largest epsilon that the bound of this method reaches with at least this probability."""
        if method == "one-run-independent":
            return self._independent(chance)
        if self.threshold == "corrected":
            ways = ways_of(self.models, "corrected")
            plan = self.plan(method, 1.0 - (1.0 - self.confidence) / len(ways))
            counts = sorted({top + bottom for top, bottom in ways if bottom})
            return max(replace(plan, guesses=count).reached(method, chance) for count in counts)
        return self.plan(method, self.confidence).reached(method, chance)

    def plan(self, method: str, confidence: float) -> OneRunPlan:
        """Return the plan of this method: its number of guesses, and the law of its scores."""
        linear = self.expected if isinstance(self.expected, LinearScores) else IDEAL
        options = self.delta, confidence, linear.signal, linear.spread
        guesses = usual_guesses(self.models)
        if isinstance(self.expected, LinearScores):
            guesses = best_guesses(self.run, self.models, method, *options)
        return OneRunPlan(self.run, self.models, guesses, *options)

    def _independent(self, chance: float) -> float:
        linear = self.expected if isinstance(self.expected, LinearScores) else IDEAL
        half = max(self.models // 2, 1)
        threshold = predicted_threshold(
            self.run, half, half, self.delta, self.confidence, spread=linear.spread, signal=linear.signal
        )
        rates = error_rates(self.run, linear, threshold)
        error = min(0.5 * (1.0 - self.confidence), 0.25)
        errors = tuple(ErrorCounts.of(self.models, 0.5 * rate) for rate in rates)
        fpr, fnr = (np.minimum(2.0 * upper_bound(each.counts, self.models, error), 1.0) for each in errors)
        return _free((errors[0], errors[1]), (fpr, fnr), self.delta, chance)


def perfect(outlook: Outlook | OneRunOutlook) -> Outlook | OneRunOutlook:
    """Return the same audit by an attack that sees all of the canary, and nothing else but the noise."""
    if isinstance(outlook.expected, LikelihoodRatio):
        return replace(outlook, expected=replace(outlook.expected, signal=1.0))
    return replace(outlook, expected=IDEAL)


def error_rates(run: DPSGD, scores: ExpectedScores, threshold: float) -> tuple[float, float]:
    """Return the false positive rate and the false negative rate for this law of the scores."""
    if isinstance(scores, LikelihoodRatio):
        drawn = likelihood_ratios(run, scores)
        wrong = drawn.errors(np.float64(threshold))
        return float(wrong[0] / drawn.outside.size), float(wrong[1] / drawn.inside.size)
    linear = scores if isinstance(scores, LinearScores) else IDEAL
    at, law = np.array([threshold]), {"spread": linear.spread, "signal": linear.signal}
    return float(false_alarms(run, at, **law)[0]), float(score_below(run, at, **law)[0])


def chance_within(
    errors: tuple[ErrorCounts, ErrorCounts], fnr: FloatArray, limit: FloatArray, side: str = "right"
) -> float:
    """Return the probability that the upper bound on the false negative rate is at most ``limit``.

    ``limit`` has one value for each number of false positives. With ``side`` "left", the bound must be below it.
    """
    fitting = np.searchsorted(fnr, limit, side="left" if side == "left" else "right")
    return float(errors[0].masses @ errors[1].at_most[fitting])


def allowed_fnr(epsilon: float, fpr: FloatArray, delta: float) -> FloatArray:
    """Return the largest false negative rate at which these false positive rates still show this epsilon."""
    odds = math.exp(min(epsilon, 700.0))
    limit: FloatArray = np.maximum(1.0 - delta - odds * fpr, (1.0 - fpr - delta) / odds)
    return limit


def fnr_of(curve: PrivacyCurve, fpr: FloatArray) -> FloatArray:
    """Return the curve's false negative rates, interpolated in normal quantiles if there are many.

    Curves are nearly straight in normal quantiles, so interpolation is as exact, and saves time and memory.
    """
    if fpr.size <= _NODES:
        return np.asarray(curve.fnr(fpr))
    at = ndtri(np.clip(fpr, _SMALLEST, _LARGEST))
    nodes = np.linspace(at.min(), at.max(), _NODES)
    rates = np.clip(np.asarray(curve.fnr(ndtr(nodes))), _SMALLEST, _LARGEST)
    between: FloatArray = ndtr(PchipInterpolator(nodes, ndtri(rates))(at))
    return between


def _free(
    errors: tuple[ErrorCounts, ErrorCounts], upper: tuple[FloatArray, FloatArray], delta: float, chance: float
) -> float:
    """Return the largest epsilon that the assumption-free bound reaches with this probability."""

    def enough(epsilon: float) -> bool:
        return chance_within(errors, upper[1], allowed_fnr(epsilon, upper[0], delta)) >= chance

    low, high = 0.0, float(epsilon_of(upper[0][0], upper[1][0], delta))
    if enough(high):
        return high
    while high - low > _NEAR:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low


def _least_factor(
    family: Family, errors: tuple[ErrorCounts, ErrorCounts], upper: tuple[FloatArray, FloatArray], chance: float
) -> float:
    """Return the least noise factor whose curve is above the rates with this probability.

    The factor is 0 or infinity in the same cases as ``Family.factor``.
    """
    fpr, fnr = upper

    def fitting(log_factor: float, rows: IntArray) -> IntArray:
        """Return how many numbers of false negatives are below the curve, at these numbers of false positives."""
        return np.searchsorted(fnr, fnr_of(family.curve(math.exp(log_factor)), fpr[rows]), side="right")

    def enough(counts: IntArray) -> bool:
        return float(errors[0].masses @ errors[1].at_most[counts]) >= chance

    if chance_within(errors, fnr, 1.0 - fpr, "left") < chance:
        return math.inf
    if chance_within(errors, fnr, family.least_fnr(fpr)) >= chance:
        return 0.0
    least = family.least_log_factor
    most = math.log(MOST_NOISE / float(np.max(family.run.noise_multiplier)))
    rows = np.arange(fpr.size)
    low = high = 0.0
    below = above = fitting(0.0, rows)
    while high < most and not enough(above):
        low, high, below = high, min(high + _STEP, most), above
        above = fitting(high, rows)
    if high == 0.0:
        while enough(below):
            if low <= least:
                return 0.0
            low, high, above = max(low - _STEP, least), low, below
            below = fitting(low, rows)
    while high - low > _NEAR and np.any(below != above):
        middle = 0.5 * (low + high)
        rows = np.flatnonzero(below != above)  # curves rise with the noise, so other rows do not change
        counts = below.copy()
        counts[rows] = fitting(middle, rows)
        low, high, below, above = (low, middle, below, counts) if enough(counts) else (middle, high, counts, above)
    return math.exp(high)


def _epsilon_of(family: Family, factor: float, delta: float) -> float:
    if factor in (0.0, math.inf):
        return math.inf if factor == 0.0 else 0.0
    return float(family.curve(factor).epsilon(delta))
