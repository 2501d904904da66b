"""Questions to the scores of one audit, and the bounds that answer them, each at its predicted or chosen threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from lastiterate.attacks.attack import ExpectedScores, LikelihoodRatio, LinearScores, Unknown
from lastiterate.attacks.likelihood_ratio import DRAWS, sample_likelihood_ratios, telling_threshold
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

METHODS_OF = {
    Kind.LAST_ITERATE: PAIRED_METHODS,
    Kind.ALL_ITERATES: ("clopper-pearson", "composition"),
    Kind.ONE_MODEL: ONE_RUN_METHODS,
}


@dataclass(frozen=True)
class Question:
    """The question to the scores of an audit: options of the bounds, and the claim to judge.

    The options are checked before training. ``methods`` None: all that apply. ``threshold`` and ``validity`` are as in
    ``estimate``. With a ``contraction``, predictions include the guarantee of ``lastiterate.convex`` for the last
    iterate. ``fault`` is the noise of the training that an audit must be able to refute, as a share of the declared
    noise.
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
        """True if the claim is not the run's own."""
        return self.claim_epsilon is not None or self.claim_noise is not None

    def claim(self, run: DPSGD) -> Claim:
        """Return the claim to judge."""
        return claim_of(run, self.delta, self.claim_epsilon, self.claim_noise)

    def remark(self, run: DPSGD) -> str | None:
        """Return a sentence if the claim is below the run's own guarantee or prediction, else None."""
        return remark_on(self.claim(run), predictions_of(run, self.delta, self.contraction)) if self.has_claim else None

    def __post_init__(self) -> None:
        check_claims(self.claim_epsilon, self.claim_noise)
        for name in ("delta", "confidence"):  # plain numbers, since caches look them up by value
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
        for method in self.methods:  # methods_for checks that they apply, once the attack is known
            one_of("method", method, METHODS)

    def check(self, run: DPSGD, kind: Kind) -> None:
        """Raise an error if the question cannot be answered for this run and kind of scores."""
        self.methods_for(run, kind)
        self.check_validity(kind)
        self.check_contraction(run, kind)
        self.claim(run)

    def check_contraction(self, run: DPSGD, kind: Kind) -> None:
        """Raise an error if the convex guarantee does not hold for the run or for this kind of scores."""
        if self.contraction is None:
            return
        if kind is Kind.ALL_ITERATES:
            raise ValueError("contraction must be None where an attack sees all iterates: it is for the last one")
        convex(run, contraction=self.contraction)

    def check_validity(self, kind: Kind) -> None:
        """Raise an error for "anytime" validity with one training, which allows only one look."""
        if kind is Kind.ONE_MODEL and self.validity == "anytime":
            raise ValueError("validity must be 'fixed' for canaries of one training, got 'anytime': it is one look")

    def methods_for(self, run: DPSGD, kind: Kind) -> list[str]:
        """Return the methods that were asked for, or all that apply to this kind of scores."""
        apply = METHODS_OF[kind]
        if not run.amplifies:
            apply = tuple(method for method in apply if METHODS[method].family is not COMPOSITION)
        if self.methods is None:
            return list(apply)
        for method in self.methods:
            if method not in apply:
                raise ValueError(f"method must be one of {', '.join(apply)} for this audit, got {method!r}")
        return list(self.methods)


@lru_cache(maxsize=8)  # predictions are needed before and after training
def predictions_of(run: DPSGD, delta: float, contraction: float | Contraction | None = None) -> dict[str, Answer]:
    """Return the epsilon of each analysis for the run; with a contraction, also the convex guarantee."""
    curves = {} if contraction is None else {CONVEX.name: partial(convex, contraction=contraction)}
    return ask_all(run, lambda curve: curve.epsilon(delta), curves=curves)


class Estimates:
    """Bounds from one set of scores, by method and confidence, at the threshold of the question."""

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
        """Store the scores. ``planned``: models a world for which a threshold is predicted with "anytime" validity."""
        self.question, self.planned, self._claim = question, planned, claim
        self.run, self.expected = run, expected
        self.scores = scores_in, scores_out
        self._known: dict[tuple[str, float], Estimate] = {}

    def deciding(self, claim: Claim) -> Estimates:
        """Return the estimates at the threshold, and with the number of guesses, that decide about a claim."""
        question = replace(self.question, threshold=deciding(self.question.threshold))
        decides = Estimates(self.run, self.expected, *self.scores, question, self.planned, claim)
        if question == self.question:  # the claim changes nothing but the number of guesses of one run
            decides._known = {key: found for key, found in self._known.items() if found.guesses is None}
        return decides

    def wager(self, claim: Claim, kind: Kind) -> Wager | None:
        """Return the wager of these scores against a claim."""
        return claim.wager(kind, *self.scores, self.question.delta, self.question.confidence)

    def failure(self) -> str | None:
        """Return the reason why the attack failed; None if nothing shows that it did."""
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
        if is_one_run:  # the number of canaries that are in would reveal something about the coins
            sizes = (max(sum(sizes) // 2, 1),) * 2
        if self.question.validity == "anytime":
            sizes = self.planned, self.planned
        return a_priori_threshold(
            self.run, self.expected, sizes, self.question.delta, confidence, method, self.question.validity
        )

    def _guesses(self, method: str, confidence: float) -> int | None:
        """Return the number of guesses for one run by the expected scores; None if the threshold rule needs none."""
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
    """Return the threshold with the largest expected bound, for this law of the scores and these numbers of models."""
    if method == "composition" and not sees_every_step(expected):  # nearly the same threshold, far quicker to find
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
    """Draw likelihood ratios of all steps, or of the released iterates, if only canary and noise move the models."""
    worlds, generator = np.arange(2 * DRAWS) % 2 == 0, np.random.default_rng(0)
    if expected.released:
        drawn = sample_released_scores(run, worlds, generator, expected.signal, expected.noise)
    else:
        drawn = sample_likelihood_ratios(run, worlds, generator, expected.signal, expected.noise)
    return Worlds(np.sort(drawn[::2]), np.sort(drawn[1::2]))
