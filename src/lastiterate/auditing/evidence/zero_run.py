"""A lower bound on epsilon for a model that exists: scores of known members and of known non-members.

Scores may show how members and non-members differ, instead of leakage. A propensity model estimates the odds of
membership from features that the user gives. Cebere et al. (2026), arXiv 2605.14591, name the task. If memberships are
independent coins given the features, scores under (epsilon, delta)-DP multiply the odds of each coin by at most
e^epsilon, apart from an excess that depends on delta: docs/method.md has the proof.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from scipy.special import bdtrc, chdtrc, expit, ndtri

from lastiterate.auditing.evidence.one_run.guesses import FEWEST, LEAST_FAIRNESS, largest_refuted, usual_guesses
from lastiterate.common.errors import BadArgument
from lastiterate.common.types import BoolArray, FloatArray
from lastiterate.common.validation import integer, number, told
from lastiterate.formatting import per_cent, spell, spell_down, spell_exact

OVERLAP = 0.1, 0.9  # propensities of examples that are guessed: Crump, Hotz, Imbens and Mitnik (2009), Biometrika 96
_ROWS = 4 * FEWEST  # the fewest examples with such propensities
_ESTIMATION = 0.2  # share of the error that covers the estimated coefficients of the propensity model
_FREE = 0.1  # largest share of the remaining error that covers delta
_RIDGE = 1e-3  # keeps coefficients finite if the features separate members from non-members
_GROUPS = 8  # groups of propensities whose calibration is tested
_SHIFTS = 1.2, 1.5, 2.0  # odds factors for which sentences have bounds


@dataclass(frozen=True)
class ZeroRun:
    """A lower bound on epsilon that rests on a propensity model.

    Attributes:
        epsilon: the bound for odds within ``odds`` of the propensity model's. None if the result is refused.
        refusal: the reason why the result is refused, or an empty text.
        unadjusted: the result without features. It is no bound if members and non-members differ.
        explaining_odds: the odds factor that explains the scores without any leakage.
        compared: number of examples that were not used for fitting and have a propensity in [0.1, 0.9].
        guesses, right, expected: numbers of guesses, of right ones, and of right ones expected without leakage.
        calibration: p-value of the test of whether the propensity model predicts membership.
        placebo: the bound among non-members, with their first half in the place of members. It must be 0.
        rests_on: the assumptions, in sentences.
    """

    epsilon: float | None
    refusal: str
    unadjusted: float
    explaining_odds: float
    delta: float
    confidence: float
    odds: float
    compared: int
    guesses: int
    right: int
    expected: float
    calibration: float
    placebo: float
    rests_on: tuple[str, ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        """The result and its assumptions, in sentences."""
        expected = f"without leakage, {spell(self.expected, 4)} would be"
        guessed = f"{self.right:,} of {self.guesses:,} guesses are right; {expected}."
        naive = f"Without the features, the result would be {spell_down(self.unadjusted, 3)}, which is no bound."
        if self.epsilon is None:
            return f"No bound: {self.refusal}", f"{guessed} {naive}", *self.rests_on
        bounds = {factor: spell_down(max(0.0, math.log(self.explaining_odds / factor)), 3) for factor in _SHIFTS}
        return (
            f"Epsilon is at least {spell_down(self.epsilon, 3)} with {per_cent(self.confidence)} confidence, at delta "
            f"{spell_exact(self.delta)}, for odds within a factor of {spell(self.odds)}.",
            f"{guessed} {naive}",
            f"Hidden shift: odds that are wrong by a factor of {spell(self.explaining_odds, 3)} explain the scores. "
            f"The bound for a factor of {', '.join(f'{each:g} is {left}' for each, left in bounds.items())}.",
            f"Placebo: no leakage was found among non-members. Calibration: p = {spell(self.calibration, 2)}.",
            *self.rests_on,
        )

    def __str__(self) -> str:
        return " ".join(self.sentences)


def zero_run(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    features_in: ArrayLike,
    features_out: ArrayLike,
    delta: float = 1e-5,
    confidence: float = 0.95,
    *,
    odds: float = 1.0,
    seed: int = 0,
) -> ZeroRun:
    """Bound epsilon of a model that exists, from scores and features of members and of non-members.

    The bound rests on assumptions that no test can confirm: see ``rests_on``. It is refused if the propensity model is
    not calibrated, or if the placebo finds leakage among non-members.

    Args:
        scores_in: scores of examples that the model was trained on.
        scores_out: scores of other examples. Sort them by time or source: the placebo compares their two halves.
        features_in, features_out: a row of numbers for each example: all in which members and non-members may differ.
        delta: delta of (epsilon, delta)-DP, for adding or removing one example.
        confidence: confidence of the bound.
        odds: the factor, at least 1, by which true odds of membership may differ from the propensity model's.
        seed: seed of the random split. One half fits the models, and the other half is guessed.
    """
    delta = number("delta", delta, 0.0, 1.0, open_low=True, open_high=True)
    confidence = number("confidence", confidence, 0.0, 1.0, open_low=True, open_high=True)
    odds = number("odds", odds, 1.0)
    inside, outside = _examples(scores_in, features_in, "in"), _examples(scores_out, features_out, "out")
    if (wide := inside.shape[1] - 1) != outside.shape[1] - 1:
        raise BadArgument("features_out", f"must have {wide} columns as features_in, got {outside.shape[1] - 1}")
    generator = np.random.default_rng(integer("seed", seed, 0))
    half = len(outside) // 2
    pairs = (inside, outside), (inside[:, :1], outside[:, :1]), (outside[:half], outside[half:])
    found, naive, placebo = (_guess(*pair, generator) for pair in pairs)
    epsilon, unadjusted, hidden = (each.bound(delta, 1.0 - confidence) for each in (found, naive, placebo))
    hidden = max(0.0, hidden - math.log(odds))
    calibration = found.calibration()
    refusal = _refusal(found, placebo, calibration, hidden)
    within = (
        "those of the propensity model" if odds == 1.0 else f"within a factor of {spell(odds)} of the modelled ones"
    )
    assumptions = (
        "This rests on assumptions that no test can confirm: nobody tossed coins for membership, so the features must "
        "explain everything in which members and non-members differ.",
        f"Given the features, memberships must be independent coins with odds {within}. For its coefficients, the "
        "usual approximation for large samples is used.",
    )
    bound = None if refusal else max(0.0, epsilon - math.log(odds))
    asked, made = (unadjusted, math.exp(epsilon), delta, confidence, odds), found.signs.size
    expected = made * found.rate(0.0)
    counts = found.propensity.size, made, found.right
    return ZeroRun(bound, refusal, *asked, *counts, expected, calibration, hidden, assumptions)


def _examples(scores: ArrayLike, features: ArrayLike, world: str) -> FloatArray:
    """Return a row for each example: its score, and its features."""
    arrays: list[FloatArray] = []
    for name, given in (("scores", scores), ("features", features)):
        try:
            here = np.asarray(given, np.float64)
        except (TypeError, ValueError):
            here = np.array(math.nan)
        is_right = here.ndim == len(arrays) + 1 and bool(here.size) and bool(np.isfinite(here).all())
        if not is_right or (len(here) != len(arrays[0]) if arrays else len(here) < 2 * FEWEST):
            what = "rows of finite numbers, one for each score" if arrays else f"at least {2 * FEWEST} finite numbers"
            raise BadArgument(f"{name}_{world}", f"must be {what}, got {told(given)}")
        arrays.append(here)
    return np.column_stack(arrays)


def _refusal(found: _Guessed, placebo: _Guessed, calibration: float, hidden: float) -> str:
    if (fewest := min(found.propensity.size, placebo.propensity.size)) < _ROWS:
        where = f"of the examples that are not used for fitting {fewest:,} have a propensity in {list(OVERLAP)}"
        return f"members and non-members, or both halves of non-members, hardly overlap: {where}, not {_ROWS}."
    if calibration < LEAST_FAIRNESS:
        why = f"its calibration test has p = {spell(calibration, 2)}, and at least {LEAST_FAIRNESS:g} is needed"
        return (
            f"the propensity model does not predict membership: {why}. Add features, or squares and products of them."
        )
    if hidden > 0.0:
        what = f"an epsilon of {spell_down(hidden, 3)} between two halves of the non-members, which it has never seen"
        return f"the placebo found {what}. The features do not explain how scores shift: add features."
    return ""


@dataclass(frozen=True, eq=False)
class _Guessed:
    """Examples that were not used for fitting and overlap, and guesses about the memberships of some of them."""

    design: FloatArray  # rows of the propensity model
    present: BoolArray
    propensity: FloatArray
    chosen: FloatArray  # the guessed rows, times the signs of their guesses
    signs: FloatArray  # 1 for a guess "in", -1 for a guess "out"
    right: int
    coefficients: FloatArray
    covariance: FloatArray
    held_out: int  # examples that were not used for fitting

    def rate(self, epsilon: float, deviations: float = 0.0) -> float:
        """Return the largest mean probability of right guesses, if coefficients are wrong by these deviations."""
        if not self.signs.size:
            return 1.0
        rates = expit(self.chosen @ self.coefficients + epsilon)
        slope = (rates * (1.0 - rates)) @ self.chosen / self.signs.size
        return float(min(rates.mean() + deviations * math.sqrt(slope @ self.covariance @ slope), 1.0))

    def bound(self, delta: float, error: float) -> float:
        """Return the largest epsilon that the number of right guesses refutes, for the modelled odds."""
        deviations, error = -float(ndtri(_ESTIMATION * error)), (1.0 - _ESTIMATION) * error
        excess = 0.5 * self.held_out * delta
        window = max(1, math.ceil(excess / (_FREE * error)))  # must not depend on scores
        counts = self.right - np.arange(float(window))

        def doubt(epsilon: float) -> float:
            rate = self.rate(epsilon, deviations)
            # Hoeffding (1956): from the mean + 1 on, the tail is largest if all probabilities are equal.
            tails = bdtrc(np.maximum(counts - 1.0, 0.0), self.signs.size, rate)
            return float(np.where(counts >= self.signs.size * rate + 1.0, tails, 1.0).mean()) + excess / window - error

        return largest_refuted(doubt)

    def calibration(self) -> float:
        """Return the p-value of a chi-squared test of how many members each group of propensities has."""
        groups = np.array_split(np.argsort(self.propensity, kind="stable"), _GROUPS)
        spread = self.propensity * (1.0 - self.propensity)
        excess = np.array([(self.present[group] - self.propensity[group]).sum() for group in groups])
        slopes = np.array([spread[group] @ self.design[group] for group in groups])
        variance = np.diag([spread[group].sum() for group in groups]) + slopes @ self.covariance @ slopes.T
        return float(chdtrc(_GROUPS, excess @ np.linalg.lstsq(variance, excess)[0]))


def _guess(inside: FloatArray, outside: FloatArray, generator: np.random.Generator) -> _Guessed:
    """Fit propensities and scores on a random half of the examples, and guess memberships of the other half."""
    order = generator.permutation(len(inside) + len(outside))  # ties must not reveal the membership
    examples, present = np.concatenate([inside, outside])[order], order < len(inside)
    scores, features = examples[:, 0], examples[:, 1:]
    fit = np.arange(order.size) < order.size // 2
    spread = features[fit].std(0)
    scale = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0.0)  # a constant feature becomes 0
    design = np.column_stack([np.ones(order.size), (features - features[fit].mean(0)) * scale])
    ranks = np.searchsorted(np.sort(scores[fit]), scores, side="right")
    informed = np.column_stack([design, ndtri((ranks + 0.5) / (fit.sum() + 1.0))])
    coefficients, covariance = _logistic(design[fit], present[fit])
    logits = design @ coefficients
    gain = informed @ _logistic(informed[fit], present[fit])[0] - logits
    propensity = np.asarray(expit(logits))
    overlap = np.flatnonzero(~fit & (propensity >= OVERLAP[0]) & (propensity <= OVERLAP[1]))
    guesses = min(usual_guesses(overlap.size), overlap.size)
    ranked = overlap[np.argsort(gain[overlap], kind="stable")]
    chosen = np.concatenate([ranked[: guesses // 2], ranked[overlap.size - (guesses - guesses // 2) :]])
    signs = np.where(np.arange(guesses) < guesses // 2, -1.0, 1.0)
    right = int(np.count_nonzero(present[chosen] == (signs > 0.0)))
    guessed = design[chosen] * signs[:, None], signs, right, coefficients, covariance, int(np.count_nonzero(~fit))
    return _Guessed(design[overlap], present[overlap], propensity[overlap], *guessed)


def _logistic(design: FloatArray, present: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return the coefficients of a logistic regression and their covariance."""

    def loss(at: FloatArray) -> tuple[float, FloatArray]:
        logits = design @ at
        value = np.logaddexp(0.0, logits).sum() - logits[present].sum() + 0.5 * _RIDGE * at @ at
        return float(value), design.T @ (expit(logits) - present) + _RIDGE * at

    at = minimize(loss, np.zeros(design.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-6 * len(design)}).x
    spread = expit(design @ at) * expit(-design @ at)
    return at, np.linalg.inv((design.T * spread) @ design + _RIDGE * np.eye(at.size))
