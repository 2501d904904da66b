"""A lower bound on epsilon for a model that exists: scores of known members and of known non-members.

Members and non-members often differ in other ways, such as time or source, and scores may show this shift instead of
leakage. A propensity model estimates the odds of membership from features that the user gives. Cebere, Even, Bleistein
and Bellet (2026), arXiv 2605.14591, name the task and adjust guesses about single examples. The bound here is our own
derivation.

Let the memberships be independent coins given the features. Under (epsilon, delta)-DP, the scores multiply the odds of
each coin by at most e^epsilon, apart from a total probability of delta / 2 per example. With delta = 0, the number of
right guesses is dominated by a sum of independent indicators with log odds +-logit + epsilon, where the sign is that of
the guess. If the true odds are within a factor of the modelled odds, the factor's logarithm is added to epsilon.
docs/method.md has the proof.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtrc, chdtrc, expit, ndtri

from lastiterate.auditing.evidence.one_run.guesses import (
    FEWEST,
    LEAST_FAIRNESS,
    largest_refuted,
    usual_guesses,
)
from lastiterate.common.errors import BadArgument
from lastiterate.common.types import BoolArray, FloatArray
from lastiterate.common.validation import integer, number, told
from lastiterate.formatting import per_cent, spell, spell_down, spell_exact

OVERLAP = 0.1, 0.9  # propensities of examples that are guessed: Crump, Hotz, Imbens and Mitnik (2009), Biometrika 96
_ROWS = 4 * FEWEST  # the fewest examples with such propensities
_ESTIMATION = 0.2  # share of the error for the estimated propensities
_FREE = 0.1  # largest share of the error that delta may take
_RIDGE = 1e-3  # keeps coefficients finite if the features separate members from non-members
_GROUPS = 8  # groups of propensities whose calibration is tested
_STEPS = 100  # of Newton's method


@dataclass(frozen=True)
class ZeroRun:
    """A lower bound on epsilon that rests on a propensity model.

    Attributes:
        epsilon: the bound for odds within ``odds`` of the propensity model's. None if the result is refused.
        refusal: the reason why the result is refused, or an empty text.
        unadjusted: the result without features. It is no bound if members and non-members differ.
        explaining_odds: the odds factor that explains the scores without any leakage.
        delta, confidence, odds: as in ``zero_run``.
        members, non_members: numbers of given scores.
        compared: number of examples that could be guessed: not used for fitting, and with propensity in [0.1, 0.9].
        guesses, right: numbers of guesses and of right guesses.
        expected: number of right guesses that the propensity model expects without leakage.
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
    members: int
    non_members: int
    compared: int
    guesses: int
    right: int
    expected: float
    calibration: float
    placebo: float
    rests_on: tuple[str, ...]

    def __str__(self) -> str:
        if self.epsilon is None:
            return f"No bound: {self.refusal}"
        return (
            f"epsilon >= {spell_down(self.epsilon)} with {per_cent(self.confidence)} confidence, at delta "
            f"{spell_exact(self.delta)}, for a model that exists. {' '.join(self.rests_on)}"
        )


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

    The bound rests on assumptions about the data, which no test can confirm: see ``rests_on``. It is refused if the
    propensity model is not calibrated, or if the placebo finds leakage among non-members.

    Args:
        scores_in: scores of examples that the model was trained on.
        scores_out: scores of examples that it was not trained on. Their order matters for the placebo, which compares
            the first half with the second: sort them by time or by source.
        features_in: a row of numbers for each member: everything that may differ between members and non-members.
        features_out: a row for each non-member, with the same columns.
        delta: delta of (epsilon, delta)-DP, for adding or removing one example.
        confidence: confidence of the bound.
        odds: the factor, at least 1, by which true odds of membership may differ from the propensity model's.
        seed: seed of the random split. One half fits the models, and the other half is guessed.
    """
    delta = number("delta", delta, 0.0, 1.0, open_low=True, open_high=True)
    error = 1.0 - number("confidence", confidence, 0.0, 1.0, open_low=True, open_high=True)
    factor = math.log(number("odds", odds, 1.0))
    inside, outside = _Rows.of(scores_in, features_in, "in"), _Rows.of(scores_out, features_out, "out")
    if inside.features.shape[1] != outside.features.shape[1]:
        got = f"{inside.features.shape[1]} and {outside.features.shape[1]}"
        raise BadArgument("features_out", f"must have as many columns as features_in, got {got}")
    generator = np.random.default_rng(integer("seed", seed, 0))
    half = outside.scores.size // 2
    found = _compare(inside, outside, generator)
    naive = _compare(inside.unadjusted, outside.unadjusted, generator)
    placebo = _compare(outside.part(slice(half)), outside.part(slice(half, None)), generator)
    epsilon, hidden = found.bound(delta, error), placebo.bound(delta, error)
    calibration = found.calibration()
    adjusted = max(0.0, epsilon - factor)
    refusal = _refusal(found, placebo, calibration, max(0.0, hidden - factor))
    return ZeroRun(
        epsilon=None if refusal else adjusted,
        refusal=refusal,
        unadjusted=naive.bound(delta, error),
        explaining_odds=math.exp(epsilon),
        delta=delta,
        confidence=1.0 - error,
        odds=math.exp(factor),
        members=inside.scores.size,
        non_members=outside.scores.size,
        compared=found.propensity.size,
        guesses=found.signs.size,
        right=found.right,
        expected=float(found.signs.size * found.rate(0.0)),
        calibration=calibration,
        placebo=max(0.0, hidden - factor),
        rests_on=_assumptions(odds, inside.features.shape[1]),
    )


def _refusal(found: _Guessed, placebo: _Guessed, calibration: float, hidden: float) -> str:
    for what, each in (("members and non-members", found), ("the two halves of the non-members", placebo)):
        if each.propensity.size < _ROWS:
            return (
                f"{what} hardly overlap: {each.propensity.size:,} examples that were not used for fitting have a "
                f"propensity in [{OVERLAP[0]:g}, {OVERLAP[1]:g}], and at least {_ROWS} are needed."
            )
    if calibration < LEAST_FAIRNESS:
        return (
            "the propensity model does not predict membership: its calibration test has p = "
            f"{spell(calibration, 2)}, and at least {LEAST_FAIRNESS:g} is needed. Add features, or squares and products "
            "of features."
        )
    if hidden > 0.0:
        return (
            f"the placebo found an epsilon of {spell_down(hidden, 3)} between the two halves of the non-members, of "
            "which the model has seen neither. The features do not explain how scores shift: add features."
        )
    return ""


def _assumptions(odds: float, features: int) -> tuple[str, ...]:
    within = "as" if odds == 1.0 else f"within a factor of {spell(odds, 4)} of what"
    return (
        f"This rests on assumptions that no test can confirm: members were not drawn at random, so {features} "
        f"feature{'s' if features > 1 else ''} must explain everything in which members and non-members differ.",
        f"Given the features, each membership must be an independent coin, with odds {within} the propensity model "
        "says. For its coefficients, the usual approximation for large samples is used.",
    )


@dataclass(frozen=True, eq=False)
class _Rows:
    """Scores and features of examples, a row per example."""

    scores: FloatArray
    features: FloatArray

    @classmethod
    def of(cls, scores: ArrayLike, features: ArrayLike, world: str) -> _Rows:
        arrays = []
        for name, given in ((f"scores_{world}", scores), (f"features_{world}", features)):
            try:
                arrays.append(np.asarray(given, np.float64))
            except (TypeError, ValueError):
                raise BadArgument(name, f"must be numbers, got {told(given)}") from None
            if not np.isfinite(arrays[-1]).all():
                raise BadArgument(name, "must be finite numbers, got others")
        one, many = arrays
        if one.ndim != 1 or one.size < 2 * FEWEST:
            raise BadArgument(f"scores_{world}", f"must be a list of at least {2 * FEWEST} numbers, got {told(scores)}")
        if many.ndim != 2 or len(many) != one.size or not many.shape[1]:
            what = f"must have a row for each of {one.size:,} scores and at least one column"
            raise BadArgument(f"features_{world}", f"{what}, got shape {many.shape}")
        return cls(one, many)

    @property
    def unadjusted(self) -> _Rows:
        return _Rows(self.scores, self.features[:, :0])

    def part(self, which: slice) -> _Rows:
        return _Rows(self.scores[which], self.features[which])


@dataclass(frozen=True, eq=False)
class _Guessed:
    """The guessed half. ``design``, ``signs`` and ``members`` belong to guesses, ``propensity`` to all that overlap."""

    compared: FloatArray  # rows of the propensity model
    present: BoolArray
    propensity: FloatArray
    design: FloatArray
    logits: FloatArray
    signs: FloatArray
    right: int
    covariance: FloatArray
    examples: int

    def rate(self, epsilon: float, deviations: float = 0.0) -> float:
        """Return the largest mean probability of right guesses. Coefficients may be wrong by these deviations."""
        if not self.signs.size:
            return 1.0
        rates = expit(self.signs * self.logits + epsilon)
        slope = (self.signs * rates * (1.0 - rates)) @ self.design / self.signs.size
        return float(min(rates.mean() + deviations * math.sqrt(slope @ self.covariance @ slope), 1.0))

    def bound(self, delta: float, error: float) -> float:
        """Return the largest epsilon that the number of right guesses refutes, for the modelled odds."""
        deviations = -float(ndtri(_ESTIMATION * error))
        free, left = 0.5 * self.examples * delta, (1.0 - _ESTIMATION) * error
        window = max(1, math.ceil(free / (_FREE * left)))  # depends on numbers of examples only, not on scores
        counts = self.right - np.arange(float(window))

        def doubt(epsilon: float) -> float:
            rate = self.rate(epsilon, deviations)
            # Hoeffding (1956): beyond the mean by at least 1, equal probabilities make the largest tail.
            is_beyond = counts >= self.signs.size * rate + 1.0
            tails = np.where(is_beyond, bdtrc(np.maximum(counts - 1.0, 0.0), self.signs.size, rate), 1.0)
            return float(tails.mean()) + free / window - left

        return largest_refuted(doubt)

    def calibration(self) -> float:
        """Return the p-value of a chi-squared test of how many members each group of propensities has."""
        if self.propensity.size < _ROWS:
            return 1.0
        groups = np.array_split(np.argsort(self.propensity, kind="stable"), _GROUPS)
        spread = self.propensity * (1.0 - self.propensity)
        excess = np.array([(self.present[group] - self.propensity[group]).sum() for group in groups])
        slopes = np.array([spread[group] @ self.compared[group] for group in groups])
        variance = np.diag([spread[group].sum() for group in groups]) + slopes @ self.covariance @ slopes.T
        return float(chdtrc(_GROUPS, excess @ np.linalg.solve(variance, excess)))


def _compare(inside: _Rows, outside: _Rows, generator: np.random.Generator) -> _Guessed:
    """Fit propensities and scores on a random half of the examples, and guess memberships of the other half."""
    scores, features = (np.concatenate(pair) for pair in zip(_fields(inside), _fields(outside), strict=True))
    order = generator.permutation(scores.size)  # the place in the order must not reveal the membership
    scores, features, present = scores[order], features[order], order < inside.scores.size
    fit = np.arange(scores.size) < scores.size // 2
    design = _standardised(features, fit)
    ranks = np.searchsorted(np.sort(scores[fit]), scores, side="right")
    normal = np.asarray(ndtri((ranks + 0.5) / (fit.sum() + 1.0)))[:, None]
    coefficients, covariance = _logistic(design[fit], present[fit])
    both = np.hstack([design, normal])
    informed = both @ _logistic(both[fit], present[fit])[0]
    logits = design @ coefficients
    propensity = np.asarray(expit(logits))
    overlap = np.flatnonzero(~fit & (propensity >= OVERLAP[0]) & (propensity <= OVERLAP[1]))
    guesses = min(usual_guesses(overlap.size), overlap.size)
    ranked = overlap[np.argsort((informed - logits)[overlap], kind="stable")]
    chosen = np.concatenate([ranked[: guesses // 2], ranked[overlap.size - (guesses - guesses // 2) :]])
    signs = np.where(np.arange(guesses) < guesses // 2, -1.0, 1.0)
    return _Guessed(
        compared=design[overlap],
        present=present[overlap],
        propensity=propensity[overlap],
        design=design[chosen],
        logits=logits[chosen],
        signs=signs,
        right=int(np.count_nonzero(present[chosen] == (signs > 0.0))),
        covariance=covariance,
        examples=int(np.count_nonzero(~fit)),
    )


def _fields(rows: _Rows) -> tuple[FloatArray, FloatArray]:
    return rows.scores, rows.features


def _standardised(features: FloatArray, fit: BoolArray) -> FloatArray:
    """Return an intercept and the features in standard deviations of the fitted half. Constant ones become 0."""
    spread = features[fit].std(0)
    scaled = (features - features[fit].mean(0)) * np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0.0)
    return np.hstack([np.ones((len(features), 1)), scaled])


def _logistic(design: FloatArray, present: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return the coefficients of a logistic regression, by Newton's method, and their covariance."""
    coefficients = np.zeros(design.shape[1])
    ridge = _RIDGE * np.eye(design.shape[1])

    def loss(at: FloatArray) -> float:
        logits = design @ at
        return float(np.logaddexp(0.0, logits).sum() - logits[present].sum() + 0.5 * _RIDGE * at @ at)

    for _ in range(_STEPS):
        rates = expit(design @ coefficients)
        hessian = (design.T * (rates * (1.0 - rates))) @ design + ridge
        step = np.linalg.solve(hessian, design.T @ (present - rates) - _RIDGE * coefficients)
        while loss(coefficients + step) > loss(coefficients) + 1e-9 and np.abs(step).max() > 1e-12:
            step = 0.5 * step
        coefficients = coefficients + step
        if np.abs(step).max() < 1e-9:
            break
    return coefficients, np.linalg.inv(hessian)
