"""Claims about the privacy of training, and the tests that can refute them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from lastiterate.auditing.evidence.estimate import Estimate
from lastiterate.auditing.evidence.one_run.allowed_guesses import slack
from lastiterate.auditing.evidence.one_run.guesses import ways_of
from lastiterate.auditing.evidence.one_run.one_run_power import allowed_by
from lastiterate.auditing.evidence.score_signal import Kind, guarantee_of
from lastiterate.auditing.evidence.test_martingale import ClaimedCurve, Martingale
from lastiterate.common.errors import BadArgument
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import LEAST_NOISE, MOST_NOISE, number
from lastiterate.compare_analyses import Answer
from lastiterate.formatting import spell_exact, spell_up
from lastiterate.labels import COMPOSITION
from lastiterate.privacy.analyses.calibrate import calibrate
from lastiterate.privacy.analyses.composition import composition
from lastiterate.privacy.analyses.last_iterate import last_iterate
from lastiterate.run import DPSGD

_SAME = 1.0 - 1e-6  # relative tolerance of an epsilon: noise is calibrated to a millionth


@dataclass(frozen=True)
class Test:
    """A test that can refute a claim: the epsilon of an estimation method is compared with ``guarantee``.

    If a ``run`` with the claimed noise is given, error rates or guesses are compared with the curve of its guarantee.
    """

    __test__ = False  # tells pytest that this class is no test

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
            canaries = found.models_in + found.models_out
            ways = len(ways_of(canaries, "corrected")) if found.threshold_choice == "corrected" else 1
            error = (1.0 - self.confidence) / ways
            return slack(allowed_by(self.run), canaries, found.guesses, right, error) < 0.0
        return _least_fnr(self.run, found.fpr_upper) > found.fnr_upper + 1e-9  # tolerance for numerical error


@lru_cache(maxsize=1024)  # cached, because the same rates recur
def _least_fnr(run: DPSGD, fpr: float) -> float:
    return float(guarantee_of(run)(run).fnr(fpr))


@dataclass(frozen=True)
class Claim:
    """A claim about a training, as epsilons at one delta.

    Attributes:
        run: the run with the claimed noise, or with the noise that the claimed epsilon needs. None if it is unknown.
        guarantee: the epsilon that no attack may exceed.
        heuristic: the epsilon that attacks on the last iterate should not exceed, a prediction. None if it is unknown.
        words: the claim in words.
    """

    run: DPSGD | None
    guarantee: float
    heuristic: float | None
    words: str

    def tests(self, kind: Kind, confidence: float) -> list[Test]:
        """Return the tests that can refute the claim. The error 1 - ``confidence`` is divided among the tests."""
        free = "one-run" if kind is Kind.ONE_MODEL else "clopper-pearson"
        if self.run is None:
            return [Test(free, confidence, self.guarantee)]
        shared = sharing_the_error(confidence)
        # The method of the second test only chooses the threshold, or the number of guesses. Use the quickest method.
        family = {Kind.LAST_ITERATE: "last-iterate", Kind.ONE_MODEL: "one-run-fdp"}.get(kind, "composition")
        if kind is Kind.ALL_ITERATES and self.run.guarantee != COMPOSITION.name:
            family = "clopper-pearson"
        return [Test(free, shared, self.guarantee), Test(family, shared, self.guarantee, self.run)]

    def martingale(
        self, kind: Kind, scores_in: FloatArray, scores_out: FloatArray, delta: float, confidence: float
    ) -> Martingale | None:
        """Return the test martingale against the claim, with half of the error. Return None for one model."""
        if kind is Kind.ONE_MODEL:
            return None
        return Martingale(scores_in, scores_out, self.curve(delta), 0.5 * (1.0 - confidence))

    def curve(self, delta: float) -> ClaimedCurve:
        """Return the deltas that the claim allows at each epsilon."""
        return ClaimedCurve.of_epsilon(self.guarantee, delta) if self.run is None else _curve_of(self.run)


@lru_cache(maxsize=8)  # an "anytime" audit is evaluated often
def _curve_of(run: DPSGD) -> ClaimedCurve:
    return ClaimedCurve.of_curve(guarantee_of(run)(run).delta)


def claim_of(run: DPSGD | None, delta: float, epsilon: float | None = None, noise: float | None = None) -> Claim:
    """Return the claim that training had this epsilon, this noise multiplier, or by default the run's settings."""
    check_claims(epsilon, noise)
    if epsilon is not None:
        claimed = float(epsilon)
        words = f"epsilon {spell_exact(claimed)} at delta {spell_exact(delta)}"
        if run is None or run.guarantee != COMPOSITION.name:
            return Claim(None, claimed, None, words)
        try:
            needed = calibrate(run, epsilon=claimed, delta=delta, analysis=composition)
        except ValueError as error:
            raise BadArgument(
                "claim_epsilon", f"must be an epsilon that the run can have, got {claimed!r}: {error}"
            ) from None
        return Claim(needed, claimed, last_iterate(needed).epsilon(delta), words)
    if run is None:
        raise BadArgument("run", "must be given unless claim_epsilon is given, got None")
    words = "the run as described"
    if noise is not None:
        claimed = float(noise)
        run = run.replace(noise_multiplier=run.noise_multiplier * (claimed / float(np.max(run.noise_multiplier))))
        words = f"noise multiplier {spell_exact(claimed)}"
    bound = guarantee_of(run)(run).epsilon(delta)
    words = f"{words}: epsilon {spell_up(bound, 4)} at delta {spell_exact(delta)}"
    return Claim(run, bound, last_iterate(run).epsilon(delta), words)


def check_claims(epsilon: float | None, noise: float | None) -> None:
    """Raise ValueError for claims that cannot be judged."""
    if epsilon is not None and noise is not None:
        raise ValueError("claim_epsilon and claim_noise were both given: give one")
    if epsilon is not None:
        number("claim_epsilon", epsilon, 0.0, open_low=True)
    if noise is not None:
        number("claim_noise", noise, 0.0, open_low=True)
        number("claim_noise", noise, LEAST_NOISE, MOST_NOISE)


def check_fault(fault: float) -> float:
    """Validate and return ``fault``: the noise of faulty training, as a share of the declared noise."""
    return number("fault", fault, 0.02, 1.0, open_high=True)


def sharing_the_error(confidence: float) -> float:
    """Return the confidence that each of two tests needs, so that both together have ``confidence``."""
    return 1.0 - 0.5 * (1.0 - confidence)


def remark_on(claim: Claim, run: DPSGD, predictions: Mapping[str, Answer]) -> str | None:
    """Return a sentence if the claim is below the run's own guarantee, else None."""
    guarantee = predictions[run.guarantee].value
    if guarantee is None or claim.guarantee >= guarantee * _SAME:
        return None
    heuristic = predictions["last_iterate"].value
    remark = f"The claim ({claim.words}) is below the run's own guarantee of {spell_up(guarantee, 4)}"
    if heuristic is not None and claim.guarantee < heuristic * _SAME:
        return (
            f"{remark}, and below the heuristic's {spell_up(heuristic, 4)}: an attack may refute the claim even if "
            "training is exactly as described."
        )
    return f"{remark}: no analysis guarantees the claim, even if training is exactly as described."
