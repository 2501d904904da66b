"""Forecasts of an audit: the distribution of its bounds and of its verdict, before it begins.

At a threshold that is fixed in advance, the numbers of false positives and of false negatives are binomial. Their rates
follow from the distribution of scores (`score_signal`). So the probability that a bound reaches an epsilon is a sum.
Audits are simulated if the scores choose the threshold, if bounds hold at any time, and for many canaries in one run.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.special import ndtr

from lastiterate.attacks.attack import ExpectedScores, LikelihoodRatio, LinearScores, Unknown
from lastiterate.auditing.evidence.claims import Claim, Test, sharing_the_error
from lastiterate.auditing.evidence.error_rates import ErrorCounts, bound_on_rates, epsilon_of
from lastiterate.auditing.evidence.estimates import a_priori_threshold, likelihood_ratios
from lastiterate.auditing.evidence.family import Family, curve_in_quantiles, family_of, normal_quantiles
from lastiterate.auditing.evidence.one_run.guesses import MOST_ERROR, independent_rate, usual_guesses, ways_of
from lastiterate.auditing.evidence.one_run.one_run_power import OneRunPlan, best_guesses, refuting_guesses
from lastiterate.auditing.evidence.score_signal import IDEAL, Kind, guarantee_of, linear_rates, sees_every_step
from lastiterate.auditing.evidence.test_martingale import refuted_after
from lastiterate.auditing.evidence.threshold import CHOOSING, predicted_threshold, rule_of
from lastiterate.common.search import bisect
from lastiterate.common.types import BoolArray, FloatArray, IntArray
from lastiterate.common.validation import LEAST_NOISE, MOST_NOISE
from lastiterate.labels import FAMILIES, METHODS
from lastiterate.privacy.analyses.calibrate import bracket_noise
from lastiterate.privacy.analyses.last_iterate import last_iterate
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures.law import law_of
from lastiterate.run import DPSGD

CHANCE = 0.8  # the required power: the probability of a "detectable" epsilon, and of refuting a claim
_NEAR = 1e-11  # tolerance of a search for an epsilon or for log noise
_NODES = 129  # number of nodes of an interpolated curve
_STEP = math.log(4.0)  # step of log noise while a root is bracketed

ErrorLaws = tuple[ErrorCounts, ErrorCounts]  # distributions of the numbers of false positives and of false negatives
Rates = tuple[FloatArray, FloatArray]  # upper bounds on the false positive and on the false negative rate


@dataclass(frozen=True)
class Forecast:
    """The forecast of an audit.

    Attributes:
        run: the run, trained exactly as declared. Scores are in units of its noise.
        models: number of counted models in each world, or number of canaries of one run.
        confidence: the confidence of the bounds and of the verdict.
        expected: the distribution of the scores that is used to predict thresholds.
        validity: "fixed" or "anytime", as in ``estimate``.
        threshold: "a-priori", a number chosen in advance, "split" or "corrected".
        horizon: the number of models per world for which "anytime" thresholds are predicted. The default is ``models``.
        scores: the true distribution of the scores. The default is ``expected``.
        one_run: True for many canaries in one training.
    """

    run: DPSGD
    models: int
    delta: float = 1e-5
    confidence: float = 0.95
    expected: ExpectedScores = IDEAL
    validity: str = "fixed"
    threshold: float | str = "a-priori"
    horizon: int | None = None
    scores: ExpectedScores | None = None
    one_run: bool = False

    @property
    def kind(self) -> Kind:
        """The kind of the scores."""
        if self.one_run:
            return Kind.ONE_MODEL
        return Kind.ALL_ITERATES if sees_every_step(self.expected) else Kind.LAST_ITERATE

    @property
    def is_anytime(self) -> bool:
        """True if bounds hold for every number of models at once."""
        return self.validity == "anytime"

    @property
    def is_simulated(self) -> bool:
        """True if the probability of refuting a claim comes from simulated audits. Otherwise it is exact."""
        return self.one_run or self._scores_choose or self.is_anytime

    @property
    def _scores_choose(self) -> bool:
        return self.threshold in ("split", "corrected")

    def reached(self, method: str, chance: float = CHANCE) -> float:
        """Return the largest epsilon that the bound of this method reaches with at least this probability."""
        if self.one_run:
            return self._reached_in_one_run(method, chance)
        if self._scores_choose:
            rates = self._rates(*self._draw(self.expected), method, self.confidence, self.expected)
            order = np.argsort(self._merit(method, self.expected)(*rates))
            found = order[int((1.0 - chance) * len(order))]
            return rule_of(method, self.run).epsilon(float(rates[0][found]), float(rates[1][found]), self.delta)
        errors = self.errors_at(self.threshold_for(method, self.confidence), self.expected)
        fpr, fnr = upper = self.upper_bounds(errors, self.confidence)
        if method not in FAMILIES:
            return _free(errors, upper, self.delta, chance)
        family = quicker = family_of(method, self.run)
        if family.is_slow:
            # A quicker family with nearly parallel curves ranks the outcomes.
            quicker = family_of("gdp" if isinstance(self.expected, LikelihoodRatio) else "last-iterate", self.run)
        factor = _least_factor(quicker, errors, upper, chance)
        if not family.is_slow or factor in (0.0, math.inf):
            return quicker.epsilon_at(factor, self.delta)
        limit = fnr_of(quicker.curve(factor), fpr)
        fitting = np.searchsorted(fnr, limit + 1e-12, side="right") - 1  # the worst outcome of each row
        gap = np.where(fitting >= 0, limit - fnr[np.maximum(fitting, 0)], np.inf)
        row = int(np.argmin(gap))
        return family.epsilon(float(fpr[row]), float(fnr[fitting[row]]), self.delta)

    def _reached_in_one_run(self, method: str, chance: float) -> float:
        if not METHODS[method].counts_guesses:
            linear, half = _linear(self.expected), max(self.models // 2, 1)
            threshold = predicted_threshold(self.run, half, half, self.delta, self.confidence, scores=linear)
            fps, fns = (ErrorCounts.of(self.models, 0.5 * r) for r in error_rates(self.run, linear, threshold))
            bound, error = independent_rate(self.models), min(0.5 * (1.0 - self.confidence), MOST_ERROR)
            upper = bound(fps.counts, self.models, error), bound(fns.counts, self.models, error)
            return _free((fps, fns), upper, self.delta, chance)
        if not self._scores_choose:
            return self.plan(method, self.confidence).reached(method, chance)
        ways = ways_of(self.models, "corrected")
        plan = self.plan(method, 1.0 - (1.0 - self.confidence) / len(ways))
        counts = sorted({top + bottom for top, bottom in ways if bottom})
        return max(replace(plan, guesses=count).reached(method, chance) for count in counts)

    def plan(self, method: str, confidence: float) -> OneRunPlan:
        """Return the plan of one run for this method, with the number of guesses and the distribution of scores."""
        linear = _linear(self.expected)
        options = self.delta, confidence, linear.signal, linear.spread
        guesses = usual_guesses(self.models)
        if isinstance(self.expected, LinearScores):
            guesses = best_guesses(self.run, self.models, method, *options)
        return OneRunPlan(self.run, self.models, guesses, *options)

    def threshold_for(self, method: str, confidence: float) -> float:
        """Return the threshold that is fixed in advance for this method."""
        if not isinstance(self.threshold, str):
            return float(self.threshold)
        models = (self.horizon if self.is_anytime else None) or self.models
        expected = IDEAL if isinstance(self.expected, Unknown) else self.expected
        return a_priori_threshold(self.run, expected, (models, models), self.delta, confidence, method, self.validity)

    def errors_at(self, threshold: float, scores: ExpectedScores) -> ErrorLaws:
        """Return the distributions of the numbers of false positives and of false negatives."""
        fpr, fnr = error_rates(self.run, scores, threshold)
        return ErrorCounts.of(self.models, fpr), ErrorCounts.of(self.models, fnr)

    def upper_bounds(self, errors: ErrorLaws, confidence: float) -> Rates:
        """Return the upper bounds on both rates for each number of errors."""
        bound, error = bound_on_rates("a-priori", self.validity), 0.5 * (1.0 - confidence)
        fpr, fnr = (np.asarray(bound(each.counts, self.models, error)) for each in errors)
        return fpr, fnr

    def audits(self) -> int:
        """Return the number of audits that are simulated."""
        if self.is_anytime:  # a test martingale takes long to compute
            return _ANYTIME
        return int(np.clip(_SCORES // self.models, _FEWEST, _MOST))

    def simulated_chance(self, claim: Claim, scores: ExpectedScores) -> float:
        """Return the share of simulated audits whose verdict is a violation, for this distribution of scores."""
        if self.one_run:
            return float(np.mean(self._refuted_in_one_run(claim, _linear(scores))))
        inside, outside = self._draw(scores)
        refuted = np.zeros(len(inside), bool)
        confidence = self.confidence
        if self.is_anytime:
            error = 0.5 * (1.0 - confidence)
            refuted |= refuted_after(inside, outside, claim.curve(self.delta), error, coarse=True) > 0
            confidence = sharing_the_error(confidence)
        for test in claim.tests(self.kind, confidence):
            fpr, fnr = self._rates(inside, outside, test.method, test.confidence, scores)
            if test.run is None:
                refuted |= np.asarray(epsilon_of(fpr, fnr, self.delta) > test.guarantee)
            else:
                refuted |= np.asarray(guaranteed_fnr(test.run, fpr) > fnr)
        return float(refuted.mean())

    def _draw(self, scores: ExpectedScores) -> tuple[FloatArray, FloatArray]:
        shape, generator = (self.audits(), self.models), np.random.default_rng(0)
        if isinstance(scores, LikelihoodRatio):
            drawn = likelihood_ratios(self.run, scores)
            return generator.choice(drawn.inside, shape), generator.choice(drawn.outside, shape)
        inside = _draw_linear(self.run, _linear(scores), shape, generator, True)
        return inside, _draw_linear(self.run, _linear(scores), shape, generator, False)

    def _rates(
        self, inside: FloatArray, outside: FloatArray, method: str, confidence: float, scores: ExpectedScores
    ) -> Rates:
        """Return upper bounds on both error rates of each audit, at the threshold that the method chooses."""
        error = 0.5 * (1.0 - confidence)
        if self.threshold == "corrected":
            return _chosen(inside, outside, self._merit(method, scores), error, "corrected")[2:]
        directions: FloatArray = np.ones(len(inside))
        if self.threshold == "split":
            first = min(CHOOSING, self.models - 1) if self.is_anytime else self.models // 2
            if first < 1:
                return np.ones(len(inside)), np.ones(len(inside))
            thresholds, directions, _, _ = _chosen(
                inside[:, :first], outside[:, :first], self._merit(method, scores), error, "split", self.validity
            )
            inside, outside = inside[:, first:], outside[:, first:]
        else:
            thresholds = np.full(len(inside), self.threshold_for(method, confidence))
        at, sign = (directions * thresholds)[:, None], directions[:, None]
        bound = bound_on_rates("a-priori", self.validity)
        false_positives, false_negatives = np.sum(sign * outside >= at, axis=1), np.sum(sign * inside < at, axis=1)
        fpr = np.asarray(bound(false_positives, outside.shape[1], error))
        return fpr, np.asarray(bound(false_negatives, inside.shape[1], error))

    def _merit(self, method: str, scores: ExpectedScores) -> Callable[[FloatArray, FloatArray], FloatArray]:
        if method == "clopper-pearson":
            return lambda fpr, fnr: (
                epsilon_of(fpr, fnr, self.delta) - 1e-9 * (normal_quantiles(fpr) + normal_quantiles(fnr))
            )
        run = self.run
        if (
            method == "gdp"
            or not isinstance(scores, LinearScores)
            or run.release_count > 1  # curves of several releases or of weights of both signs take long
            or np.any(np.asarray(run.effective_weights()) < 0.0)
        ):
            return lambda fpr, fnr: -normal_quantiles(fpr) - normal_quantiles(fnr)
        noise = np.asarray(run.noise_multiplier) * scores.spread / max(scores.signal, 1e-6)
        member = run.replace(noise_multiplier=np.clip(noise, LEAST_NOISE, MOST_NOISE)[()])
        curve = _quantile_map(member, last_iterate)
        return lambda fpr, fnr: curve(normal_quantiles(fpr)) - normal_quantiles(fnr)

    def _refuted_in_one_run(self, claim: Claim, scores: LinearScores) -> BoolArray:
        shape, generator = (self.audits(), self.models), np.random.default_rng(0)
        present = generator.random(shape) < 0.5
        inside = _draw_linear(self.run, scores, shape, generator, True)
        drawn = np.where(present, inside, _draw_linear(self.run, scores, shape, generator, False))
        ins = np.take_along_axis(present, np.argsort(drawn, axis=1), axis=1)
        below: IntArray = np.concatenate((np.zeros((len(ins), 1), np.int64), np.cumsum(ins, axis=1)), axis=1)
        refuted = np.zeros(len(ins), bool)
        for test in claim.tests(self.kind, self.confidence):
            claimed = test.guarantee if test.run is None else test.run
            if not isinstance(self.threshold, str):
                right = np.sum((drawn >= self.threshold) == present, axis=1)
                plan = OneRunPlan(self.run, self.models, self.models, self.delta)
                refuted |= right >= _needed(plan, test, claimed, 1)
                continue
            plan, choice = self.plan(test.method, test.confidence), "corrected"
            if not self._scores_choose:
                plan, choice = replace(plan, guesses=refuting_guesses(plan, claimed)), "a-priori"
            ways = ways_of(self.models, choice, plan.guesses)
            for top, bottom in ways:
                right = below[:, self.models] - below[:, self.models - top] + bottom - below[:, bottom]
                refuted |= right >= _needed(replace(plan, guesses=top + bottom), test, claimed, len(ways))
        return refuted


def perfect(forecast: Forecast) -> Forecast:
    """Return the forecast of the same audit by a perfect attack, which sees only noise and all of the canary."""
    if isinstance(forecast.expected, LikelihoodRatio):
        return replace(forecast, expected=replace(forecast.expected, signal=1.0))
    return replace(forecast, expected=IDEAL)


def leaking(expected: ExpectedScores, factor: float) -> LinearScores | LikelihoodRatio:
    """Return the distribution of the scores if noise is divided by ``factor``, in units of the declared noise."""
    if isinstance(expected, LikelihoodRatio):
        return replace(expected, noise=1.0 / factor)
    linear = _linear(expected)
    return replace(linear, spread=math.sqrt(max(linear.spread**2 - 1.0, 0.0) + factor**-2.0))


def _linear(scores: ExpectedScores) -> LinearScores:
    return scores if isinstance(scores, LinearScores) else IDEAL


def error_rates(run: DPSGD, scores: ExpectedScores, threshold: float) -> tuple[float, float]:
    """Return the false positive rate and the false negative rate for this distribution of scores."""
    if isinstance(scores, LikelihoodRatio):
        drawn = likelihood_ratios(run, scores)
        wrong = drawn.errors(np.float64(threshold))
        return float(wrong[0] / drawn.outside.size), float(wrong[1] / drawn.inside.size)
    fpr, fnr = linear_rates(run, np.array([threshold]), _linear(scores))
    return float(fpr[0]), float(fnr[0])


# Exact sums over the numbers of errors.


def chance_within(errors: ErrorLaws, fitting: IntArray) -> float:
    """Return the probability that the false negative count is among the first ``fitting`` counts of its row."""
    return float(errors[0].masses @ errors[1].at_most[fitting])


def allowed_fnr(epsilon: float, fpr: FloatArray, delta: float) -> FloatArray:
    """Return the largest false negative rates that show this epsilon at these false positive rates."""
    ratio = math.exp(min(epsilon, 700.0))
    return np.asarray(np.maximum(1.0 - delta - ratio * fpr, (1.0 - fpr - delta) / ratio))


def fnr_of(curve: PrivacyCurve, fpr: FloatArray) -> FloatArray:
    """Return the false negative rates of a curve. Many rates are interpolated in normal quantiles."""
    if fpr.size <= _NODES:
        return np.asarray(curve.fnr(fpr))
    at = normal_quantiles(fpr)
    return np.asarray(ndtr(PchipInterpolator(*curve_in_quantiles(curve, at.min(), at.max(), _NODES))(at)))


def _free(errors: ErrorLaws, upper: Rates, delta: float, chance: float) -> float:
    """Return the largest epsilon that the assumption-free bound reaches with this probability."""
    fpr, fnr = upper

    def too_much(epsilon: float) -> bool:
        fitting = np.searchsorted(fnr, allowed_fnr(epsilon, fpr, delta), side="right")
        return not chance_within(errors, fitting) >= chance

    most = float(epsilon_of(fpr[0], fnr[0], delta))
    if not too_much(most):
        return most
    return bisect(too_much, 0.0, most, lambda low, high: high - low <= _NEAR, lambda low, high: 0.5 * (low + high))[0]


def _least_factor(family: Family, errors: ErrorLaws, upper: Rates, chance: float) -> float:
    """Return the smallest noise factor whose curve is above the rates with this probability. See ``Family.factor``."""
    fpr, fnr = upper

    def fitting(log_factor: float, rows: IntArray | slice) -> IntArray:
        # how many false negative counts are below the curve, for each of these false positive counts
        return np.searchsorted(fnr, fnr_of(family.curve(math.exp(log_factor)), fpr[rows]), side="right")

    @cache
    def in_all_rows(log_factor: float) -> IntArray:
        return fitting(log_factor, slice(None))

    def enough(counts: IntArray) -> bool:
        return chance_within(errors, counts) >= chance

    if not enough(np.searchsorted(fnr, 1.0 - fpr, side="left")):
        return math.inf
    if enough(np.searchsorted(fnr, family.least_fnr(fpr), side="right")):
        return 0.0
    low, high = bracket_noise(
        lambda log_factor: enough(in_all_rows(log_factor)),
        0.0,
        lambda _: family.least_log_factor,
        family.most_log_factor,
        lambda: _STEP,
    )
    if low == -math.inf or high == math.inf:
        return 0.0 if low == -math.inf else math.exp(low)
    below, above = in_all_rows(low), in_all_rows(high)
    while high - low > _NEAR and np.any(below != above):
        middle = 0.5 * (low + high)
        rows = np.flatnonzero(below != above)  # curves rise with the noise, so other rows do not change
        counts = below.copy()
        counts[rows] = fitting(middle, rows)
        low, high, below, above = (low, middle, below, counts) if enough(counts) else (middle, high, counts, above)
    return math.exp(high)


# Simulated audits: scores are drawn and judged by the tests of a verdict, for all audits at once.

_SCORES = 200_000  # number of scores in each world that are drawn for one probability
_FEWEST, _MOST, _ANYTIME = 300, 600, 200  # audits, for standard errors of 0.023, 0.016 and 0.028
_FURTHEST, _FEW_NODES = 5.0, 25  # the largest normal quantile of an interpolated curve, and the number of nodes
_NUMERICS = 1e-9  # tolerance for the numerical error of a guaranteed rate, as in a verdict


def guaranteed_fnr(run: DPSGD, fpr: FloatArray) -> FloatArray:
    """Return the smallest false negative rates that a run's guarantee allows, interpolated, minus a tolerance."""
    return np.asarray(ndtr(_quantile_map(run, guarantee_of(run))(normal_quantiles(fpr))) - _NUMERICS)


@lru_cache(maxsize=32)
def _quantile_map(run: DPSGD, analysis: Callable[[DPSGD], PrivacyCurve]) -> Callable[[FloatArray], FloatArray]:
    """Return the interpolated trade-off curve, as a map between normal quantiles of the two error rates."""
    between = PchipInterpolator(*curve_in_quantiles(analysis(run), -_FURTHEST, _FURTHEST, _FEW_NODES))
    return lambda at: between(np.clip(at, -_FURTHEST, _FURTHEST))


def _needed(plan: OneRunPlan, test: Test, claimed: DPSGD | float, ways: int) -> float:
    confidence = 1.0 - (1.0 - test.confidence) / ways
    needed = replace(plan, confidence=confidence).right_to_refute(claimed)
    return math.inf if needed is None else needed


def _draw_linear(
    run: DPSGD, scores: LinearScores, shape: tuple[int, int], generator: np.random.Generator, present: bool
) -> FloatArray:
    law = law_of(run)
    drawn: FloatArray = scores.spread * generator.standard_normal(shape)
    if present or run.is_mirrored:
        moved = scores.signal / law.noise * law.sample(math.prod(shape), generator).reshape(shape)
        drawn += moved if present else -moved
    return drawn


def _chosen(
    inside: FloatArray,
    outside: FloatArray,
    merit: Callable[[FloatArray, FloatArray], FloatArray],
    error: float,
    choice: str,
    validity: str = "fixed",
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return the threshold with the largest merit, its direction and its bounds, for each audit. Try all cuts."""
    ins, outs = inside.shape[1], outside.shape[1]
    merged = np.concatenate((inside, outside), axis=1)
    order = np.argsort(merged, axis=1)
    below_in = np.concatenate((np.zeros((len(order), 1), np.int64), np.cumsum(order < ins, axis=1)), axis=1)
    below_out = np.arange(ins + outs + 1) - below_in
    bound = bound_on_rates(choice, validity)
    of_outs, of_ins = (np.asarray(bound(np.arange(size + 1), size, error)) for size in (outs, ins))
    wrong = outs - below_out, below_in
    counts = [wrong, (below_out, ins - below_in)] if choice == "split" else [wrong]  # only a split finds the direction
    if of_outs.size * of_ins.size < below_in.size:
        merits = merit(of_outs[:, None], of_ins[None, :])
        seen = np.concatenate([merits[each] for each in counts], axis=1)
    else:
        seen = np.concatenate([merit(of_outs[fp], of_ins[fn]) for fp, fn in counts], axis=1)
    best = np.argmax(seen, axis=1)
    rows, cut = np.arange(len(order)), best % (ins + outs + 1)
    levels = np.take_along_axis(merged, order, axis=1)
    low, high = levels[rows, np.maximum(cut - 1, 0)], levels[rows, np.minimum(cut, ins + outs - 1)]
    rates = of_outs[wrong[0][rows, cut]], of_ins[wrong[1][rows, cut]]  # if larger scores speak for the canary
    return 0.5 * (low + high), np.where(best > ins + outs, -1.0, 1.0), *rates
