"""What the scores say about a claim: is it refuted, or the heuristic exceeded, and if not, could they have told?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from lastiterate.answers import Answer
from lastiterate.arrays import FloatArray
from lastiterate.auditing.evidence.betting import Odds, Wager
from lastiterate.auditing.evidence.direction import OTHER_WAY
from lastiterate.auditing.evidence.estimate import Estimate, estimate
from lastiterate.auditing.evidence.guarantee import guarantee_of
from lastiterate.auditing.evidence.kinds import Kind
from lastiterate.auditing.evidence.power import MOST, Test, least_models
from lastiterate.auditing.evidence.signal import failure_of
from lastiterate.privacy.analyses.calibrate import calibrate
from lastiterate.privacy.analyses.composition import composition
from lastiterate.privacy.analyses.last_iterate import last_iterate
from lastiterate.privacy.analyses.no_amplification import no_amplification
from lastiterate.run import DPSGD
from lastiterate.values import LEAST_NOISE, MOST_NOISE, number
from lastiterate.vocabulary import ABOVE_HEURISTIC, CONSISTENT, INCONCLUSIVE, METHODS, VIOLATION
from lastiterate.wording import per_cent, spell

_SAME = 1.0 - 1e-6  # of an epsilon: noise is calibrated to a millionth
_PREDICTION = {Kind.LAST_ITERATE: "last-iterate", Kind.ONE_MODEL: "one-run-last-iterate"}  # families of the heuristic


@dataclass(frozen=True)
class Claim:
    """What is claimed of a training, as epsilons at one delta.

    Attributes:
        run: the run with the noise that is claimed, or that the claimed epsilon needs; None: no noise follows.
        guarantee: no attack may exceed it.
        heuristic: attacks on the last iterate are expected not to; None: it is not known.
        words: the claim for people.
    """

    run: DPSGD | None
    guarantee: float
    heuristic: float | None
    words: str

    def tests(self, kind: Kind, confidence: float) -> list[Test]:
        """Those that can refute it, for a kind of scores; they share the error."""
        free = "one-run" if kind is Kind.ONE_MODEL else "clopper-pearson"
        if self.run is None:
            return [Test(free, confidence, self.guarantee)]
        shared = sharing_the_error(confidence)
        # Of error rates the method only chooses the threshold: for last iterates, the quicker family has the same one.
        family = "last-iterate"
        if kind is Kind.ALL_ITERATES:
            family = "composition" if guarantee_of(self.run) is composition else "clopper-pearson"
        if kind is Kind.ONE_MODEL:
            family = "one-run-fdp"  # of guesses it only chooses how many
        return [
            Test(free, shared, self.guarantee),
            Test(family, shared, self.guarantee, self.run),
        ]

    def wager(
        self, kind: Kind, scores_in: FloatArray, scores_out: FloatArray, delta: float, confidence: float
    ) -> Wager | None:
        """The bet against it, with half of the error, for scores that one may look at any time; none for one model."""
        if kind is Kind.ONE_MODEL:
            return None
        odds = Odds.of_epsilon(self.guarantee, delta) if self.run is None else _odds_of(self.run)
        return Wager(scores_in, scores_out, odds, 0.5 * (1.0 - confidence))


@lru_cache(maxsize=8)  # an audit looks often
def _odds_of(run: DPSGD) -> Odds:
    return Odds.of_curve(guarantee_of(run)(run).delta)


def claim_of(run: DPSGD | None, delta: float, epsilon: float | None = None, noise: float | None = None) -> Claim:
    """The claim that training had this epsilon, or this noise multiplier, or else all that the run says.

    An epsilon can be claimed of an unknown run.
    """
    check_claims(epsilon, noise)
    if run is None:
        if epsilon is None:
            raise ValueError("run must be given with a claim other than an epsilon, got None")
        return Claim(None, float(epsilon), None, f"epsilon {spell(float(epsilon))} at delta {spell(delta)}")
    guarantee = guarantee_of(run)
    if epsilon is not None:
        claimed = float(epsilon)
        words = f"epsilon {spell(claimed)} at delta {spell(delta)}"
        if guarantee is no_amplification:
            return Claim(None, claimed, None, words)
        try:
            needed = calibrate(run, epsilon=claimed, delta=delta, analysis=composition)
        except ValueError as error:
            raise ValueError(f"claim_epsilon must be one that the run can have, got {claimed!r}: {error}") from None
        return Claim(needed, claimed, last_iterate(needed).epsilon(delta), words)
    words = "the run as described"
    if noise is not None:
        claimed = float(noise)
        run = run.replace(noise_multiplier=run.noise_multiplier * (claimed / float(np.max(run.noise_multiplier))))
        words = f"noise multiplier {spell(claimed)}"
    bound = guarantee(run).epsilon(delta)
    words = f"{words}: epsilon {spell(bound)} at delta {spell(delta)}"
    return Claim(run, bound, last_iterate(run).epsilon(delta), words)


def check_claims(epsilon: float | None, noise: float | None) -> None:
    """Refuse claims that cannot be judged, before anything is trained."""
    if epsilon is not None and noise is not None:
        raise ValueError("claim_epsilon and claim_noise were both given: give one")
    if epsilon is not None:
        number("claim_epsilon", epsilon, 0.0, open_low=True)
    if noise is not None:
        number("claim_noise", noise, 0.0, open_low=True)
        number("claim_noise", noise, LEAST_NOISE, MOST_NOISE)


def sharing_the_error(confidence: float) -> float:
    """The confidence of each of two tests that are wrong together as seldom as this one."""
    return 1.0 - 0.5 * (1.0 - confidence)


def remark_on(claim: Claim, predictions: dict[str, Answer]) -> str | None:
    """That the claim promises more than the run itself does, by what the analyses predict for it."""
    own = {name: predictions[name].value for name in ("composition", "no_amplification") if name in predictions}
    guarantee = next((value for value in own.values() if value is not None), None)
    if guarantee is None or claim.guarantee >= guarantee * _SAME:
        return None
    heuristic = predictions["last_iterate"].value
    remark = f"The claim ({claim.words}) is below the run's own guarantee of {spell(guarantee)}"
    if heuristic is not None and claim.guarantee < heuristic * _SAME:
        return (
            f"{remark}, and below the heuristic's {spell(heuristic)}: an attack may well refute it though training is "
            "exactly as described."
        )
    return f"{remark}: nothing here guarantees it, even if training is exactly as described."


def deciding(threshold: float | str) -> float | str:
    """The threshold by which a claim is judged: a maximum over thresholds is corrected for, whatever is shown."""
    return "corrected" if threshold == "uncorrected" else threshold


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
) -> tuple[str, str]:
    """The verdict on scores of which nothing is expected; arguments as in ``estimate``."""
    decides = deciding(threshold)

    @cache
    def bound(method: str, sure: float) -> Estimate:
        return estimate(scores_in, scores_out, delta, sure, method, decides, run, validity)

    wager = claim.wager(kind, scores_in, scores_out, delta, confidence) if validity == "anytime" else None
    return judge(claim, kind, bound, confidence, decides, failure_of(scores_in, scores_out, None), wager)


def judge(
    claim: Claim,
    kind: Kind,
    bound: Callable[[str, float], Estimate],
    confidence: float,
    threshold: float | str,
    failure: str | None = None,
    wager: Wager | None = None,
) -> tuple[str, str]:
    """The verdict and its reason, by the tests that apply to a kind of scores, whatever else was asked of them.

    ``bound(method, confidence)`` gives an estimate at the ``threshold``. Two tests can refute a claim: they share the
    error. ``failure`` says why the attack, not the training, gave scores that tell nothing. Where one may look at any
    time there is a ``wager`` against the claim as well, which gets half of the error.
    """
    sure = per_cent(confidence)
    if wager is not None and (after := wager.refuted_after()) is not None:
        return VIOLATION, (
            f"The claim ({claim.words}) is refuted with {sure} confidence, after {after:,} models a world: a wager "
            f"against it, which loses on average if it is true, multiplied its money by {1.0 / wager.error:.0f}; the "
            "other tests that can refute have the other half of the error."
        )
    tests = claim.tests(kind, confidence if wager is None else sharing_the_error(confidence))
    for test in tests:
        found = bound(test.method, test.confidence)
        if test.refutes(found):
            halves = "; the two tests that can refute share the error" if len(tests) > 1 else ""
            shown = _found(test, found, bound)
            return VIOLATION, f"The claim ({claim.words}) is refuted with {sure} confidence: {shown}{halves}."
    if (family := _PREDICTION.get(kind)) and claim.heuristic is not None:
        found = bound(family, confidence)
        if found.epsilon > claim.heuristic:
            return ABOVE_HEURISTIC, (
                f"The attack finds {spell(found.epsilon)} with {sure} confidence ({METHODS[family].label}), above the "
                f"heuristic's {spell(claim.heuristic)} for the claim ({claim.words}): losses are not as linear as it "
                "assumes, or training is not what is claimed."
            )
    found = bound(tests[0].method, tests[0].confidence)
    if OTHER_WAY in found.caveats:
        return INCONCLUSIVE, OTHER_WAY
    told = any(test.could_refute(bound(test.method, test.confidence)) for test in tests)
    if not told and not (wager is not None and wager.could_refute()):
        return INCONCLUSIVE, _too_few(claim, tests, found, sure, threshold, wager)
    if failure is not None:
        return INCONCLUSIVE, failure
    return CONSISTENT, f"Nothing refutes the claim ({claim.words}) with {sure} confidence."


def _found(test: Test, found: Estimate, bound: Callable[[str, float], Estimate]) -> str:
    """What refutes a claim: an epsilon, or where no family has one, the error rates or the guesses."""
    one_run = METHODS[found.method].is_one_run
    if test.run is not None and guarantee_of(test.run) is not composition:
        if one_run and found.guesses is not None:
            wrong = found.false_positives + found.false_negatives
            return f"{wrong:,} wrong among {found.guesses:,} guesses are fewer than it allows"
        return f"error rates of at most {spell(found.fpr_upper)} and {spell(found.fnr_upper)} are less than it allows"
    found = found if test.run is None else bound("one-run-composition" if one_run else "composition", test.confidence)
    return f"{METHODS[found.method].label} finds an epsilon of at least {spell(found.epsilon)}"


def _too_few(
    claim: Claim, tests: list[Test], found: Estimate, sure: str, threshold: float | str, wager: Wager | None
) -> str:
    """That so many scores could not have refuted the claim, and how many could."""
    one_run = found.method == "one-run"
    what = "canaries" if one_run else "models a world"
    if not one_run or isinstance(threshold, str):
        threshold = found.threshold_choice
    if wager is not None:
        needed, threshold = wager.least_models(MOST), "none"  # it bets from the fifth model on, and chooses by itself
    else:
        needed = least_models(tests, found.delta, threshold)
    if one_run and needed is not None and needed <= found.models_in + found.models_out:
        takes = f"So many would do if all were guessed, and {found.guesses:,} guesses were fixed in advance."
        if found.guessed != found.guesses:
            takes = "Too many scores are equal to be guessed from: another score would have to tell the canaries apart."
    elif needed is None:
        takes = f"Even {MOST:,} {what} without an error would not."
    else:
        halves = ", of which half choose the threshold" if threshold == "split" and not one_run else ""
        takes = f"It takes at least {needed:,} {what}{halves}, and an attack without an error."
    return (
        f"The {found.models_in:,} and {found.models_out:,} scores that count could not have refuted the claim "
        f"({claim.words}) with {sure} confidence, whatever they are. {takes}"
    )
