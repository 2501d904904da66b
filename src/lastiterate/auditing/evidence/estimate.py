"""Empirical epsilon: a lower bound from the scores of an audit, with its confidence, method and threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.auditing.evidence.family import Family
from lastiterate.auditing.evidence.one_run.guesses import (
    Guesses,
    LowerBound,
    bound_of,
    independent_bounds,
    unfair_coins,
)
from lastiterate.auditing.evidence.one_run.one_run_power import best_guesses
from lastiterate.auditing.evidence.threshold import (
    OTHER_WAY,
    SMALLER,
    Bounds,
    Worlds,
    bounds_of,
    check_threshold,
    check_validity,
    rule_of,
    separates_the_other_way,
)
from lastiterate.common.errors import BadArgument
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import integer, number, one_of, shown
from lastiterate.formatting import per_cent, spell, spell_down, spell_exact, spell_up
from lastiterate.labels import METHODS, THRESHOLDS
from lastiterate.run import DPSGD
from lastiterate.supported_runs import (
    BALLS_IN_BINS,
    BASIC,
    COMBINATIONS,
    CORRELATED_ADAM,
    CORRELATED_NOISE,
    LINEAR,
    RELEASES,
    Support,
    require_supported,
)

_ONE_RUN, _PAIRED = BASIC | {BALLS_IN_BINS, CORRELATED_NOISE, CORRELATED_ADAM}, LINEAR | {RELEASES} | COMBINATIONS


@dataclass(frozen=True)
class Estimate:
    """A lower bound on epsilon, with its errors, threshold and assumptions.

    Attributes:
        epsilon: the bound, at least 0. It is infinite if no noise of a family of mechanisms explains the scores.
        confidence: the confidence of the bound, for both error rates together.
        threshold: models with at least this score are called "in" (with at most this score, if ``direction`` is -1).
        threshold_choice: "a-priori", "split", "corrected" or "uncorrected". "uncorrected" is not a valid bound.
        models_in, models_out: numbers of counted models with and without the canary.
        false_positives: number of models without the canary that were called "in".
        false_negatives: number of models with the canary that were called "out".
        fpr_upper, fnr_upper: upper bounds on the two error rates.
        largest: the bound if there were no errors, the largest that this many models can show. None if not computed.
        noise_multiplier: the largest noise multiplier of the first step that the scores allow. None without a family.
        direction: 1 if larger scores speak for the canary, -1 if smaller scores do. Only "split" finds -1.
        caveats: sentences that a reader must know about this bound. The last ones are its assumptions.
        validity: "fixed" or "anytime", as in ``estimate``.
        guesses: for one run, the number of guesses, fixed in advance. None if the method does not count guesses.
        guessed: the number of guesses made. It is smaller than ``guesses`` if scores are equal.
    """

    epsilon: float
    method: str
    delta: float
    confidence: float
    threshold: float
    threshold_choice: str
    models_in: int
    models_out: int
    false_positives: int
    false_negatives: int
    fpr_upper: float
    fnr_upper: float
    largest: float | None
    noise_multiplier: float | None = None
    direction: int = 1
    caveats: tuple[str, ...] = ()
    validity: str = "fixed"
    guesses: int | None = None
    guessed: int | None = None

    def __float__(self) -> float:
        return self.epsilon

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of the bound, in sentences. They are also the last caveats."""
        return METHODS[self.method].assumptions(self.threshold_choice, self.validity)

    def __str__(self) -> str:
        method = METHODS[self.method]
        if THRESHOLDS[self.threshold_choice].is_valid:
            when = ", at every moment" if self.validity == "anytime" else ""
            says = f">= {spell_down(self.epsilon)} with {per_cent(self.confidence)} confidence{when}"
        else:
            says = f"{spell(self.epsilon, 5)}, not a valid bound"
        what = "canaries" if method.is_one_run else "models"
        most = "" if self.largest is None else f", which show at most {spell_up(self.largest, 4)}"
        return (
            f"epsilon {says}, at delta {spell_exact(self.delta)}: {method.label}, threshold {self.threshold_choice}, "
            f"{self.models_in:,} + {self.models_out:,} {what}{most}. {' '.join(self.caveats)}"
        )


def estimate(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    delta: float = 1e-5,
    confidence: float = 0.95,
    method: str = "clopper-pearson",
    threshold: float | str = "split",
    run: DPSGD | None = None,
    validity: str = "fixed",
    guesses: int | None = None,
) -> Estimate:
    """Compute a lower bound on epsilon from the scores of models with and without the canary.

    A larger score speaks for the canary; only the threshold "split" learns the direction from the scores. Scores may be
    infinite, but not NaN. Clopper and Pearson's upper bounds on the false positive and false negative rates are each
    wrong with probability (1 - confidence) / 2. The method turns the two rates into epsilon:

    - "clopper-pearson": the definition of (epsilon, delta)-DP, for any mechanism.
    - "gdp": a Gaussian mechanism of unknown noise.
    - "last-iterate", "composition": ``run`` under this analysis, with its noise scaled by an unknown factor. Epsilon is
      infinite if the mechanism is not of this family. Slow families are evaluated up to an epsilon of 50 or twice the
      epsilon of the run.
    - "one-run", "one-run-fdp", "one-run-last-iterate", "one-run-composition": the scores belong to canaries of one
      run, each included by its own fair coin. The mechanism is any, a Gaussian mechanism, or ``run`` under one
      of the analyses. These methods count right guesses; the error rates are NaN.
    - "one-run-independent": the same scores, if no canary changes the score of another canary.

    The methods of one run raise an error if the numbers of canaries in and out are too unequal for fair coins: such
    numbers would occur in fewer than one of 1,000 audits.

    The threshold must be one of these:

    - a number, chosen before the scores were seen;
    - "a-priori": predicted by the linear analysis of ``run`` for scores in standard deviations of its noise;
    - "split": a random half of the models chooses threshold and direction, the other half gives the bound;
    - "corrected": all thresholds, with bounds that hold for all of them at once;
    - "uncorrected": the best of all thresholds as if it were the only one. This is not a valid bound.

    For one run, every canary is guessed if the threshold is a number. "a-priori" guesses ``guesses`` canaries: half of
    them with the largest scores and half with the smallest. If ``guesses`` is None, the linear analysis of ``run``
    chooses the number. Without a run, a quarter of the canaries is guessed. "corrected" and "split" try several fixed
    numbers of guesses. For "one-run-independent", "corrected" is the same as "split".

    With ``validity`` "fixed", the number of models must have been fixed in advance. With "anytime", the bound holds for
    all numbers of models at once, and scores must be in the order of the models. The first 64 models per world choose
    the threshold of "split". "a-priori" predicts the threshold for 512 models per world. Other threshold rules, and
    methods of one run, raise an error.
    """
    found = estimate_or_zero(scores_in, scores_out, delta, confidence, method, threshold, run, validity, guesses)
    if METHODS[method].is_one_run and (unfair := unfair_coins(np.size(scores_in), np.size(scores_out))):
        raise ValueError(f"scores_in and scores_out must come from fair coins for method {method!r}: {unfair}")
    return found


def estimate_or_zero(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    delta: float,
    confidence: float,
    method: str,
    threshold: float | str,
    run: DPSGD | None,
    validity: str = "fixed",
    guesses: int | None = None,
) -> Estimate:
    """Compute ``estimate``. If the coins are visibly unfair, return epsilon 0 and a caveat instead of an error."""
    inside, outside = _scores("scores_in", scores_in), _scores("scores_out", scores_out)
    one_of("method", method, METHODS)
    gaussian = not METHODS[method].is_assumption_free  # Gaussian noise has no finite epsilon at delta 0
    delta = number("delta", delta, 0.0, 1.0, open_low=gaussian, open_high=True)
    confidence = number("confidence", confidence, 0.0, 1.0, open_low=True, open_high=True)
    threshold = check_threshold(threshold)
    if run is not None:
        require_supported(run, Support(f"method {method!r}", _ONE_RUN if METHODS[method].is_one_run else _PAIRED))
        if run.release_count > 1 and threshold == "a-priori":
            raise BadArgument(
                "threshold",
                f"must be a number, split or corrected for a run with {run.release_count} releases, got "
                "'a-priori': the distribution of the scores is unknown",
            )
    check_validity(validity, threshold)
    worlds = Worlds.of(inside, outside)
    if guesses is not None:
        integer("guesses", guesses, 1, inside.size + outside.size)
    if METHODS[method].is_one_run and validity == "anytime":
        raise BadArgument("validity", f"must be 'fixed' for method {method!r}, got 'anytime': one run gives one result")
    unfair = unfair_coins(inside.size, outside.size) if METHODS[method].is_one_run else None
    made = None
    if unfair or METHODS[method].counts_guesses:
        threshold = "corrected" if threshold == "split" else threshold
        choice = threshold if isinstance(threshold, str) else "a-priori"
        made, bound = Guesses(math.inf, 0, 0, 0, 0), LowerBound(0.0, 0.0, None)
        if not unfair:
            if threshold == "a-priori" and run is not None and guesses is None:
                guesses = best_guesses(run, inside.size + outside.size, method, delta, confidence)
            made, bound = bound_of(worlds, threshold, method, delta, confidence, run, guesses)
        bounds = Bounds(made.threshold, 1, worlds, made.false_positives, made.false_negatives, *[math.nan] * 4)
        missed = f"{made.most - made.made:,} of the {made.most:,} planned guesses were not made"
        tied = f"{missed}, because the scores of these canaries equal those of canaries that are not guessed."
        caveats = (unfair,) if unfair else (tied,) if made.made < made.most else ()
    else:
        rule = rule_of(method, run)
        if METHODS[method].is_one_run:
            choice, bounds = independent_bounds(worlds, threshold, run, delta, confidence)
        else:
            choice = threshold if isinstance(threshold, str) else "a-priori"
            bounds = bounds_of(inside, outside, delta, confidence, method, threshold, run, validity)
        # With very little noise, curves of composition and of several releases take minutes.
        is_slow = isinstance(rule, Family) and rule.is_slow
        bound = LowerBound(
            rule.epsilon(bounds.fpr, bounds.fnr, delta),
            None if is_slow else rule.epsilon(bounds.least_fpr, bounds.least_fnr, delta),
            rule.noise_multiplier(bounds.fpr, bounds.fnr),
        )
        caveats = (SMALLER,) if bounds.direction < 0 else ()
    if choice != "split" and separates_the_other_way(worlds):
        caveats = (*caveats, OTHER_WAY)
    return Estimate(
        epsilon=bound.epsilon,
        method=method,
        delta=delta,
        confidence=confidence,
        threshold=bounds.threshold,
        threshold_choice=choice,
        models_in=bounds.worlds.inside.size,
        models_out=bounds.worlds.outside.size,
        false_positives=bounds.false_positives,
        false_negatives=bounds.false_negatives,
        fpr_upper=bounds.fpr,
        fnr_upper=bounds.fnr,
        largest=bound.largest,
        noise_multiplier=bound.noise_multiplier,
        direction=bounds.direction,
        caveats=(*caveats, *METHODS[method].assumptions(choice, validity)),
        validity=validity,
        guesses=None if made is None else made.most,
        guessed=None if made is None else made.made,
    )


def _scores(name: str, given: ArrayLike) -> FloatArray:
    try:
        scores = np.asarray(given)
    except (TypeError, ValueError):
        scores = np.asarray("lists of different lengths")
    if scores.ndim != 1 or (scores.size and scores.dtype.kind not in "iuf"):
        raise ValueError(f"{name} must be a list of numbers, got {shown(given)}")
    if scores.size == 0:
        raise ValueError(f"{name} must hold at least one score, got none")
    scores = scores.astype(np.float64)
    if np.isnan(scores).any():
        raise ValueError(f"{name} must be numbers (infinite numbers are allowed), got nan")
    return scores
