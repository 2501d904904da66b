"""Claims about a training, and the tests that can refute them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from lastiterate.auditing.evidence.estimate import Estimate
from lastiterate.auditing.evidence.one_run.allowed_guesses import slack
from lastiterate.auditing.evidence.one_run.guesses import ways_to_guess
from lastiterate.auditing.evidence.one_run.one_run_power import allowed_by
from lastiterate.auditing.evidence.score_signal import Kind, guarantee_of
from lastiterate.auditing.evidence.test_martingale import Odds, Wager
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import LEAST_NOISE, MOST_NOISE, number
from lastiterate.compare_analyses import Answer
from lastiterate.formatting import spell_exact, spell_up
from lastiterate.privacy.analyses.calibrate import calibrate
from lastiterate.privacy.analyses.composition import composition
from lastiterate.privacy.analyses.last_iterate import last_iterate
from lastiterate.privacy.analyses.no_amplification import no_amplification
from lastiterate.run import DPSGD

_SAME = 1.0 - 1e-6  # of an epsilon: noise is calibrated to a millionth


@dataclass(frozen=True)
class Test:
    """A test that can refute a claim.

    Attributes:
        method: estimation method. The test uses the epsilon of its estimate or, with a ``run``, the error rates or
            guesses.
        confidence: of this test alone.
        guarantee: the claimed epsilon.
        run: the run with the claimed noise. The trade-off curve of its guarantee is the lowest that the claim allows,
            since more noise has a higher curve. For canaries of one run, the curve bounds the number of right guesses.
    """

    __test__ = False  # not a test class of pytest

    method: str
    confidence: float
    guarantee: float
    run: DPSGD | None = None

    def refutes(self, found: Estimate) -> bool:
        """Return whether an estimate by this method and at this confidence refutes the claim."""
        if self.run is None:
            return found.epsilon > self.guarantee
        if found.guesses is not None and found.guessed is not None:
            right = found.guessed - found.false_positives - found.false_negatives
            return self._too_many_right(_canaries(found), found.guesses, right, found.threshold_choice)
        return _beats(self.run, found.fpr_upper, found.fnr_upper)

    def _too_many_right(self, canaries: int, count: int, right: int, threshold: float | str) -> bool:
        """Return whether the run's guarantee makes this many right guesses less probable than the error."""
        assert self.run is not None
        error = (1.0 - self.confidence) / ways_to_guess(canaries, threshold)
        return slack(allowed_by(self.run), canaries, count, right, error) < 0.0


def _canaries(found: Estimate) -> int:
    return found.models_in + found.models_out


def _beats(run: DPSGD, fpr: float, fnr: float) -> bool:
    """Return whether these error rates are lower than the run's guarantee allows."""
    return _least_fnr(run, fpr) > fnr + 1e-9


@lru_cache(maxsize=1024)  # the same rates recur
def _least_fnr(run: DPSGD, fpr: float) -> float:
    return float(guarantee_of(run)(run).fnr(fpr))


@dataclass(frozen=True)
class Claim:
    """A claim about a training, as epsilons at one delta.

    Attributes:
        run: the run with the claimed noise, or with the noise that the claimed epsilon needs. None: the claim implies
            no noise.
        guarantee: the epsilon that no attack may exceed.
        heuristic: the epsilon that attacks on the last iterate are expected not to exceed. None: not known.
        words: the claim in words.
    """

    run: DPSGD | None
    guarantee: float
    heuristic: float | None
    words: str

    def tests(self, kind: Kind, confidence: float) -> list[Test]:
        """Return the tests that can refute the claim, for a kind of scores. The tests share the error."""
        free = "one-run" if kind is Kind.ONE_MODEL else "clopper-pearson"
        if self.run is None:
            return [Test(free, confidence, self.guarantee)]
        shared = sharing_the_error(confidence)
        # The method of a test of error rates only chooses the threshold. For last iterates, the quicker family has the
        # same threshold.
        family = "last-iterate"
        if kind is Kind.ALL_ITERATES:
            family = "composition" if guarantee_of(self.run) is composition else "clopper-pearson"
        if kind is Kind.ONE_MODEL:
            family = "one-run-fdp"  # the method only chooses the number of guesses
        return [
            Test(free, shared, self.guarantee),
            Test(family, shared, self.guarantee, self.run),
        ]

    def wager(
        self, kind: Kind, scores_in: FloatArray, scores_out: FloatArray, delta: float, confidence: float
    ) -> Wager | None:
        """Return the wager against the claim, with half of the error, for "anytime" validity; None for one model."""
        if kind is Kind.ONE_MODEL:
            return None
        return Wager(scores_in, scores_out, self.odds(delta), 0.5 * (1.0 - confidence))

    def odds(self, delta: float) -> Odds:
        """Return the odds that the claim offers to a wager."""
        return Odds.of_epsilon(self.guarantee, delta) if self.run is None else _odds_of(self.run)


@lru_cache(maxsize=8)  # an "anytime" audit looks often
def _odds_of(run: DPSGD) -> Odds:
    return Odds.of_curve(guarantee_of(run)(run).delta)


def claim_of(run: DPSGD | None, delta: float, epsilon: float | None = None, noise: float | None = None) -> Claim:
    """Return the claim that training had this epsilon, or this noise multiplier, or by default the run's settings.

    An epsilon can be claimed for an unknown run.
    """
    check_claims(epsilon, noise)
    if run is None:
        if epsilon is None:
            raise ValueError("run must be given with a claim other than an epsilon, got None")
        return Claim(None, float(epsilon), None, f"epsilon {spell_exact(float(epsilon))} at delta {spell_exact(delta)}")
    guarantee = guarantee_of(run)
    if epsilon is not None:
        claimed = float(epsilon)
        words = f"epsilon {spell_exact(claimed)} at delta {spell_exact(delta)}"
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
        words = f"noise multiplier {spell_exact(claimed)}"
    bound = guarantee(run).epsilon(delta)
    words = f"{words}: epsilon {spell_up(bound, 4)} at delta {spell_exact(delta)}"
    return Claim(run, bound, last_iterate(run).epsilon(delta), words)


def check_claims(epsilon: float | None, noise: float | None) -> None:
    """Raise an error for claims that cannot be judged, before training."""
    if epsilon is not None and noise is not None:
        raise ValueError("claim_epsilon and claim_noise were both given: give one")
    if epsilon is not None:
        number("claim_epsilon", epsilon, 0.0, open_low=True)
    if noise is not None:
        number("claim_noise", noise, 0.0, open_low=True)
        number("claim_noise", noise, LEAST_NOISE, MOST_NOISE)


def check_fault(fault: float) -> float:
    """Return the validated noise of the faulty training that an audit must catch, as a share of the declared noise."""
    return number("fault", fault, 0.02, 1.0, open_high=True)


def sharing_the_error(confidence: float) -> float:
    """Return the confidence of each of two tests that jointly have this confidence."""
    return 1.0 - 0.5 * (1.0 - confidence)


def remark_on(claim: Claim, predictions: dict[str, Answer]) -> str | None:
    """Return a sentence if the claim is below the run's own guarantee, else None."""
    own = {name: predictions[name].value for name in ("composition", "no_amplification") if name in predictions}
    guarantee = next((value for value in own.values() if value is not None), None)
    if guarantee is None or claim.guarantee >= guarantee * _SAME:
        return None
    heuristic = predictions["last_iterate"].value
    remark = f"The claim ({claim.words}) is below the run's own guarantee of {spell_up(guarantee, 4)}"
    if heuristic is not None and claim.guarantee < heuristic * _SAME:
        return (
            f"{remark}, and below the heuristic's {spell_up(heuristic, 4)}: an attack may refute the claim even if "
            "training is exactly as described."
        )
    return f"{remark}: nothing here guarantees it, even if training is exactly as described."
