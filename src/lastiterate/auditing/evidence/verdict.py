"""Verdicts on a claim: refuted, above the heuristic, inconclusive for lack of power, or consistent."""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

from lastiterate.attacks.attack import LinearScores, Unknown
from lastiterate.auditing.evidence.claims import Claim, Test, sharing_the_error
from lastiterate.auditing.evidence.estimate import Estimate, estimate_or_zero
from lastiterate.auditing.evidence.estimates import Estimates
from lastiterate.auditing.evidence.forecast import CHANCE
from lastiterate.auditing.evidence.one_run.guesses import unfair_coins
from lastiterate.auditing.evidence.score_signal import Kind, failure_of
from lastiterate.auditing.evidence.test_martingale import Martingale
from lastiterate.auditing.evidence.threshold import OTHER_WAY, deciding
from lastiterate.auditing.evidence.verdict_strength import HALF, Strength, strength_of
from lastiterate.common.types import FloatArray
from lastiterate.formatting import per_cent, spell, spell_down, spell_up
from lastiterate.labels import ABOVE_HEURISTIC, COMPOSITION, CONSISTENT, INCONCLUSIVE, METHODS, OWN_COIN, VIOLATION
from lastiterate.run import DPSGD

_PREDICTION = {
    Kind.LAST_ITERATE: "last-iterate",
    Kind.ONE_MODEL: "one-run-last-iterate",
}  # the method that tests the heuristic
_GUESSED = 0.9  # if a smaller share of the planned guesses is made, the power of the audit is unknown


class Judgement(NamedTuple):
    """A verdict, its reason in a sentence or two, and its strength."""

    verdict: str
    reason: str
    strength: Strength


def verdict_on(claim: Claim, kind: Kind, estimates: Estimates) -> Judgement:
    """Return the verdict on the scores of an audit."""
    bound = estimates.deciding(claim)
    question = bound.question
    strength = partial(
        strength_of,
        claim,
        kind,
        bound.run,
        bound.expected,
        bound.scores,
        delta=question.delta,
        confidence=question.confidence,
        threshold=question.threshold,
        validity=question.validity,
        horizon=bound.planned,
        fault=question.fault,
    )
    martingale = bound.martingale(claim, kind) if question.is_anytime else None
    return judge(claim, kind, bound, question.confidence, strength, bound.failure(), martingale)


def judge_scores(
    scores_in: FloatArray,
    scores_out: FloatArray,
    claim: Claim,
    kind: Kind,
    delta: float,
    confidence: float,
    threshold: float | str,
    run: DPSGD | None,
    validity: str = "fixed",
    fault: float = HALF,
) -> Judgement:
    """Return the verdict on a user's scores. Arguments are as in ``estimate`` and ``strength_of``."""
    decides = deciding(threshold)

    @cache
    def bound(method: str, sure: float) -> Estimate:
        return estimate_or_zero(scores_in, scores_out, delta, sure, method, decides, run, validity)

    strength = partial(
        strength_of,
        claim,
        kind,
        run if decides == "a-priori" else claim.run,  # with other thresholds, only a run with claimed noise is used
        LinearScores() if decides == "a-priori" and run is not None else Unknown(),
        (scores_in, scores_out),
        delta=delta,
        confidence=confidence,
        threshold=decides,
        validity=validity,
        fault=fault,
    )
    martingale = claim.martingale(kind, scores_in, scores_out, delta, confidence) if validity == "anytime" else None
    return judge(claim, kind, bound, confidence, strength, failure_of(scores_in, scores_out, None), martingale)


def judge(
    claim: Claim,
    kind: Kind,
    bound: Callable[[str, float], Estimate],
    confidence: float,
    strength: Callable[..., Strength],
    failure: str | None = None,
    martingale: Martingale | None = None,
) -> Judgement:
    """Return the verdict by the tests that apply to a kind of scores.

    ``bound(method, confidence)`` returns an estimate. ``strength(direction=...)`` returns the strength. ``failure`` is
    the reason why the attack gave no usable scores, or None. A ``martingale`` uses half of the error.
    """
    sure = per_cent(confidence)
    first = deciding_tests(claim, kind, confidence, martingale)[0]
    found = bound(first.method, first.confidence)
    power = strength(direction=found.direction)
    coins = f", if {OWN_COIN}" if kind is Kind.ONE_MODEL else ""
    if coins and (unfair := unfair_coins(found.models_in, found.models_out)) is not None:
        return Judgement(INCONCLUSIVE, unfair, power)
    if (refutation := refutation_of(claim, kind, bound, confidence, martingale)) is not None:
        return Judgement(VIOLATION, refutation, power)
    if (family := _PREDICTION.get(kind)) and claim.heuristic is not None:
        exceeding = bound(family, confidence)
        if exceeding.epsilon > claim.heuristic:
            reason = (
                f"The attack finds {spell_down(exceeding.epsilon, 4)} with {sure} confidence "
                f"({METHODS[family].label}{coins}), above the heuristic's {spell_up(claim.heuristic, 4)} for the "
                f"claim ({claim.words}): losses are not as linear as assumed, or the claim about training is wrong."
            )
            return Judgement(ABOVE_HEURISTIC, reason, power)
    if (obstacle := _cannot_tell(found, failure, power)) is not None:
        return Judgement(INCONCLUSIVE, obstacle, power)
    reason = (
        f"Nothing refutes the claim ({claim.words}) with {sure} confidence. A training with {_fault_words(power)} "
        f"would have been refuted with probability {_chance_words(power)}."
    )
    return Judgement(CONSISTENT, reason, power)


def refutation_of(
    claim: Claim, kind: Kind, bound: Callable[[str, float], Estimate], confidence: float, martingale: Martingale | None
) -> str | None:
    """Return a sentence on how the claim is refuted, or None if it is not. Arguments are as in ``judge``."""
    refuted = f"The claim ({claim.words}) is refuted with {per_cent(confidence)} confidence"
    if kind is Kind.ONE_MODEL:
        refuted += f", if {OWN_COIN}"
    if martingale is not None and (after := martingale.refuted_after()) is not None:
        return (
            f"{refuted}, after {after:,} models per world: bets against the claim, which gain nothing on average if "
            f"the claim is true, multiplied their wealth by {1.0 / martingale.error:.0f}. The other tests use the "
            "other half of the error."
        )
    tests = deciding_tests(claim, kind, confidence, martingale)
    for test in tests:
        found = bound(test.method, test.confidence)
        if test.refutes(found):
            halves = "; the two tests of the claim share the error" if len(tests) > 1 else ""
            return f"{refuted}: {_found(test, found, bound)}{halves}."
    return None


def deciding_tests(claim: Claim, kind: Kind, confidence: float, martingale: Martingale | None) -> list[Test]:
    """Return the tests that decide about a claim. If there is a ``martingale``, it uses half of the error."""
    return claim.tests(kind, confidence if martingale is None else sharing_the_error(confidence))


def _cannot_tell(found: Estimate, failure: str | None, power: Strength) -> str | None:
    one_run = METHODS[found.method].is_one_run
    if OTHER_WAY in found.caveats:
        return OTHER_WAY
    if failure is not None:
        return failure
    if found.guesses and found.guessed is not None and found.guessed < _GUESSED * found.guesses:
        return "Too many scores are equal: canaries with equal scores cannot be guessed. Use a finer score."
    errors = found.false_positives, found.false_negatives
    if not one_run and errors in ((0, found.models_in), (found.models_out, 0)):
        side = "below" if errors[0] == 0 else "above"
        return f"All scores are {side} the threshold {spell(found.threshold)}, so no training could have been refuted."
    if power.is_unknown:
        return "The scores take few values, so their response to noise is unknown. Use a finer score."
    if power.signal is None:
        return "The scores with and without the canary cannot be told apart: there is no signal at 95% confidence."
    if power.suffices:
        return None
    what = "canaries" if one_run else "models per world"
    enough = f"About {power.needed:,} {what} would be" if power.needed else f"Even {power.most:,} {what} would not be"
    return (
        f"This audit lacks power: it refutes a training with {_fault_words(power)} with probability "
        f"{_chance_words(power)}, but {per_cent(CHANCE)} is required. {enough} enough."
    )


def _fault_words(power: Strength) -> str:
    if power.is_epsilon:
        return f"{spell(1.0 / power.fault)} times the claimed epsilon"
    return "half the declared noise" if power.fault == HALF else f"{spell(power.fault)} of the declared noise"


def _chance_words(power: Strength) -> str:
    if power.chance < 0.001:
        return "below 0.1%"
    return "above 99.9%" if power.chance > 0.999 else per_cent(math.floor(1000 * power.chance) / 1000)


def _found(test: Test, found: Estimate, bound: Callable[[str, float], Estimate]) -> str:
    one_run = METHODS[found.method].is_one_run
    if test.run is not None and test.run.guarantee != COMPOSITION.name:
        if one_run and found.guesses is not None:
            wrong = found.false_positives + found.false_negatives
            return f"{wrong:,} wrong among {found.guesses:,} guesses are fewer than the claim allows"
        rates = " and ".join(spell_up(rate, 4) for rate in (found.fpr_upper, found.fnr_upper))
        return f"error rates of at most {rates} are less than the claim allows"
    found = found if test.run is None else bound("one-run-composition" if one_run else "composition", test.confidence)
    return f"{METHODS[found.method].label} finds an epsilon of at least {spell_down(found.epsilon, 4)}"
