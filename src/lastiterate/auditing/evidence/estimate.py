"""From scores to an empirical epsilon: a lower bound, with its confidence, its method and its threshold beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.arrays import FloatArray
from lastiterate.auditing.evidence.direction import OTHER_WAY, SMALLER, separates_the_other_way
from lastiterate.auditing.evidence.one_run import bound_of
from lastiterate.auditing.evidence.threshold import (
    Worlds,
    bounds_at,
    check_threshold,
    chosen_by_scores,
    predicted_threshold,
    rule_of,
)
from lastiterate.run import DPSGD, require_basic
from lastiterate.values import number, one_of
from lastiterate.vocabulary import METHODS


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
            computed, for the composition family.
        noise_multiplier: for a family, the largest noise multiplier (of the first step) that the scores allow.
        direction: 1 if larger scores were taken to speak for the canary, -1 if smaller ones, which only the choosing
            half of a split can find.
        caveats: what a reader must know about this bound, in sentences.
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

    def __float__(self) -> float:
        return self.epsilon


def estimate(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    delta: float = 1e-5,
    confidence: float = 0.95,
    method: str = "clopper-pearson",
    threshold: float | str = "split",
    run: DPSGD | None = None,
) -> Estimate:
    """A lower bound on epsilon from scores of models with the canary and without it.

    A larger score speaks for the canary; only with the threshold "split" the scores themselves say whether it is a
    larger or a smaller one. Scores may be infinite, but not NaN. Clopper and Pearson's upper bounds on the false
    positive and false negative rate are wrong with probability (1 - confidence) / 2 each, so that both hold with
    ``confidence``; scores without signal give 0. What the two rates imply for epsilon is the method:

    - "clopper-pearson": the definition of (epsilon, delta)-DP. No assumption.
    - "gdp": a Gaussian mechanism of unknown noise.
    - "last-iterate", "composition": ``run`` with its noise scaled by an unknown factor, as that analysis sees it.
    - "one-run", "one-run-fdp": the scores are those of canaries in one single run, each in by a fair coin: without
      assumption, and for a Gaussian mechanism. Right guesses are counted instead of rates, which are NaN.

    A family gives the largest noise that the rates allow, and its epsilon. Where they are below what the family reaches
    without any noise, that is 0 and epsilon infinite: this is not such a mechanism. The composition family is followed
    up to an epsilon of 50, or of twice the run's own; what would be more is reported as that.

    The threshold is part of the statistics:

    - a number, chosen before the scores were seen;
    - "a-priori": predicted by the linear analysis of ``run`` for scores in standard deviations of its noise;
    - "split": a random half of the models chooses threshold and direction, the other half gives the bound;
    - "corrected": all thresholds, with bounds that hold for all of them at once;
    - "uncorrected": the best of all thresholds as if it were the only one. Not a valid bound.

    For one run a number guesses every canary. "a-priori" guesses a quarter of them, half of these with the largest and
    half with the smallest scores; "corrected" several fixed numbers of guesses. "split" is the same as "corrected",
    since canaries of one run are not independent. Canaries with equal scores on both sides of a cut are not guessed.
    """
    worlds = Worlds(_scores("scores_in", scores_in), _scores("scores_out", scores_out))
    one_of("method", method, METHODS)
    gaussian = not METHODS[method].is_assumption_free  # noise leaves no pure epsilon
    delta = number("delta", delta, 0.0, 1.0, open_low=gaussian, open_high=True)
    confidence = number("confidence", confidence, 0.0, 1.0, open_low=True, open_high=True)
    threshold = check_threshold(threshold)
    if run is not None:
        require_basic(run, "estimates")
    if METHODS[method].is_one_run:
        found = _of_one_run(worlds, delta, confidence, method, threshold)
    else:
        found = _of_rates(worlds, delta, confidence, method, threshold, run)
    if found.threshold_choice != "split" and separates_the_other_way(worlds):
        found = replace(found, caveats=(*found.caveats, OTHER_WAY))
    return found


def _scores(name: str, given: ArrayLike) -> FloatArray:
    """Scores in increasing order."""
    try:
        scores = np.asarray(given)
    except (TypeError, ValueError):
        scores = np.asarray("lists of different lengths")
    if scores.ndim != 1 or (scores.size and scores.dtype.kind not in "iuf"):
        raise ValueError(f"{name} must be a list of numbers, got {given!r}")
    if scores.size == 0:
        raise ValueError(f"{name} must hold at least one score, got none")
    scores = np.sort(scores.astype(np.float64))
    if np.isnan(scores[-1]):
        raise ValueError(f"{name} must be numbers, infinite ones included, got nan")
    return scores


def _of_rates(
    worlds: Worlds,
    delta: float,
    confidence: float,
    method: str,
    threshold: float | str,
    run: DPSGD | None,
) -> Estimate:
    rule = rule_of(method, run)
    error = 0.5 * (1.0 - confidence)
    choice = threshold if isinstance(threshold, str) else "a-priori"
    if threshold == "a-priori":
        if run is None:
            raise ValueError("run must be given with threshold 'a-priori', which is predicted for it; got None")
        threshold = predicted_threshold(run, worlds.inside.size, worlds.outside.size, delta, confidence, method)
    if isinstance(threshold, str):
        # Composition's own curves would hardly choose otherwise, and may take minutes.
        chooser = rule_of("last-iterate", run) if method == "composition" else rule
        bounds = chosen_by_scores(worlds, threshold, chooser, delta, error)
    else:
        bounds = bounds_at(worlds, threshold, error)
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
        # Curves of composition with next to no noise take minutes.
        largest=None if method == "composition" else rule.epsilon(bounds.least_fpr, bounds.least_fnr, delta),
        noise_multiplier=rule.noise_multiplier(bounds.fpr, bounds.fnr),
        direction=bounds.direction,
        caveats=(SMALLER,) if bounds.direction < 0 else (),
    )


def _of_one_run(worlds: Worlds, delta: float, confidence: float, method: str, threshold: float | str) -> Estimate:
    threshold = "corrected" if threshold == "split" else threshold
    guesses, bound = bound_of(worlds, threshold, method, delta, confidence)
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
    )
