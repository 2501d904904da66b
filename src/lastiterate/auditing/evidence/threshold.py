"""Thresholds above which scores are called "in": rules to choose them, and bounds on their error rates. Also a test for
scores that have the wrong sign.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtrik

from lastiterate.attacks.attack import LinearScores
from lastiterate.auditing.evidence.error_rates import CORRECTION_RATIO, AssumptionFree, RateBound, bound_on_rates, ranks
from lastiterate.auditing.evidence.family import Family, family_of
from lastiterate.auditing.evidence.score_signal import IDEAL, linear_rates
from lastiterate.common.errors import BadArgument
from lastiterate.common.types import FloatArray, IntArray
from lastiterate.common.validation import number, one_of, told
from lastiterate.labels import FAMILIES, THRESHOLDS, VALIDITIES
from lastiterate.run import DPSGD

_FINE_RATIO = 1.005  # ratio of neighbouring ranks, where more thresholds cost only time
_LOWEST, _HIGHEST, _POINTS = -4.0, 8.0, 121  # a-priori thresholds, in standard deviations without the canary
_QUANTILES = (np.arange(16) + 0.5) / 16.0  # levels of the quantiles of the number of errors
_PLATEAU = 1e-6  # relative tolerance: thresholds with nearly the best merit are equally good
CHOOSING = 64  # with "anytime" validity, the first 64 models per world choose the "split" threshold
EXPECTED = 512  # if the number of models per world is unknown, thresholds are predicted for this number


def check_threshold(threshold: float | str) -> float | str:
    """Return a validated threshold: a number or the name of a rule."""
    if not isinstance(threshold, str):
        return number("threshold", threshold)
    if threshold not in THRESHOLDS:
        raise BadArgument("threshold", f"must be a number or one of {', '.join(THRESHOLDS)}, got {told(threshold)}")
    return threshold


def deciding(threshold: float | str) -> float | str:
    """Return the threshold rule for judging a claim: "corrected" replaces "uncorrected"."""
    return "corrected" if threshold == "uncorrected" else threshold


Rule: TypeAlias = AssumptionFree | Family  # turns upper bounds on both error rates into a lower bound on epsilon


def rule_of(method: str, run: DPSGD | None) -> Rule:
    """Return the rule by which an estimation method turns error rates into epsilon."""
    return family_of(method, run) if method in FAMILIES else AssumptionFree()


def check_validity(validity: str, threshold: float | str) -> str:
    """Return ``validity`` if the threshold rule allows it. Otherwise raise ValueError."""
    one_of("validity", validity, VALIDITIES)
    if validity == "anytime" and threshold in ("corrected", "uncorrected"):
        raise BadArgument(
            "threshold",
            f"must be a-priori, split or a number if validity is 'anytime', got {told(threshold)}: the best "
            "threshold changes with every new model",
        )
    return validity


@dataclass(frozen=True)
class Worlds:
    """The scores of models with the canary (``inside``) and without (``outside``), each in increasing order."""

    inside: FloatArray
    outside: FloatArray

    @classmethod
    def of(cls, inside: FloatArray, outside: FloatArray) -> Worlds:
        """Sort the scores, which may be in any order."""
        return cls(np.sort(inside), np.sort(outside))

    def errors(self, threshold: ArrayLike) -> tuple[IntArray, IntArray]:
        """Return the numbers of false positives and of false negatives at each threshold."""
        false_positives = self.outside.size - np.searchsorted(self.outside, threshold, side="left")
        return false_positives, np.searchsorted(self.inside, threshold, side="left")

    def thresholds(self, ratio: float) -> FloatArray:
        """Return thresholds to try. Each has an error count of ``ranks`` in one world, and the fewest in the other."""
        levels = np.unique(np.concatenate((self.inside, self.outside)))
        least_wrong = self.outside[self.outside.size - 1 - ranks(self.outside.size, ratio)]
        first_right = self.inside[ranks(self.inside.size, ratio)]
        index = np.concatenate((np.searchsorted(levels, least_wrong, "right"), np.searchsorted(levels, first_right)))
        index = np.unique(np.minimum(index, levels.size - 1))  # a threshold above all scores is useless
        return _between(levels[np.maximum(index - 1, 0)], levels[index])

    def mirrored(self) -> Worlds:
        """Return the same models with the sign of all scores changed."""
        return Worlds(-self.inside[::-1], -self.outside[::-1])

    def generator(self) -> np.random.Generator:
        """Return a generator seeded by the scores. A fixed seed would always draw the same ranks of sorted scores."""
        digest = hashlib.blake2b(self.inside.tobytes() + b"|" + self.outside.tobytes(), digest_size=16).digest()
        return np.random.default_rng(int.from_bytes(digest, "little"))

    def halves(self) -> tuple[Worlds, Worlds]:
        """Return two random halves of each world. If the number of models is odd, the second half is larger."""
        generator = self.generator()
        parts = []
        for scores in (self.inside, self.outside):
            first = np.zeros(scores.size, dtype=bool)
            first[generator.permutation(scores.size)[: scores.size // 2]] = True
            parts.append((scores[first], scores[~first]))
        return Worlds(parts[0][0], parts[1][0]), Worlds(parts[0][1], parts[1][1])


@dataclass(frozen=True)
class Bounds:
    """A threshold, its errors among the counted models, and upper bounds on the two error rates.

    If ``direction`` is 1, scores of at least the threshold are called "in". If it is -1, scores of at most the
    threshold are. ``least_fpr`` and ``least_fnr`` are the upper bounds that would result if there were no errors.
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


def bounds_of(
    inside: FloatArray,
    outside: FloatArray,
    delta: float,
    confidence: float,
    method: str,
    threshold: float | str,
    run: DPSGD | None,
    validity: str,
) -> Bounds:
    """Return the bounds at a threshold that is given, predicted or chosen by scores. See ``estimate``."""
    choice = threshold if isinstance(threshold, str) else "a-priori"
    bound, error = bound_on_rates(choice, validity), 0.5 * (1.0 - confidence)
    if threshold == "a-priori":
        sizes = (EXPECTED, EXPECTED) if validity == "anytime" else (inside.size, outside.size)
        threshold = predicted_threshold(run, *sizes, delta, confidence, method, validity=validity)
    if not isinstance(threshold, str):
        return bounds_at(Worlds.of(inside, outside), threshold, error, bound)
    # Composition's own curves choose nearly the same threshold, and may take minutes.
    rule = rule_of("last-iterate" if method == "composition" else method, run)
    if threshold != "split":
        return chosen_by_themselves(Worlds.of(inside, outside), threshold, rule, delta, error)
    choosing, counted = Worlds.of(inside, outside).halves()
    if validity == "anytime":
        choosing = Worlds.of(inside[:CHOOSING], outside[:CHOOSING])
        counted = Worlds.of(inside[CHOOSING:], outside[CHOOSING:])
    best, direction = 0.0, 1
    if choosing.inside.size and choosing.outside.size:  # the first half of one model is empty
        best, direction = _best((choosing, choosing.mirrored()), rule, delta, error, bound, _FINE_RATIO)
    return bounds_at(counted, best, error, bound, direction)


def chosen_by_themselves(worlds: Worlds, choice: str, rule: Rule, delta: float, error: float) -> Bounds:
    """Return the bounds at the best threshold for these scores, "corrected" for this choice or "uncorrected"."""
    bound = bound_on_rates(choice)
    ratio = CORRECTION_RATIO if choice == "corrected" else _FINE_RATIO
    threshold, _ = _best((worlds,), rule, delta, error, bound, ratio)
    return bounds_at(worlds, threshold, error, bound)


def _best(
    views: Sequence[Worlds], rule: Rule, delta: float, error: float, bound: RateBound, ratio: float
) -> tuple[float, int]:
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
    run: DPSGD | None,
    models_in: int,
    models_out: int,
    delta: float = 1e-5,
    confidence: float = 0.95,
    method: str = "clopper-pearson",
    *,
    scores: LinearScores = IDEAL,
    validity: str = "fixed",
) -> float:
    """Return the threshold with the largest expected bound under the linear analysis (see ``score_signal``).

    The bound is averaged over possible numbers of errors. Wrong assumptions make the bound weak, but not invalid.
    """
    if run is None:
        raise BadArgument("run", "must be given if threshold is 'a-priori', which is predicted for the run; got None")
    thresholds = scores.spread * np.linspace(_LOWEST, _HIGHEST, _POINTS)
    rates = linear_rates(run, thresholds, scores)
    return best_threshold(thresholds, rates, (models_out, models_in), rule_of(method, run), delta, confidence, validity)


def best_threshold(
    thresholds: FloatArray,
    rates: tuple[FloatArray, FloatArray],
    sizes: tuple[int, int],
    rule: Rule,
    delta: float,
    confidence: float,
    validity: str,
) -> float:
    """Return the threshold with the largest expected bound at these error rates.

    If neighbouring thresholds are equally good, return their middle. If there are several such intervals, as for worlds
    that are mirror images of each other, use the last one.
    """
    bound, error = bound_on_rates("a-priori", validity), 0.5 * (1.0 - confidence)
    fpr, fnr = (_likely_bounds(each, size, error, bound) for each, size in zip(rates, sizes, strict=True))
    merits = rule.merits(fpr, fnr, delta)
    best = float(np.max(merits))
    worse = np.flatnonzero(merits < best - _PLATEAU * abs(best))
    last = int(np.flatnonzero(merits >= best - _PLATEAU * abs(best))[-1])
    first = int(worse[worse < last][-1]) + 1 if np.any(worse < last) else 0
    return float(np.mean(thresholds[first : last + 1]))


def _likely_bounds(rate: FloatArray, models: int, error: float, bound: RateBound) -> FloatArray:
    inside = np.clip(rate, 1e-15, 1.0 - 1e-15)[:, None]
    counts = np.ceil(bdtrik(_QUANTILES, float(models), inside))
    distinct, index = np.unique(np.clip(counts, 0.0, models), return_inverse=True)
    bounds: FloatArray = bound(distinct, models, error)[index]
    return bounds.reshape(counts.shape)


def _between(low: FloatArray, high: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore"):
        middle = np.minimum(0.5 * low + 0.5 * high, high)
    finite = np.isfinite(low) & np.isfinite(high)
    return np.where(np.isinf(low) & np.isinf(high) & (low < high), 0.0, np.where(finite & (middle > low), middle, high))


# Score sign: a test for scores with the wrong sign, where smaller scores speak for the canary.

CHANCE = 1e-4  # the probability that scores without signal seem to have the wrong sign
_RATIO = 2.0  # ratio of neighbouring ranks: a finer grid divides the error further, for hardly more power
OTHER_WAY = (
    f"The sign of the scores seems to be wrong: smaller scores speak for the canary, and not by chance (p below "
    f"{CHANCE:g}). Change the sign, or use the threshold split, which learns the direction."
)
SMALLER = (
    "The models that chose the threshold show that smaller scores speak for the canary: scores of at most the "
    'threshold are called "in".'
)


def separates_the_other_way(worlds: Worlds) -> bool:
    """Return whether smaller scores, not larger ones, speak for the canary.

    For scores without signal the answer is True with probability at most ``CHANCE``. Two tests share this error: Mann
    and Whitney's, and Fisher's test of whether the smallest of all scores, and not the largest, mostly belong to models
    with the canary. Fisher's test has power even if few models use the canary.
    """
    if worlds.inside[0] == worlds.outside[0] == worlds.inside[-1] == worlds.outside[-1]:
        return False  # all scores are equal
    from scipy.stats import mannwhitneyu

    if mannwhitneyu(worlds.inside, worlds.outside, alternative="less").pvalue < 0.5 * CHANCE:
        return True
    return _smallest_are_in(worlds) and not _smallest_are_in(worlds.mirrored())


def _smallest_are_in(worlds: Worlds) -> bool:
    """Return whether Fisher's exact test finds the smallest scores mostly "in". The tested ranks share the error."""
    from scipy.stats import hypergeom

    scores = np.sort(np.concatenate((worlds.inside, worlds.outside)))
    counts = ranks(scores.size, _RATIO)
    bounds = scores[counts]
    ins, outs = (np.searchsorted(world, bounds, side="right") for world in (worlds.inside, worlds.outside))
    chances = hypergeom.sf(ins - 1, scores.size, worlds.inside.size, ins + outs)
    return bool(np.min(chances) < 0.5 * CHANCE / counts.size)
