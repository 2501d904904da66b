"""Thresholds above which scores are called "in": rules to choose them, error bounds, and the sign of the scores."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtrik

from lastiterate.auditing.evidence.error_rates import CORRECTION_RATIO, AssumptionFree, RateBound, bound_on_rates, ranks
from lastiterate.auditing.evidence.family import family_of
from lastiterate.auditing.evidence.score_signal import false_alarms, score_below
from lastiterate.common.types import FloatArray, IntArray
from lastiterate.common.validation import integer, number, one_of
from lastiterate.registry import FAMILIES, THRESHOLDS, VALIDITIES
from lastiterate.run import DPSGD

_COARSE_RATIO = 1.1  # of neighbouring ranks of draws: about two hundred thresholds
_FINE_RATIO = 1.005  # of neighbouring ranks, if more thresholds cost nothing but time
_LOWEST, _HIGHEST, _POINTS = -4.0, 8.0, 121  # thresholds tried a priori, in standard deviations without the canary
_QUANTILES = (np.arange(16) + 0.5) / 16.0  # of the expected numbers of errors
_PLATEAU = 1e-6  # of the best merit: thresholds this close to it are equally good
CHOOSING = 64  # with "anytime" validity, this many first models a world choose a "split" threshold
EXPECTED = 512  # models a world for which a threshold is predicted if their number is unknown


def check_threshold(threshold: float | str) -> float | str:
    """Return a validated threshold: a number or the name of a rule."""
    if not isinstance(threshold, str):
        return number("threshold", threshold)
    if threshold not in THRESHOLDS:
        raise ValueError(f"threshold must be a number or one of {', '.join(THRESHOLDS)}, got {threshold!r}")
    return threshold


def deciding(threshold: float | str) -> float | str:
    """Return the threshold rule by which a claim is judged: "corrected" in place of "uncorrected"."""
    return "corrected" if threshold == "uncorrected" else threshold


class Rule(Protocol):
    """A rule that turns upper bounds on the two error rates into a lower bound on epsilon."""

    def epsilon(self, fpr: float, fnr: float, delta: float) -> float:
        """Return the lower bound on epsilon."""

    def noise_multiplier(self, fpr: float, fnr: float) -> float | None:
        """Return the largest noise multiplier that the rates allow; None if no noise is assumed."""

    def merits(self, fpr: FloatArray, fnr: FloatArray, delta: float) -> FloatArray:
        """Return the merit of each row of possible upper bounds. Merits are only compared with each other."""


def rule_of(method: str, run: DPSGD | None) -> Rule:
    """Return the rule of an estimation method."""
    return family_of(method, run) if method in FAMILIES else AssumptionFree()


def check_validity(validity: str, threshold: float | str) -> str:
    """Return a validated validity, "fixed" or "anytime", that the threshold rule allows."""
    one_of("validity", validity, VALIDITIES)
    if validity == "anytime" and threshold in ("corrected", "uncorrected"):
        raise ValueError(
            f"threshold must be a-priori, split or a number with validity 'anytime', got {threshold!r}: the best of "
            "all thresholds changes from model to model"
        )
    return validity


@dataclass(frozen=True)
class Worlds:
    """The scores of models with the canary (``inside``) and without (``outside``), each in increasing order."""

    inside: FloatArray
    outside: FloatArray

    @classmethod
    def of(cls, inside: FloatArray, outside: FloatArray) -> Worlds:
        """Return the worlds of these scores, which may be in any order."""
        return cls(np.sort(inside), np.sort(outside))

    def errors(self, threshold: ArrayLike) -> tuple[IntArray, IntArray]:
        """Return the numbers of false positives and of false negatives at each threshold."""
        false_positives = self.outside.size - np.searchsorted(self.outside, threshold, side="left")
        return false_positives, np.searchsorted(self.inside, threshold, side="left")

    def thresholds(self, ratio: float) -> FloatArray:
        """Return thresholds to try, for ranks of either world (see ``ranks``).

        Each threshold makes at most this many errors in one world and the fewest possible in the other. It lies midway
        between the two scores that it separates.
        """
        levels = np.unique(np.concatenate((self.inside, self.outside)))
        least_wrong = self.outside[self.outside.size - 1 - ranks(self.outside.size, ratio)]
        first_right = self.inside[ranks(self.inside.size, ratio)]
        index = np.concatenate((np.searchsorted(levels, least_wrong, "right"), np.searchsorted(levels, first_right)))
        index = np.unique(np.minimum(index, levels.size - 1))  # calling nothing "in" shows nothing
        return _between(levels[np.maximum(index - 1, 0)], levels[index])

    def mirrored(self) -> Worlds:
        """Return the same models with the sign of all scores changed."""
        return Worlds(-self.inside[::-1], -self.outside[::-1])

    def generator(self) -> np.random.Generator:
        """Return a generator that is seeded by a hash of the scores, in any order.

        A fixed seed would always draw the same ranks of the sorted scores.
        """
        digest = hashlib.blake2b(self.inside.tobytes() + b"|" + self.outside.tobytes(), digest_size=16).digest()
        return np.random.default_rng(int.from_bytes(digest, "little"))

    def halves(self) -> tuple[Worlds, Worlds]:
        """Return two random halves of each world. An odd model goes to the second half."""
        generator = self.generator()
        parts = []
        for scores in (self.inside, self.outside):
            first = np.zeros(scores.size, dtype=bool)
            first[generator.permutation(scores.size)[: scores.size // 2]] = True
            parts.append((scores[first], scores[~first]))
        return Worlds(parts[0][0], parts[1][0]), Worlds(parts[0][1], parts[1][1])


@dataclass(frozen=True)
class Bounds:
    """A threshold, its errors among the counted models, and upper bounds on their rates.

    ``direction`` 1: scores of at least the threshold are called "in"; -1: scores of at most the threshold.
    ``least_fpr`` and ``least_fnr`` are the upper bounds without a single error.
    """

    threshold: float
    direction: int
    worlds: Worlds
    false_positives: int
    false_negatives: int
    fpr: float
    fnr: float
    least_fpr: float
    least_fnr: float


def bounds_at(worlds: Worlds, threshold: float, error: float, bound: RateBound, direction: int = 1) -> Bounds:
    """Return the bounds at one threshold. Each bound is wrong with probability at most ``error``."""
    seen = worlds if direction > 0 else worlds.mirrored()
    false_positives, false_negatives = (int(count) for count in seen.errors(np.float64(direction * threshold)))
    fpr, least_fpr = (float(bound(count, worlds.outside.size, error)) for count in (false_positives, 0))
    fnr, least_fnr = (float(bound(count, worlds.inside.size, error)) for count in (false_negatives, 0))
    return Bounds(threshold, direction, worlds, false_positives, false_negatives, fpr, fnr, least_fpr, least_fnr)


def chosen_by_others(
    choosing: Worlds, counted: Worlds, rule: Rule, delta: float, error: float, bound: RateBound
) -> Bounds:
    """Return the bounds of the ``counted`` models at the best threshold and direction of the ``choosing`` models."""
    if not (choosing.inside.size and choosing.outside.size):  # a world of one model has no models that choose
        return bounds_at(counted, 0.0, error, bound)
    threshold, direction = _best((choosing, choosing.mirrored()), rule, delta, error, bound, _FINE_RATIO)
    return bounds_at(counted, threshold, error, bound, direction)


def chosen_by_themselves(worlds: Worlds, choice: str, rule: Rule, delta: float, error: float) -> Bounds:
    """Return the bounds at the best threshold of the same scores, "corrected" for this choice or "uncorrected"."""
    bound = bound_on_rates(choice)
    ratio = CORRECTION_RATIO if choice == "corrected" else _FINE_RATIO
    threshold, _ = _best((worlds,), rule, delta, error, bound, ratio)
    return bounds_at(worlds, threshold, error, bound)


def _best(
    views: Sequence[Worlds], rule: Rule, delta: float, error: float, bound: RateBound, ratio: float
) -> tuple[float, int]:
    """Return the threshold whose bounds have most merit, and its direction: 1 in the first view, -1 in the second."""
    thresholds, fpr, fnr = [], [], []
    for direction, view in zip((1, -1), views, strict=False):
        tried = view.thresholds(ratio)
        false_positives, false_negatives = view.errors(tried)
        fpr.append(bound(false_positives, view.outside.size, error))
        fnr.append(bound(false_negatives, view.inside.size, error))
        thresholds += [(direction * float(threshold), direction) for threshold in tried]
    merits = rule.merits(np.concatenate(fpr)[:, None], np.concatenate(fnr)[:, None], delta)
    return thresholds[int(np.argmax(merits))]


def predicted_threshold(
    run: DPSGD,
    models_in: int,
    models_out: int,
    delta: float = 1e-5,
    confidence: float = 0.95,
    method: str = "clopper-pearson",
    *,
    spread: float = 1.0,
    signal: float = 1.0,
    validity: str = "fixed",
) -> float:
    """Return the threshold with the largest expected bound under the linear analysis, before any model is trained.

    Scores are assumed to be N(0, spread^2) without the canary, and signal * S / s + N(0, spread^2) with it. S is the
    amount of the canary in the last iterate of ``run``, and s the standard deviation of its noise. The merit is
    averaged over the numbers of errors. Wrong assumptions make the bound weak, but not invalid.
    """
    inside, outside = integer("models_in", models_in), integer("models_out", models_out)
    width = number("spread", spread, 0.0, open_low=True)
    strength = number("signal", signal, 0.0, open_low=True)
    error = 0.5 * (1.0 - number("confidence", confidence, 0.0, 1.0, open_low=True, open_high=True))
    thresholds = width * np.linspace(_LOWEST, _HIGHEST, _POINTS)
    bound = bound_on_rates("a-priori", validity)
    law = {"spread": width, "signal": strength}
    fpr_bounds = _likely_bounds(false_alarms(run, thresholds, **law), outside, error, bound)
    fnr_bounds = _likely_bounds(score_below(run, thresholds, **law), inside, error, bound)
    return _most_merit(thresholds, rule_of(method, run).merits(fpr_bounds, fnr_bounds, delta))


def threshold_of_draws(
    drawn: Worlds,
    run: DPSGD,
    models_in: int,
    models_out: int,
    delta: float,
    confidence: float,
    method: str,
    validity: str = "fixed",
) -> float:
    """Return the threshold with the largest expected bound if scores have the law of these independent draws."""
    error = 0.5 * (1.0 - confidence)
    thresholds = drawn.thresholds(_COARSE_RATIO)
    false_positives, false_negatives = drawn.errors(thresholds)
    bound = bound_on_rates("a-priori", validity)
    fpr_bounds = _likely_bounds(false_positives / drawn.outside.size, models_out, error, bound)
    fnr_bounds = _likely_bounds(false_negatives / drawn.inside.size, models_in, error, bound)
    return _most_merit(thresholds, rule_of(method, run).merits(fpr_bounds, fnr_bounds, delta))


def _most_merit(thresholds: FloatArray, merits: FloatArray) -> float:
    """Return the middle of the highest plateau of thresholds with the best merit.

    If the worlds are mirror images of each other, there are two plateaus of the same merit with worse ones in between.
    """
    best = float(np.max(merits))
    worse = np.flatnonzero(merits < best - _PLATEAU * abs(best))
    last = int(np.flatnonzero(merits >= best - _PLATEAU * abs(best))[-1])
    first = int(worse[worse < last][-1]) + 1 if np.any(worse < last) else 0
    return float(np.mean(thresholds[first : last + 1]))


def _likely_bounds(rate: FloatArray, models: int, error: float, bound: RateBound) -> FloatArray:
    """Return upper bounds, [rates, quantiles], from quantiles of the number of errors at each rate."""
    inside = np.clip(rate, 1e-15, 1.0 - 1e-15)[:, None]
    counts = np.ceil(bdtrik(_QUANTILES, float(models), inside))
    distinct, index = np.unique(np.clip(counts, 0.0, models), return_inverse=True)
    bounds: FloatArray = bound(distinct, models, error)[index]
    return bounds.reshape(counts.shape)


def _between(low: FloatArray, high: FloatArray) -> FloatArray:
    """Return numbers above ``low`` and at most ``high``: the middle, if floats have one."""
    with np.errstate(invalid="ignore"):
        middle = np.minimum(0.5 * low + 0.5 * high, high)
    finite = np.isfinite(low) & np.isfinite(high)
    return np.where(np.isinf(low) & np.isinf(high) & (low < high), 0.0, np.where(finite & (middle > low), middle, high))


# Score sign: a test of whether smaller scores, not larger ones, speak for the canary.

CHANCE = 1e-4  # the probability that scores without signal seem to have the wrong sign
_RATIO = 2.0  # of neighbouring numbers of smallest scores: a finer grid divides the error more, for hardly more power
OTHER_WAY = (
    f"The scores tell the two worlds apart the other way round, beyond chance ({CHANCE:g}): smaller scores speak for "
    "the canary. Their sign seems to be wrong; of many models, the threshold split finds the direction by itself."
)
SMALLER = (
    "The half of the models that chose the threshold found that smaller scores speak for the canary: those of at most "
    'the threshold are called "in".'
)


def separates_the_other_way(worlds: Worlds) -> bool:
    """Return whether smaller scores, not larger ones, speak for the canary, wrongly with probability ``CHANCE``.

    Two tests share this error. Both allow ties and infinite scores. Mann and Whitney's test asks whether a score with
    the canary is mostly smaller than one without. The other test asks whether the smallest of all scores, and not the
    largest, mostly belong to models with the canary. It has power if few models use the canary.
    """
    if worlds.inside[0] == worlds.outside[0] == worlds.inside[-1] == worlds.outside[-1]:
        return False  # all scores are equal
    from scipy.stats import mannwhitneyu

    if mannwhitneyu(worlds.inside, worlds.outside, alternative="less").pvalue < 0.5 * CHANCE:
        return True
    return _smallest_are_in(worlds) and not _smallest_are_in(worlds.mirrored())


def _smallest_are_in(worlds: Worlds) -> bool:
    """Return whether Fisher's exact test finds the smallest scores mostly in the world with the canary.

    The numbers of smallest scores are fixed in advance and share the error. Scores that are equal to the largest of
    the smallest scores are included, in both worlds alike.
    """
    from scipy.stats import hypergeom

    scores = np.sort(np.concatenate((worlds.inside, worlds.outside)))
    counts = ranks(scores.size, _RATIO)
    bounds = scores[counts]
    ins, outs = (np.searchsorted(world, bounds, side="right") for world in (worlds.inside, worlds.outside))
    chances = hypergeom.sf(ins - 1, scores.size, worlds.inside.size, ins + outs)
    return bool(np.min(chances) < 0.5 * CHANCE / counts.size)
