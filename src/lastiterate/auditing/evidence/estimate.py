"""From scores to an empirical epsilon: a lower bound, with its confidence, its method and its threshold beside it."""

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
    """A lower bound on epsilon, and all that it rests on.

    Attributes:
        epsilon: the bound, at least 0; infinite where a family of mechanisms cannot explain the scores at all.
        method: how it was found.
        delta: of (epsilon, delta)-DP.
        confidence: with which the bound holds, jointly for both error rates.
        threshold: models with a score of at least this are called "in"; of at most this, where ``direction`` is -1.
        threshold_choice: "a-priori", "split", "corrected" or "uncorrected"; the last is not a valid bound.
        models_in: how many models with the canary were counted.
        models_out: how many without.
        false_positives: how many of those without were called "in".
        false_negatives: how many of those with were called "out".
        fpr_upper: upper bound on the false positive rate.
        fnr_upper: upper bound on the false negative rate.
        largest: what the bound would have been without a single error: so many models cannot show more. None: not
            computed, for the composition family and for several releases.
        noise_multiplier: for a family, the largest noise multiplier (of the first step) that the scores allow.
        direction: 1 if larger scores were taken to speak for the canary, -1 if smaller ones, which only the choosing
            half of a split can find.
        caveats: what a reader must know about this bound, in sentences; the last are all that it assumes.
        validity: "fixed", for a number of models that was fixed before, or "anytime", for all of them at once.
        guesses: for one run, how many canaries were to be guessed, fixed in advance. None: this method guesses all.
        guessed: how many were; fewer where scores are equal.
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
        """All that the bound rests on, in sentences; the last of its caveats."""
        return METHODS[self.method].assumptions(self.threshold_choice, self.validity)

    def __str__(self) -> str:
        """In one line: what it says, how far it may be trusted, and what it rests on."""
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
    """A lower bound on epsilon from scores of models with the canary and without it.

    A larger score speaks for the canary; only with the threshold "split" the scores themselves say whether it is a
    larger or a smaller one. Scores may be infinite, but not NaN. Clopper and Pearson's upper bounds on the false
    positive and false negative rate are wrong with probability (1 - confidence) / 2 each, so that both hold with
    ``confidence``; scores without signal give 0. What the two rates imply for epsilon is the method:

    - "clopper-pearson": the definition of (epsilon, delta)-DP, for any mechanism.
    - "gdp": a Gaussian mechanism of unknown noise.
    - "last-iterate", "composition": ``run`` with its noise scaled by an unknown factor, as that analysis sees it.
    - "one-run", "one-run-fdp", "one-run-last-iterate", "one-run-composition": the scores are those of canaries in one
      single run, each included by its own fair coin: for any mechanism, for a Gaussian one, and for ``run`` with its
      noise scaled, as one of the analyses sees it. The last-iterate one tests a prediction. Right guesses are counted
      instead of rates, which are NaN.
    - "one-run-independent": the same scores, on the assumption that no canary changes the score of another. Rates
      are bounded as if each canary were a model of its own.

    The methods of one run refuse numbers of canaries in and out that fair coins have in fewer than one of 1,000 audits.
    One coin for several canaries does not show in the scores, and no bound holds for it.

    A family gives the largest noise that the rates allow, and its epsilon. Where they are below what the family reaches
    without any noise, that is 0 and epsilon infinite: this is not such a mechanism. The composition family, and that
    of a run with several releases, is followed up to an epsilon of 50, or of twice the run's own; what would be more is
    reported as that.

    The threshold is part of the statistics:

    - a number, chosen before the scores were seen;
    - "a-priori": predicted by the linear analysis of ``run`` for scores in standard deviations of its noise;
    - "split": a random half of the models chooses threshold and direction, the other half gives the bound;
    - "corrected": all thresholds, with bounds that hold for all of them at once;
    - "uncorrected": the best of all thresholds as if it were the only one. Not a valid bound.

    For one run a number guesses every canary. "a-priori" guesses ``guesses`` of them, half of these with the largest
    and half with the smallest scores; None: as many as the linear analysis of ``run`` expects to show most, or a
    quarter without a run. "corrected" is several fixed numbers of guesses. "split" is the same as "corrected", since
    canaries of one run are not independent; where they are taken to be, "corrected" is the same as "split". Canaries
    with equal scores on both sides of a cut are not guessed.

    With ``validity`` "fixed" the number of models must have been fixed before. With "anytime" the bound holds for all
    numbers of models at once, so that one may look after each, stop, and go on. Scores are then in the order of the
    models; "split" lets the first 64 a world choose, "a-priori" predicts for 512 a world, however many there are; and
    "corrected", "uncorrected" and one run are refused.
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
    """As ``estimate``, but coins that are visibly unfair give epsilon 0 and a caveat instead of an error."""
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
    """Scores, in their order."""
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
        # Composition's own curves would hardly choose otherwise, and may take minutes.
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
        # Curves of composition, and of several releases, with next to no noise take minutes.
        largest=None if is_slow else rule.epsilon(bounds.least_fpr, bounds.least_fnr, delta),
        noise_multiplier=rule.noise_multiplier(bounds.fpr, bounds.fnr),
        direction=bounds.direction,
        caveats=(SMALLER,) if bounds.direction < 0 else (),
        validity=validity,
    )


def _chosen_by_scores(
    inside: FloatArray, outside: FloatArray, choice: str, rule: Rule, delta: float, error: float, validity: str
) -> Bounds:
    """The bounds at a threshold that scores choose, of these models or of others."""
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
    """The estimate without a single guess."""
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
