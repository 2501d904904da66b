"""Empirical epsilon: a lower bound from the scores of an audit, with its confidence, method and threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.auditing.evidence.error_rates import bound_on_rates
from lastiterate.auditing.evidence.family import Family
from lastiterate.auditing.evidence.one_run.guesses import bound_of, independent_bound, unfair_coins
from lastiterate.auditing.evidence.one_run.one_run_power import best_guesses
from lastiterate.auditing.evidence.threshold import (
    CHOOSING,
    EXPECTED,
    OTHER_WAY,
    SMALLER,
    Bounds,
    Rule,
    Worlds,
    bounds_at,
    check_threshold,
    check_validity,
    chosen_by_others,
    chosen_by_themselves,
    predicted_threshold,
    rule_of,
    separates_the_other_way,
)
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import integer, number, one_of
from lastiterate.formatting import per_cent, spell, spell_down, spell_exact, spell_up
from lastiterate.registry import METHODS, THRESHOLDS
from lastiterate.run import DPSGD, LINEAR, require_basic

_KNOWN = ("releases", *LINEAR)


@dataclass(frozen=True)
class Estimate:
    """A lower bound on epsilon, with its errors, threshold and assumptions.

    Attributes:
        epsilon: the bound, at least 0. Infinite if no member of a family of mechanisms explains the scores.
        method: name of the estimation method.
        delta: of (epsilon, delta)-DP.
        confidence: of the bound, joint over both error rates.
        threshold: models with a score of at least this are called "in"; of at most this, if ``direction`` is -1.
        threshold_choice: "a-priori", "split", "corrected" or "uncorrected". "uncorrected" is not a valid bound.
        models_in: number of models with the canary that were counted.
        models_out: number of models without the canary that were counted.
        false_positives: number of models without the canary that were called "in".
        false_negatives: number of models with the canary that were called "out".
        fpr_upper: upper bound on the false positive rate.
        fnr_upper: upper bound on the false negative rate.
        largest: the bound without a single error, which is the largest that this many models can show. None: not
            computed, for the composition family and for several releases.
        noise_multiplier: for a family, the largest noise multiplier (of the first step) that the scores allow.
        direction: 1 if larger scores speak for the canary, -1 if smaller ones do. Only a split can find -1.
        caveats: sentences that a reader must know about this bound. The last ones are its assumptions.
        validity: "fixed": the number of models was fixed in advance. "anytime": the bound holds for all numbers of
            models at once.
        guesses: for one run, the number of guesses, fixed in advance. None: the method does not count guesses.
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
        """Return one line with the bound, its confidence, its method and its caveats."""
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

    A larger score speaks for the canary. Only the threshold "split" learns from the scores whether larger or smaller
    ones do. Scores may be infinite, but not NaN. Clopper and Pearson's upper bounds on the false positive and false
    negative rates are each wrong with probability (1 - confidence) / 2, so both hold with ``confidence``. Scores
    without signal give 0. The method turns the two rates into epsilon:

    - "clopper-pearson": the definition of (epsilon, delta)-DP, for any mechanism.
    - "gdp": a Gaussian mechanism of unknown noise.
    - "last-iterate", "composition": ``run`` under this analysis, with its noise scaled by an unknown factor.
    - "one-run", "one-run-fdp", "one-run-last-iterate", "one-run-composition": the scores belong to canaries of one
      run, each included by its own fair coin. The mechanism is any, a Gaussian one, or ``run`` under one of the
      analyses with its noise scaled. "one-run-last-iterate" tests a prediction. These methods count right guesses; the
      error rates are NaN.
    - "one-run-independent": the same scores, assuming that no canary changes the score of another. Rates are bounded
      as if each canary were a separate model.

    The methods of one run refuse counts of canaries in and out that fair coins have in fewer than one of 1,000 audits.
    One coin shared by several canaries does not show in the scores, and no bound holds for it.

    A family gives the largest noise that the rates allow, and the epsilon at this noise. If the rates are below the
    family's curve without any noise, the noise is 0 and epsilon is infinite: the mechanism is not of this family. The
    composition family, and that of a run with several releases, is followed up to an epsilon of 50 or twice the run's
    own, whichever is larger. A larger epsilon is reported as this limit.

    The threshold is part of the statistics:

    - a number, chosen before the scores were seen;
    - "a-priori": predicted by the linear analysis of ``run`` for scores in standard deviations of its noise;
    - "split": a random half of the models chooses threshold and direction, the other half gives the bound;
    - "corrected": all thresholds, with bounds that hold for all of them at once;
    - "uncorrected": the best of all thresholds as if it were the only one. Not a valid bound.

    For one run, a number as threshold guesses every canary. "a-priori" guesses ``guesses`` canaries: half of them have
    the largest and half the smallest scores. If ``guesses`` is None, the linear analysis of ``run`` chooses the number
    with the largest expected bound; without a run, a quarter of the canaries is guessed. "corrected" tries several
    fixed numbers of guesses. "split" is the same as "corrected", since canaries of one run are not independent. For
    "one-run-independent", "corrected" is the same as "split". Canaries with equal scores on both sides of a cut are not
    guessed.

    With ``validity`` "fixed", the number of models must have been fixed in advance. With "anytime", the bound holds for
    all numbers of models at once: one may look after each model, stop, and go on. Scores must then be in the order of
    the models. The first 64 models a world choose the threshold of "split". "a-priori" predicts a threshold for 512
    models a world, whatever their number. "corrected", "uncorrected" and one run are refused.
    """
    found = estimate_or_zero(scores_in, scores_out, delta, confidence, method, threshold, run, validity, guesses)
    if METHODS[method].is_one_run and (unfair := unfair_coins(np.size(scores_in), np.size(scores_out))):
        raise ValueError(f"scores_in and scores_out must be those of fair coins with method {method!r}: {unfair}")
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
    """Compute ``estimate``, but return epsilon 0 and a caveat instead of an error if the coins are visibly unfair."""
    inside, outside = _scores("scores_in", scores_in), _scores("scores_out", scores_out)
    one_of("method", method, METHODS)
    gaussian = not METHODS[method].is_assumption_free  # noise leaves no pure epsilon
    delta = number("delta", delta, 0.0, 1.0, open_low=gaussian, open_high=True)
    confidence = number("confidence", confidence, 0.0, 1.0, open_low=True, open_high=True)
    threshold = check_threshold(threshold)
    if run is not None:
        require_basic(run, f"method {method!r}", knows=("noise_filter",) if METHODS[method].is_one_run else _KNOWN)
        if run.release_count > 1 and threshold == "a-priori":
            raise ValueError(
                f"threshold must be a number, split or corrected where a run has {run.release_count} releases, got "
                "'a-priori': no law of their scores is known"
            )
    check_validity(validity, threshold)
    worlds = Worlds.of(inside, outside)
    if guesses is not None:
        integer("guesses", guesses, 1, inside.size + outside.size)
    if METHODS[method].is_one_run and validity == "anytime":
        raise ValueError(f"validity must be 'fixed' with method {method!r}, which looks once, got 'anytime'")
    if METHODS[method].is_one_run and (unfair := unfair_coins(inside.size, outside.size)):
        found = _of_nothing(worlds, delta, confidence, method, threshold, unfair)
    elif method == "one-run-independent":
        found = _of_independent(worlds, delta, confidence, threshold, run)
    elif METHODS[method].is_one_run:
        found = _of_one_run(worlds, delta, confidence, method, threshold, run, guesses)
    else:
        found = _of_rates(inside, outside, delta, confidence, method, threshold, run, validity)
    if found.threshold_choice != "split" and separates_the_other_way(worlds):
        found = replace(found, caveats=(*found.caveats, OTHER_WAY))
    return replace(found, caveats=(*found.caveats, *found.assumptions))


def _scores(name: str, given: ArrayLike) -> FloatArray:
    """Return validated scores in their order."""
    try:
        scores = np.asarray(given)
    except (TypeError, ValueError):
        scores = np.asarray("lists of different lengths")
    if scores.ndim != 1 or (scores.size and scores.dtype.kind not in "iuf"):
        raise ValueError(f"{name} must be a list of numbers, got {given!r}")
    if scores.size == 0:
        raise ValueError(f"{name} must hold at least one score, got none")
    scores = scores.astype(np.float64)
    if np.isnan(scores).any():
        raise ValueError(f"{name} must be numbers, infinite ones included, got nan")
    return scores


def _of_rates(
    inside: FloatArray,
    outside: FloatArray,
    delta: float,
    confidence: float,
    method: str,
    threshold: float | str,
    run: DPSGD | None,
    validity: str,
) -> Estimate:
    rule = rule_of(method, run)
    is_slow = isinstance(rule, Family) and rule.is_slow
    error = 0.5 * (1.0 - confidence)
    choice = threshold if isinstance(threshold, str) else "a-priori"
    if threshold == "a-priori":
        if run is None:
            raise ValueError("run must be given with threshold 'a-priori', which is predicted for it; got None")
        sizes = (EXPECTED, EXPECTED) if validity == "anytime" else (inside.size, outside.size)
        threshold = predicted_threshold(run, *sizes, delta, confidence, method, validity=validity)
    if isinstance(threshold, str):
        # Composition's own curves choose nearly the same threshold, and may take minutes.
        chooser = rule_of("last-iterate", run) if method == "composition" else rule
        bounds = _chosen_by_scores(inside, outside, threshold, chooser, delta, error, validity)
    else:
        bounds = bounds_at(Worlds.of(inside, outside), threshold, error, bound_on_rates(choice, validity))
    return Estimate(
        epsilon=rule.epsilon(bounds.fpr, bounds.fnr, delta),
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
        # With next to no noise, curves of composition and of several releases take minutes.
        largest=None if is_slow else rule.epsilon(bounds.least_fpr, bounds.least_fnr, delta),
        noise_multiplier=rule.noise_multiplier(bounds.fpr, bounds.fnr),
        direction=bounds.direction,
        caveats=(SMALLER,) if bounds.direction < 0 else (),
        validity=validity,
    )


def _chosen_by_scores(
    inside: FloatArray, outside: FloatArray, choice: str, rule: Rule, delta: float, error: float, validity: str
) -> Bounds:
    """Return the bounds at a threshold that the scores of the same or of other models choose."""
    if choice != "split":
        return chosen_by_themselves(Worlds.of(inside, outside), choice, rule, delta, error)
    if validity == "anytime":
        first, counted = (Worlds.of(inside[part], outside[part]) for part in (slice(CHOOSING), slice(CHOOSING, None)))
    else:
        first, counted = Worlds.of(inside, outside).halves()
    return chosen_by_others(first, counted, rule, delta, error, bound_on_rates(choice, validity))


def _of_one_run(
    worlds: Worlds,
    delta: float,
    confidence: float,
    method: str,
    threshold: float | str,
    run: DPSGD | None,
    count: int | None,
) -> Estimate:
    threshold = "corrected" if threshold == "split" else threshold
    if threshold == "a-priori" and run is not None and count is None:
        count = best_guesses(run, worlds.inside.size + worlds.outside.size, method, delta, confidence)
    guesses, bound = bound_of(worlds, threshold, method, delta, confidence, run, count)
    tied = (
        f"{guesses.most - guesses.made:,} of the {guesses.most:,} canaries to be guessed were not: their scores are "
        "equal to others beyond the cut."
    )
    return Estimate(
        epsilon=bound.epsilon,
        method=method,
        delta=delta,
        confidence=confidence,
        threshold=guesses.threshold,
        threshold_choice=threshold if isinstance(threshold, str) else "a-priori",
        models_in=worlds.inside.size,
        models_out=worlds.outside.size,
        false_positives=guesses.false_positives,
        false_negatives=guesses.false_negatives,
        fpr_upper=math.nan,
        fnr_upper=math.nan,
        largest=bound.largest,
        noise_multiplier=bound.noise_multiplier,
        caveats=(tied,) if guesses.made < guesses.most else (),
        guesses=guesses.most,
        guessed=guesses.made,
    )


def _of_independent(
    worlds: Worlds, delta: float, confidence: float, threshold: float | str, run: DPSGD | None
) -> Estimate:
    bound = independent_bound(worlds, threshold, run, delta, confidence)
    return Estimate(
        epsilon=bound.epsilon,
        method="one-run-independent",
        delta=delta,
        confidence=confidence,
        threshold=bound.threshold,
        threshold_choice=bound.threshold_choice,
        models_in=bound.worlds.inside.size,
        models_out=bound.worlds.outside.size,
        false_positives=bound.false_positives,
        false_negatives=bound.false_negatives,
        fpr_upper=bound.fpr,
        fnr_upper=bound.fnr,
        largest=bound.largest,
    )


def _of_nothing(
    worlds: Worlds, delta: float, confidence: float, method: str, threshold: float | str, why: str
) -> Estimate:
    """Return an estimate of 0, without any guess, for the reason ``why``."""
    threshold = "corrected" if threshold == "split" else threshold
    return Estimate(
        epsilon=0.0,
        method=method,
        delta=delta,
        confidence=confidence,
        threshold=math.inf,
        threshold_choice=threshold if isinstance(threshold, str) else "a-priori",
        models_in=worlds.inside.size,
        models_out=worlds.outside.size,
        false_positives=0,
        false_negatives=0,
        fpr_upper=math.nan,
        fnr_upper=math.nan,
        largest=0.0,
        caveats=(why,),
        guesses=0,
        guessed=0,
    )
