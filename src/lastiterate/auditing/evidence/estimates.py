"""The bounds of one audit (``Estimates``), and the options for computing and judging them (``Question``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from lastiterate.attacks.attack import ExpectedScores, LikelihoodRatio, LinearScores, Unknown
from lastiterate.attacks.released_iterates import (
    DRAWS,
    sample_likelihood_ratios,
    sample_released_scores,
    telling_threshold,
)
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
from lastiterate.auditing.evidence.test_martingale import Martingale
from lastiterate.auditing.evidence.threshold import (
    EXPECTED,
    Worlds,
    best_threshold,
    check_threshold,
    check_validity,
    deciding,
    predicted_threshold,
    rule_of,
)
from lastiterate.common.errors import BadArgument
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import number, one_of, told
from lastiterate.compare_analyses import Answer, ask_all
from lastiterate.labels import COMPOSITION, CONVEX, METHODS, ONE_RUN_METHODS, PAIRED_METHODS
from lastiterate.privacy.analyses.convex import convex
from lastiterate.privacy.convex.distances import Contraction
from lastiterate.run import DPSGD

_RATIO = 1.1  # ratio of neighbouring ranks of simulated scores: about two hundred thresholds
METHODS_OF = {
    Kind.LAST_ITERATE: PAIRED_METHODS,
    Kind.ALL_ITERATES: ("clopper-pearson", "composition"),
    Kind.ONE_MODEL: ONE_RUN_METHODS,
}


@dataclass(frozen=True)
class Question:
    """The options of an audit's bounds, and the claim to judge.

    If ``methods`` is None, all methods that apply are used. ``threshold`` and ``validity`` are as in ``estimate``. If
    ``contraction`` is given, predictions include the guarantee of ``lastiterate.convex``. ``fault`` is the noise of the
    faulty training that an audit must be able to refute, as a share of the declared noise.
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
    def is_anytime(self) -> bool:
        """True if bounds hold for every number of models at once."""
        return self.validity == "anytime"

    @property
    def has_claim(self) -> bool:
        """True if an epsilon or noise multiplier is claimed. Otherwise the claim is the run as described."""
        return self.claim_epsilon is not None or self.claim_noise is not None

    def claim(self, run: DPSGD) -> Claim:
        """Return the claim to judge."""
        return claim_of(run, self.delta, self.claim_epsilon, self.claim_noise)

    def remark(self, run: DPSGD) -> str | None:
        """Return a sentence if the claim is below the run's own guarantee or prediction, else None."""
        if not self.has_claim:
            return None
        return remark_on(self.claim(run), run, predictions_of(run, self.delta, self.contraction))

    def __post_init__(self) -> None:
        check_claims(self.claim_epsilon, self.claim_noise)
        for name in ("delta", "confidence"):  # plain floats, since they are keys of caches
            plain = number(name, getattr(self, name), 0.0, 1.0, open_low=True, open_high=True)
            object.__setattr__(self, name, plain)
        object.__setattr__(self, "fault", check_fault(self.fault))
        if sharing_the_error(self.confidence) == 1.0:
            raise BadArgument(
                "confidence", f"must be at most 1 - 1e-15, because tests share the error, got {self.confidence!r}"
            )
        check_validity(self.validity, check_threshold(self.threshold))
        if self.methods is None:
            return
        if not isinstance(self.methods, (list, tuple)) or not self.methods:
            given = "an empty list" if isinstance(self.methods, (list, tuple)) else told(self.methods)
            raise BadArgument("methods", f"must be a list of at least one method, or None for all, got {given}")
        for method in self.methods:  # methods_for checks whether they apply, once the attack is known
            one_of("method", method, METHODS)

    def check(self, run: DPSGD, kind: Kind) -> Claim:
        """Return the claim to judge. Raise an error if the question has no answer for this run and kind of scores."""
        self.methods_for(run, kind)
        if kind is Kind.ONE_MODEL and self.is_anytime:
            raise BadArgument(
                "validity", "must be 'fixed' for canaries of one training, got 'anytime': they give one result"
            )
        if self.contraction is not None:
            if kind is Kind.ALL_ITERATES:
                raise BadArgument(
                    "contraction", "must be None if the attack sees all iterates: it is for the last iterate"
                )
            convex(run, contraction=self.contraction)
        return self.claim(run)

    def methods_for(self, run: DPSGD, kind: Kind) -> list[str]:
        """Return the methods that were requested, or by default all methods that apply to this kind of scores."""
        apply = METHODS_OF[kind]
        if run.guarantee != COMPOSITION.name:
            apply = tuple(method for method in apply if METHODS[method].family is not COMPOSITION)
        if self.methods is None:
            return list(apply)
        for method in self.methods:
            if method not in apply:
                raise BadArgument("method", f"must be one of {', '.join(apply)} for this audit, got {told(method)}")
        return list(self.methods)


@lru_cache(maxsize=8)  # predictions are needed before and after training
def predictions_of(run: DPSGD, delta: float, contraction: float | Contraction | None = None) -> dict[str, Answer]:
    """Return the epsilon of each analysis for the run. The convex guarantee is included if there is a contraction."""
    curves = {} if contraction is None else {CONVEX.name: partial(convex, contraction=contraction)}
    return ask_all(run, lambda curve: curve.epsilon(delta), curves=curves)


class Estimates:
    """Bounds from one set of scores, for each method and confidence. The threshold is the one that ``question``
    asks for.
    """

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
        """Store the scores. With "anytime" validity, thresholds are predicted for ``planned`` models per world."""
        self.question, self.planned, self._claim = question, planned, claim
        self.run, self.expected = run, expected
        self.scores = scores_in, scores_out
        self._known: dict[tuple[str, float], Estimate] = {}

    def deciding(self, claim: Claim) -> Estimates:
        """Return the estimates for judging a claim. They may have other thresholds and numbers of guesses."""
        question = replace(self.question, threshold=deciding(self.question.threshold))
        decides = Estimates(self.run, self.expected, *self.scores, question, self.planned, claim)
        if question == self.question:  # the claim changes only the number of guesses of one run
            decides._known = {key: found for key, found in self._known.items() if found.guesses is None}
        return decides

    def martingale(self, claim: Claim, kind: Kind) -> Martingale | None:
        """Return the test martingale of these scores against a claim."""
        return claim.martingale(kind, *self.scores, self.question.delta, self.question.confidence)

    def failure(self) -> str | None:
        """Return the reason why the attack failed, or None if the scores do not show a failure."""
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
        if asked != "a-priori" or METHODS[method].counts_guesses:
            return asked
        if isinstance(self.expected, Unknown):
            return "split"
        sizes = len(self.scores[0]), len(self.scores[1])
        if is_one_run:  # the number of included canaries would reveal something about the coins
            sizes = (max(sum(sizes) // 2, 1),) * 2
        if self.question.is_anytime:
            sizes = self.planned, self.planned
        return a_priori_threshold(
            self.run, self.expected, sizes, self.question.delta, confidence, method, self.question.validity
        )

    def _guesses(self, method: str, confidence: float) -> int | None:
        if not METHODS[method].is_one_run or self.question.threshold != "a-priori":
            return None
        canaries = len(self.scores[0]) + len(self.scores[1])
        if not isinstance(self.expected, LinearScores):
            return usual_guesses(canaries)
        options = self.question.delta, confidence, self.expected.signal, self.expected.spread
        best = best_guesses(self.run, canaries, method, *options)
        if self._claim is None:
            return best
        claimed = None if METHODS[method].is_assumption_free else self._claim.run
        claim = self._claim.guarantee if claimed is None else claimed
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
    """Return the threshold with the largest expected bound, for expected scores and numbers of models per world."""
    if method == "composition" and not sees_every_step(expected):  # nearly the same threshold, far quicker to find
        method = "last-iterate"
    if isinstance(expected, LinearScores):
        return predicted_threshold(run, *sizes, delta, confidence, method, scores=expected, validity=validity)
    if method == "composition":
        return telling_threshold(run)
    drawn = likelihood_ratios(run, expected)
    thresholds = drawn.thresholds(_RATIO)
    false_positives, false_negatives = drawn.errors(thresholds)
    rates = false_positives / drawn.outside.size, false_negatives / drawn.inside.size
    return best_threshold(thresholds, rates, sizes[::-1], rule_of(method, run), delta, confidence, validity)


@lru_cache(maxsize=8)
def likelihood_ratios(run: DPSGD, expected: LikelihoodRatio) -> Worlds:
    """Simulate likelihood ratios of all steps or of the released iterates, if only canary and noise move models."""
    worlds, generator = np.arange(2 * DRAWS) % 2 == 0, np.random.default_rng(0)
    sample = sample_released_scores if expected.released else sample_likelihood_ratios
    drawn = sample(run, worlds, generator, expected.signal, expected.noise)
    return Worlds(np.sort(drawn[::2]), np.sort(drawn[1::2]))
