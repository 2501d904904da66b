"""Bounds from the scores of one audit, each at the threshold that suits what was expected of them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from lastiterate.arrays import FloatArray
from lastiterate.attacks.attack import ExpectedScores, LikelihoodRatio, LinearScores, Unknown
from lastiterate.attacks.likelihood import DRAWS, sample_likelihood_ratios, telling_threshold
from lastiterate.attacks.released_scores import sample_released_scores
from lastiterate.auditing.evidence.betting import Wager
from lastiterate.auditing.evidence.claims import Claim
from lastiterate.auditing.evidence.estimate import Estimate, estimate_or_zero
from lastiterate.auditing.evidence.kinds import Kind, sees_every_step
from lastiterate.auditing.evidence.one_run import usual_guesses
from lastiterate.auditing.evidence.one_run_power import OneRunPlan, best_guesses, refuting_guesses
from lastiterate.auditing.evidence.question import Question
from lastiterate.auditing.evidence.signal import expected_signal, failure_of, signal_of
from lastiterate.auditing.evidence.threshold import (
    EXPECTED,
    Worlds,
    deciding,
    predicted_threshold,
    threshold_of_draws,
)
from lastiterate.run import DPSGD
from lastiterate.vocabulary import METHODS


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
