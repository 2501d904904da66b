"""What the scores say about a claim: is it refuted, is the heuristic exceeded, or is all as it should be?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lastiterate.auditing.estimate import Estimate
from lastiterate.plot.words import spell
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
        guarantee: no attack may exceed it.
        heuristic: attacks on the last iterate are expected not to; None: it is not known.
        words: the claim for people.
    """

    guarantee: float
    heuristic: float | None
    words: str


def claim_of(run: DPSGD, delta: float, epsilon: float | None = None, noise: float | None = None) -> Claim:
    """The claim that training had this epsilon, or this noise multiplier, or else all that the run says."""
    check_claims(epsilon, noise)
    guarantee = no_amplification if run.sampling in ("shuffled", "fixed") else composition
    if epsilon is not None:
        claimed = float(epsilon)
        heuristic = None
        if guarantee is composition:
            heuristic = last_iterate(calibrate(run, epsilon=claimed, delta=delta, analysis=composition)).epsilon(delta)
        return Claim(claimed, heuristic, f"epsilon {spell(claimed)} at delta {spell(delta)}")
    words = "the run as described"
    if noise is not None:
        claimed = float(noise)
        run = run.replace(noise_multiplier=run.noise_multiplier * (claimed / float(np.max(run.noise_multiplier))))
        words = f"noise multiplier {spell(claimed)}"
    bound = guarantee(run).epsilon(delta)
    return Claim(bound, last_iterate(run).epsilon(delta), f"{words}: epsilon {spell(bound)} at delta {spell(delta)}")


def check_claims(epsilon: float | None, noise: float | None) -> None:
    """Refuse claims that cannot be judged, before anything is trained."""
    if epsilon is not None and noise is not None:
        raise ValueError("claim_epsilon and claim_noise were both given: give one")
    for name, value in (("claim_epsilon", epsilon), ("claim_noise", noise)):
        if value is not None:
            number(name, value, 0.0, open_low=True)


def judge(
    claim: Claim, methods: tuple[str, ...], estimate: Callable[[str, float], Estimate], confidence: float
) -> tuple[str, str]:
    """The verdict and its reason. ``estimate(method, confidence)`` gives a bound; the tests share the error."""
    tests = [method for method in methods if method in ("clopper-pearson", "composition", "one-run")]
    shared = 1.0 - (1.0 - confidence) / max(len(tests), 1)
    for method in tests:
        if estimate(method, confidence).epsilon <= claim.guarantee:  # then not with more confidence either
            continue
        found = estimate(method, shared)
        if found.epsilon > claim.guarantee:
            return VIOLATION, (
                f"The claim ({claim.words}) is refuted at {confidence:.4g} confidence: {method} finds an epsilon of at "
                f"least {spell(found.epsilon)}."
            )
    if "last-iterate" in methods and claim.heuristic is not None:
        found = estimate("last-iterate", confidence)
        if found.epsilon > claim.heuristic:
            return ABOVE_HEURISTIC, (
                f"The attack finds {spell(found.epsilon)} at {confidence:.4g} confidence, above the heuristic's "
                f"{spell(claim.heuristic)}: losses are not as linear as it assumes, or training is not what is claimed."
            )
    return CONSISTENT, f"Nothing speaks against the claim ({claim.words}) at {confidence:.4g} confidence."
