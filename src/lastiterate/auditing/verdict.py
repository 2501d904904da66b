"""What the scores say about a claim: is it refuted, is the heuristic exceeded, or is all as it should be?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lastiterate.auditing.estimate import Estimate
from lastiterate.plot.words import METHODS, per_cent, spell
from lastiterate.privacy.calibrate import calibrate
from lastiterate.privacy.composition import composition
from lastiterate.privacy.last_iterate import last_iterate
from lastiterate.privacy.no_amplification import no_amplification
from lastiterate.run import DPSGD
from lastiterate.values import number

VIOLATION, ABOVE_HEURISTIC, CONSISTENT = "violation", "above heuristic", "consistent"


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

    def is_refuted_by_rates(self, fpr: float, fnr: float) -> bool:
        """Whether these error rates are better than composition allows for the claimed noise, or any larger one."""
        if self.run is None or self.run.sampling in ("shuffled", "fixed"):
            return False
        return bool(composition(self.run).fnr(fpr) > fnr + 1e-9)


def claim_of(run: DPSGD, delta: float, epsilon: float | None = None, noise: float | None = None) -> Claim:
    """The claim that training had this epsilon, or this noise multiplier, or else all that the run says."""
    check_claims(epsilon, noise)
    guarantee = no_amplification if run.sampling in ("shuffled", "fixed") else composition
    if epsilon is not None:
        claimed = float(epsilon)
        words = f"epsilon {spell(claimed)} at delta {spell(delta)}"
        if guarantee is no_amplification:
            return Claim(None, claimed, None, words)
        needed = calibrate(run, epsilon=claimed, delta=delta, analysis=composition)
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
    for name, value in (("claim_epsilon", epsilon), ("claim_noise", noise)):
        if value is not None:
            number(name, value, 0.0, open_low=True)


def sharing_the_error(confidence: float) -> float:
    """The confidence of each of two tests that are wrong together as seldom as this one."""
    return 1.0 - 0.5 * (1.0 - confidence)


def judge(claim: Claim, kind: str, estimate: Callable[[str, float], Estimate], confidence: float) -> tuple[str, str]:
    """The verdict and its reason, by the tests that apply to a kind of scores, whatever else was asked of them.

    ``kind`` is "one-run", "likelihood-ratio" or anything else, which is about the last iterate.
    ``estimate(method, confidence)`` gives a bound. Two tests can refute a claim: they share the error.
    """
    sure = per_cent(confidence)
    if kind == "one-run":
        refuted = _refuted_without_assumptions(claim, estimate("one-run", confidence))
    else:
        shared = sharing_the_error(confidence)
        refuted = _refuted_without_assumptions(claim, estimate("clopper-pearson", shared))
        # The threshold of the composition family, for last iterates, is that of the quicker one.
        rates = estimate("composition" if kind == "likelihood-ratio" else "last-iterate", shared)
        if refuted is None and claim.is_refuted_by_rates(rates.fpr_upper, rates.fnr_upper):
            refuted = estimate("composition", shared)
    if refuted is not None:
        halves = "" if kind == "one-run" else "; the two tests that can refute share the error"
        return VIOLATION, (
            f"The claim ({claim.words}) is refuted with {sure} confidence: {METHODS[refuted.method]} finds an epsilon "
            f"of at least {spell(refuted.epsilon)}{halves}."
        )
    if kind not in ("one-run", "likelihood-ratio") and claim.heuristic is not None:
        found = estimate("last-iterate", confidence)
        if found.epsilon > claim.heuristic:
            return ABOVE_HEURISTIC, (
                f"The attack finds {spell(found.epsilon)} with {sure} confidence (last-iterate family), above the "
                f"heuristic's {spell(claim.heuristic)} for the claim ({claim.words}): losses are not as linear as it "
                "assumes, or training is not what is claimed."
            )
    return CONSISTENT, f"Nothing refutes the claim ({claim.words}) with {sure} confidence."


def _refuted_without_assumptions(claim: Claim, found: Estimate) -> Estimate | None:
    return found if found.epsilon > claim.guarantee else None
