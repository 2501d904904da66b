"""Simulated audits: scores drawn from their law and judged by the tests of a verdict.

Audits are simulated if the scores choose the threshold, if bounds hold at any time, and for many canaries in one run.
Otherwise the threshold is fixed in advance and power is an exact sum (`verdict_strength`). All simulated audits are
judged at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.special import ndtr, ndtri

from lastiterate.attacks.attack import ExpectedScores, LikelihoodRatio, LinearScores
from lastiterate.auditing.evidence.claims import Claim, Test, sharing_the_error
from lastiterate.auditing.evidence.error_rates import bound_on_rates, epsilon_of
from lastiterate.auditing.evidence.estimates import likelihood_ratios
from lastiterate.auditing.evidence.one_run.guesses import ways_of
from lastiterate.auditing.evidence.one_run.one_run_power import OneRunPlan, refuting_guesses
from lastiterate.auditing.evidence.score_signal import Kind, guarantee_of
from lastiterate.auditing.evidence.test_martingale import refuted_after
from lastiterate.auditing.evidence.threshold import CHOOSING
from lastiterate.common.types import BoolArray, FloatArray, IntArray
from lastiterate.common.validation import LEAST_NOISE, MOST_NOISE
from lastiterate.privacy.analyses.last_iterate import last_iterate
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures.law import law_of
from lastiterate.run import DPSGD

_SCORES = 200_000  # drawn for one probability, in each world
_FEWEST, _MOST, _ANYTIME = 300, 600, 200  # audits: standard errors of a probability of 0.8: 0.023, 0.016, 0.028
_FURTHEST, _NODES = 5.0, 25  # the largest normal quantile of an interpolated curve, and the number of nodes
_SMALLEST, _LARGEST = 1e-300, 1.0 - 1e-16  # rates with a finite normal quantile
_NUMERICS = 1e-9  # of a rate, as in a verdict


@dataclass(frozen=True)
class Procedure:
    """The procedure that judges the scores of an audit.

    Attributes:
        run: the run that is trained. Scores are in units of its noise.
        models: number of models in each world, or of canaries of one run.
        delta: of (epsilon, delta)-DP.
        confidence: of the verdict.
        kind: the kind of the scores.
        threshold: "split", "corrected", for one run "a-priori", or a function from a method and its confidence to a
            fixed threshold.
        validity: "fixed" or "anytime".
        plans: for one run, the plan of a method at its confidence.
    """

    run: DPSGD
    models: int
    delta: float
    confidence: float
    kind: Kind
    threshold: str | Callable[[str, float], float]
    validity: str = "fixed"
    plans: Callable[[str, float], OneRunPlan] | None = None

    def audits(self) -> int:
        """Return the number of audits that are simulated."""
        if self.validity == "anytime":  # a wager takes long
            return _ANYTIME
        return int(np.clip(_SCORES // self.models, _FEWEST, _MOST))

    def chance(self, claim: Claim, scores: ExpectedScores) -> float:
        """Return the probability that the verdict is a violation, for this law of the scores."""
        generator = np.random.default_rng(0)
        if self.kind is Kind.ONE_MODEL:
            assert isinstance(scores, LinearScores)
            return float(np.mean(self._one_run(claim, scores, generator)))
        inside, outside = self.draw(scores, generator)
        refuted = np.zeros(len(inside), bool)
        confidence = self.confidence
        if self.validity == "anytime":
            odds = claim.odds(self.delta)
            refuted |= refuted_after(inside, outside, odds, 0.5 * (1.0 - confidence), coarse=True) > 0
            confidence = sharing_the_error(confidence)
        for test in claim.tests(self.kind, confidence):
            rates = self.rates(inside, outside, test.method, test.confidence, scores)
            refuted |= _refutes(test, *rates, self.delta)
        return float(refuted.mean())

    def reached(self, method: str, chance: float, scores: ExpectedScores) -> tuple[float, float]:
        """Return upper bounds on both rates that audits match or improve on with this probability."""
        fpr, fnr = self.rates(*self.draw(scores, np.random.default_rng(0)), method, self.confidence, scores)
        order = np.argsort(self._merit(method, scores)(fpr, fnr))
        found = order[int((1.0 - chance) * len(order))]
        return float(fpr[found]), float(fnr[found])

    def draw(self, scores: ExpectedScores, generator: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Draw scores with the canary and without it, a row for each audit."""
        shape = self.audits(), self.models
        if isinstance(scores, LikelihoodRatio):
            drawn = likelihood_ratios(self.run, scores)
            return generator.choice(drawn.inside, shape), generator.choice(drawn.outside, shape)
        linear = scores if isinstance(scores, LinearScores) else LinearScores()
        return tuple(_linear(self.run, linear, shape, generator, present) for present in (True, False))  # type: ignore[return-value]

    def rates(
        self, inside: FloatArray, outside: FloatArray, method: str, confidence: float, scores: ExpectedScores
    ) -> tuple[FloatArray, FloatArray]:
        """Return upper bounds on both error rates of each audit, at the threshold that the method chooses."""
        error = 0.5 * (1.0 - confidence)
        if self.threshold == "corrected":
            return _chosen(inside, outside, self._merit(method, scores), error, "corrected")[2:]
        directions: FloatArray = np.ones(len(inside))
        if callable(self.threshold):
            thresholds = np.full(len(inside), self.threshold(method, confidence))
        else:
            first = min(CHOOSING, self.models - 1) if self.validity == "anytime" else self.models // 2
            if first < 1:
                return np.ones(len(inside)), np.ones(len(inside))
            thresholds, directions, _, _ = _chosen(
                inside[:, :first], outside[:, :first], self._merit(method, scores), error, "split", self.validity
            )
            inside, outside = inside[:, first:], outside[:, first:]
        at, sign = (directions * thresholds)[:, None], directions[:, None]
        bound = bound_on_rates("a-priori", self.validity)
        wrong = np.sum(sign * outside >= at, axis=1), np.sum(sign * inside < at, axis=1)
        fpr, fnr = (
            np.asarray(bound(counts, worlds.shape[1], error))
            for counts, worlds in zip(wrong, (outside, inside), strict=True)
        )
        return fpr, fnr

    def _merit(self, method: str, scores: ExpectedScores) -> Callable[[FloatArray, FloatArray], FloatArray]:
        """Return the function by which the method ranks upper bounds on the two rates; larger is better."""
        if method == "clopper-pearson":

            def free(fpr: FloatArray, fnr: FloatArray) -> FloatArray:
                return epsilon_of(fpr, fnr, self.delta) - 1e-9 * (_quantiles(fpr) + _quantiles(fnr))

            return free
        curve = None
        if method != "gdp" and isinstance(scores, LinearScores) and not _is_slow(self.run):
            noise = np.asarray(self.run.noise_multiplier) * scores.spread / max(scores.signal, 1e-6)
            member = self.run.replace(noise_multiplier=np.clip(noise, LEAST_NOISE, MOST_NOISE)[()])
            curve = quantile_curve(member, heuristic=True)

        def family(fpr: FloatArray, fnr: FloatArray) -> FloatArray:
            at = _quantiles(fpr)
            return (-at if curve is None else curve.quantiles(at)) - _quantiles(fnr)

        return family

    def _one_run(self, claim: Claim, scores: LinearScores, generator: np.random.Generator) -> BoolArray:
        """Return for each simulated audit of many canaries whether it refutes the claim."""
        shape = self.audits(), self.models
        present = generator.random(shape) < 0.5
        drawn = np.where(
            present,
            _linear(self.run, scores, shape, generator, True),
            _linear(self.run, scores, shape, generator, False),
        )
        ins = np.take_along_axis(present, np.argsort(drawn, axis=1), axis=1)
        below: IntArray = np.concatenate((np.zeros((len(ins), 1), np.int64), np.cumsum(ins, axis=1)), axis=1)
        refuted = np.zeros(len(ins), bool)
        for test in claim.tests(self.kind, self.confidence):
            claimed = test.guarantee if test.run is None else test.run
            if callable(self.threshold):
                right = np.sum((drawn >= self.threshold(test.method, test.confidence)) == present, axis=1)
                refuted |= right >= _needed(
                    OneRunPlan(self.run, self.models, self.models, self.delta), test, claimed, 1
                )
                continue
            assert self.plans is not None
            plan, choice = self.plans(test.method, test.confidence), "corrected"
            if self.threshold == "a-priori":
                plan, choice = replace(plan, guesses=refuting_guesses(plan, claimed)), "a-priori"
            ways = ways_of(self.models, choice, plan.guesses)
            for top, bottom in ways:
                right = below[:, self.models] - below[:, self.models - top] + bottom - below[:, bottom]
                refuted |= right >= _needed(replace(plan, guesses=top + bottom), test, claimed, len(ways))
        return refuted


def _needed(plan: OneRunPlan, test: Test, claimed: DPSGD | float, ways: int) -> float:
    """Return the number of right guesses that refutes the claim, if several ways to guess share the error."""
    confidence = 1.0 - (1.0 - test.confidence) / ways
    needed = replace(plan, confidence=confidence).right_to_refute(claimed)
    return math.inf if needed is None else needed


def _linear(
    run: DPSGD, scores: LinearScores, shape: tuple[int, int], generator: np.random.Generator, present: bool
) -> FloatArray:
    law = law_of(run)
    drawn: FloatArray = scores.spread * generator.standard_normal(shape)
    if present or run.neighbours == "replace":
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
    """Return each audit's threshold of most merit, its direction, and its bounds. All cuts between scores are tried."""
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
    rates = of_outs[wrong[0][rows, cut]], of_ins[wrong[1][rows, cut]]  # of the direction 1
    return 0.5 * (low + high), np.where(best > ins + outs, -1.0, 1.0), *rates


def _refutes(test: Test, fpr: FloatArray, fnr: FloatArray, delta: float) -> BoolArray:
    """Return for each pair of upper bounds whether it refutes the claim."""
    if test.run is None:
        return np.asarray(epsilon_of(fpr, fnr, delta) > test.guarantee)
    return np.asarray(quantile_curve(test.run)(fpr) - _NUMERICS > fnr)


def _quantiles(rates: FloatArray) -> FloatArray:
    values: FloatArray = ndtri(np.clip(rates, _SMALLEST, _LARGEST))
    return values


def _is_slow(run: DPSGD) -> bool:
    """Return whether one curve takes long. Thresholds are then compared as for a Gaussian mechanism."""
    return run.release_count > 1 or bool(np.any(np.asarray(run.effective_weights()) < 0.0))


class QuantileCurve:
    """A trade-off curve, interpolated in normal quantiles of the two rates, where it is nearly straight."""

    def __init__(self, curve: PrivacyCurve) -> None:
        nodes = np.linspace(-_FURTHEST, _FURTHEST, _NODES)
        rates = np.clip(np.asarray(curve.fnr(ndtr(nodes))), _SMALLEST, _LARGEST)
        self._between = PchipInterpolator(nodes, ndtri(rates))

    def quantiles(self, at: FloatArray) -> FloatArray:
        """Return the normal quantiles of the false negative rates at normal quantiles of false positive rates."""
        values: FloatArray = self._between(np.clip(at, -_FURTHEST, _FURTHEST))
        return values

    def __call__(self, fpr: FloatArray) -> FloatArray:
        rates: FloatArray = ndtr(self.quantiles(_quantiles(fpr)))
        return rates


@lru_cache(maxsize=32)
def quantile_curve(run: DPSGD, heuristic: bool = False) -> QuantileCurve:
    """Return the interpolated curve of a run's guarantee, or of the heuristic."""
    return QuantileCurve((last_iterate if heuristic else guarantee_of(run))(run))
