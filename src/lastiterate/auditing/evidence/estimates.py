"""Bounds from the scores of one audit, each at the threshold that suits what was expected of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from lastiterate.attacks.all_iterates import DRAWS, sample_likelihood_ratios, telling_threshold
from lastiterate.attacks.attack import ExpectedScores, LikelihoodRatio, LinearScores, Unknown
from lastiterate.attacks.released_iterates import sample_released_scores
from lastiterate.auditing.evidence.claims import (
    Claim,
    check_claims,
    check_fault,
    claim_of,
    remark_on,
    sharing_the_error,
)
from lastiterate.auditing.evidence.estimate import Estimate, estimate_or_zero
from lastiterate.auditing.evidence.one_run.guesses import usual_guesses
from lastiterate.auditing.evidence.one_run.one_run_power import OneRunPlan, best_guesses, refuting_guesses
from lastiterate.auditing.evidence.score_signal import Kind, expected_signal, failure_of, sees_every_step, signal_of
from lastiterate.auditing.evidence.test_martingale import Wager
from lastiterate.auditing.evidence.threshold import (
    EXPECTED,
    Worlds,
    check_threshold,
    check_validity,
    deciding,
    predicted_threshold,
    threshold_of_draws,
)
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import number, one_of, told
from lastiterate.compare_analyses import Answer, ask_all
from lastiterate.privacy.analyses.convex import convex
from lastiterate.privacy.convex.distances import Contraction
from lastiterate.registry import COMPOSITION, CONVEX, METHODS, ONE_RUN_METHODS, PAIRED_METHODS
from lastiterate.run import DPSGD

# What is asked of an audit's scores, checked before anything is trained.

METHODS_OF = {
    Kind.LAST_ITERATE: PAIRED_METHODS,
    Kind.ALL_ITERATES: ("clopper-pearson", "composition"),
    Kind.ONE_MODEL: ONE_RUN_METHODS,
}


@dataclass(frozen=True)
class Question:
    """What is asked of the scores. ``methods`` None: all that apply; ``threshold``, ``validity`` as in ``estimate``.

    With a ``contraction`` there is also what ``lastiterate.convex`` guarantees for the last iterate. ``fault`` is the
    noise of the training that an audit must be able to refute, as a share of the declared noise.
    """

    delta: float = 1e-5
    confidence: float = 0.95
    methods: Sequence[str] | None = None
    threshold: float | str = "a-priori"
    claim_epsilon: float | None = None
    claim_noise: float | None = None
    validity: str = "fixed"
    contraction: float | Contraction | None = None
    fault: float = 0.5

    @property
    def has_claim(self) -> bool:
        """Whether a claim other than the run's own is to be judged."""
        return self.claim_epsilon is not None or self.claim_noise is not None

    def claim(self, run: DPSGD) -> Claim:
        """What is to be judged."""
        return claim_of(run, self.delta, self.claim_epsilon, self.claim_noise)

    def remark(self, run: DPSGD) -> str | None:
        """That a claim is below what the run itself guarantees or predicts."""
        return remark_on(self.claim(run), predictions_of(run, self.delta, self.contraction)) if self.has_claim else None

    def __post_init__(self) -> None:
        check_claims(self.claim_epsilon, self.claim_noise)
        for name in ("delta", "confidence"):  # plain numbers, as they are looked up by value
            plain = number(name, getattr(self, name), 0.0, 1.0, open_low=True, open_high=True)
            object.__setattr__(self, name, plain)
        object.__setattr__(self, "fault", check_fault(self.fault))
        if sharing_the_error(self.confidence) == 1.0:
            raise ValueError(
                f"confidence must leave an error that can be shared, 1e-15 at least, got {self.confidence!r}"
            )
        check_validity(self.validity, check_threshold(self.threshold))
        if self.methods is None:
            return
        if not isinstance(self.methods, (list, tuple)) or not self.methods:
            given = "an empty one" if isinstance(self.methods, (list, tuple)) else told(self.methods)
            raise ValueError(f"methods must be a list of at least one method, or None for all, got {given}")
        for method in self.methods:  # whether it applies shows when the attack is known
            one_of("method", method, METHODS)

    def check(self, run: DPSGD, kind: Kind) -> None:
        """Refuse what could not be answered for such an audit."""
        self.methods_for(run, kind)
        self.check_validity(kind)
        self.check_contraction(run, kind)
        self.claim(run)

    def check_contraction(self, run: DPSGD, kind: Kind) -> None:
        """Refuse a guarantee that does not hold for the run, or for what the attack sees."""
        if self.contraction is None:
            return
        if kind is Kind.ALL_ITERATES:
            raise ValueError("contraction must be None where an attack sees all iterates: it is for the last one")
        convex(run, contraction=self.contraction)

    def check_validity(self, kind: Kind) -> None:
        """Refuse to look at any time where there is one training, and so one look."""
        if kind is Kind.ONE_MODEL and self.validity == "anytime":
            raise ValueError("validity must be 'fixed' for canaries of one training, got 'anytime': it is one look")

    def methods_for(self, run: DPSGD, kind: Kind) -> list[str]:
        """The methods that apply to such scores, or those that were asked for."""
        apply = METHODS_OF[kind]
        if not run.amplifies:
            apply = tuple(method for method in apply if METHODS[method].family is not COMPOSITION)
        if self.methods is None:
            return list(apply)
        for method in self.methods:
            if method not in apply:
                raise ValueError(f"method must be one of {', '.join(apply)} for this audit, got {method!r}")
        return list(self.methods)


@lru_cache(maxsize=8)  # they are asked for before training, and after
def predictions_of(run: DPSGD, delta: float, contraction: float | Contraction | None = None) -> dict[str, Answer]:
    """What each analysis says of the run; with a contraction, the convex guarantee too."""
    curves = {} if contraction is None else {CONVEX.name: partial(convex, contraction=contraction)}
    return ask_all(run, lambda curve: curve.epsilon(delta), curves=curves)


class Estimates:
    """Bounds from one set of scores, by method and confidence, each at the threshold that was asked for."""

    def __init__(
        self,
        run: DPSGD,
        expected: ExpectedScores,
        scores_in: FloatArray,
        scores_out: FloatArray,
        question: Question,
        planned: int = EXPECTED,
        claim: Claim | None = None,
    ) -> None:
        """``planned``: models a world, for which a threshold is predicted where one may stop at any time."""
        self.question, self.planned, self._claim = question, planned, claim
        self.run, self.expected = run, expected
        self.scores = scores_in, scores_out
        self._known: dict[tuple[str, float], Estimate] = {}

    def deciding(self, claim: Claim) -> Estimates:
        """The same at the threshold, and with the number of guesses, that decide about a claim."""
        question = replace(self.question, threshold=deciding(self.question.threshold))
        decides = Estimates(self.run, self.expected, *self.scores, question, self.planned, claim)
        if question == self.question:  # only canaries of one run are guessed
            decides._known = {key: found for key, found in self._known.items() if found.guesses is None}
        return decides

    def wager(self, claim: Claim, kind: Kind) -> Wager | None:
        """The bet of these scores against a claim."""
        return claim.wager(kind, *self.scores, self.question.delta, self.question.confidence)

    def failure(self) -> str | None:
        """Why the attack, not the training, gave scores that tell nothing; None: it did its work."""
        signal = None
        match self.expected:
            case LinearScores(share, spread):
                signal = expected_signal(self.run, share, spread)
            case LikelihoodRatio() as ratio:
                drawn = likelihood_ratios(self.run, ratio)
                signal = signal_of(drawn.inside, drawn.outside)
        return failure_of(*self.scores, signal)

    def __call__(self, method: str, confidence: float) -> Estimate:
        if (method, confidence) not in self._known:
            threshold, guesses = self._threshold(method, confidence), self._guesses(method, confidence)
            delta, validity = self.question.delta, self.question.validity
            self._known[method, confidence] = estimate_or_zero(
                *self.scores, delta, confidence, method, threshold, self.run, validity, guesses
            )
        return self._known[method, confidence]

    def _threshold(self, method: str, confidence: float) -> float | str:
        asked = self.question.threshold
        is_one_run = METHODS[method].is_one_run
        if asked != "a-priori" or (is_one_run and method != "one-run-independent"):
            return asked
        if isinstance(self.expected, Unknown):
            return "split"
        sizes = len(self.scores[0]), len(self.scores[1])
        if is_one_run:  # how many canaries really are in says something about the coins
            sizes = (max(sum(sizes) // 2, 1),) * 2
        if self.question.validity == "anytime":
            sizes = self.planned, self.planned
        return a_priori_threshold(
            self.run, self.expected, sizes, self.question.delta, confidence, method, self.question.validity
        )

    def _guesses(self, method: str, confidence: float) -> int | None:
        """How many canaries of one run to guess, by what was expected of the scores; None: it is not asked."""
        if not METHODS[method].is_one_run or self.question.threshold != "a-priori":
            return None
        canaries = len(self.scores[0]) + len(self.scores[1])
        if not isinstance(self.expected, LinearScores):
            return usual_guesses(canaries)
        options = self.question.delta, confidence, self.expected.signal, self.expected.spread
        best = best_guesses(self.run, canaries, method, *options)
        if self._claim is None:
            return best
        is_free = METHODS[method].is_assumption_free or self._claim.run is None
        claim = self._claim.guarantee if is_free else self._claim.run
        return refuting_guesses(OneRunPlan(self.run, canaries, best, *options), claim)


@lru_cache(maxsize=256)
def a_priori_threshold(
    run: DPSGD,
    expected: LinearScores | LikelihoodRatio,
    sizes: tuple[int, int],
    delta: float,
    confidence: float,
    method: str,
    validity: str,
) -> float:
    """The threshold that such scores are expected to show most at, for so many models in each world."""
    if method == "composition" and not sees_every_step(expected):  # nearly the same, and far quicker to find
        method = "last-iterate"
    if isinstance(expected, LinearScores):
        return predicted_threshold(
            run, *sizes, delta, confidence, method, spread=expected.spread, signal=expected.signal, validity=validity
        )
    if method == "composition":
        return telling_threshold(run)
    drawn = likelihood_ratios(run, expected)
    return threshold_of_draws(drawn, run, *sizes, delta, confidence, method, validity)


@lru_cache(maxsize=8)
def likelihood_ratios(run: DPSGD, expected: LikelihoodRatio) -> Worlds:
    """Likelihood ratios of all steps, or of what is released, drawn as if nothing but canary and noise moved models."""
    worlds, generator = np.arange(2 * DRAWS) % 2 == 0, np.random.default_rng(0)
    if expected.released:
        drawn = sample_released_scores(run, worlds, generator, expected.signal, expected.noise)
    else:
        drawn = sample_likelihood_ratios(run, worlds, generator, expected.signal, expected.noise)
    return Worlds(np.sort(drawn[::2]), np.sort(drawn[1::2]))
