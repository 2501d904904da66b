"""Which scores are called "in": the threshold is part of the statistics, and so is how it was chosen."""

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

_COARSE_RATIO = 1.1  # of the ranks of draws: about two hundred thresholds
_FINE_RATIO = 1.005  # of the ranks that are tried where trying costs nothing but time
_LOWEST, _HIGHEST, _POINTS = -4.0, 8.0, 121  # thresholds tried a priori, in standard deviations without the canary
_QUANTILES = (np.arange(16) + 0.5) / 16.0  # of the numbers of errors that are expected
_PLATEAU = 1e-6  # of the best merit: thresholds within are equally good
CHOOSING = 64  # the first models a world choose a "split" threshold, where one may look and stop at any time
EXPECTED = 512  # models a world, for which a threshold is predicted where nobody knows how many there will be


def check_threshold(threshold: float | str) -> float | str:
    """A way to choose a threshold, or one that was chosen."""
    if not isinstance(threshold, str):
        return number("threshold", threshold)
    if threshold not in THRESHOLDS:
        raise ValueError(f"threshold must be a number or one of {', '.join(THRESHOLDS)}, got {threshold!r}")
    return threshold


def deciding(threshold: float | str) -> float | str:
    """The threshold by which a claim is judged: a maximum over thresholds is corrected for, whatever is shown."""
    return "corrected" if threshold == "uncorrected" else threshold


class Rule(Protocol):
    """How upper bounds on the two error rates become a lower bound on epsilon."""

    def epsilon(self, fpr: float, fnr: float, delta: float) -> float:
        """The lower bound."""

    def noise_multiplier(self, fpr: float, fnr: float) -> float | None:
        """The largest noise multiplier that the rates allow, where noise is assumed."""

    def merits(self, fpr: FloatArray, fnr: FloatArray, delta: float) -> FloatArray:
        """How good each row of possible upper bounds is, to compare the rows with each other."""


def rule_of(method: str, run: DPSGD | None) -> Rule:
    """The rule of this name."""
    return family_of(method, run) if method in FAMILIES else AssumptionFree()


def check_validity(validity: str, threshold: float | str) -> str:
    """Whether bounds hold for one number of models or for all, and whether such a threshold allows that."""
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
        """These scores, which are in any order."""
        return cls(np.sort(inside), np.sort(outside))

    def errors(self, threshold: ArrayLike) -> tuple[IntArray, IntArray]:
        """How many false positives and false negatives each threshold makes."""
        false_positives = self.outside.size - np.searchsorted(self.outside, threshold, side="left")
        return false_positives, np.searchsorted(self.inside, threshold, side="left")

    def thresholds(self, ratio: float) -> FloatArray:
        """For ranks of either world, the threshold with at most so many errors there and fewest in the other.

        In the middle between the two scores that it parts.
        """
        levels = np.unique(np.concatenate((self.inside, self.outside)))
        least_wrong = self.outside[self.outside.size - 1 - ranks(self.outside.size, ratio)]
        first_right = self.inside[ranks(self.inside.size, ratio)]
        index = np.concatenate((np.searchsorted(levels, least_wrong, "right"), np.searchsorted(levels, first_right)))
        index = np.unique(np.minimum(index, levels.size - 1))  # calling nothing "in" shows nothing
        return _between(levels[np.maximum(index - 1, 0)], levels[index])

    def mirrored(self) -> Worlds:
        """The same models with the scores' signs changed."""
        return Worlds(-self.inside[::-1], -self.outside[::-1])

    def generator(self) -> np.random.Generator:
        """Randomness that is the same for the same scores in any order, and unrelated to what they say.

        A seed that is always the same would not do: of sorted scores it would always draw the same ranks.
        """
        digest = hashlib.blake2b(self.inside.tobytes() + b"|" + self.outside.tobytes(), digest_size=16).digest()
        return np.random.default_rng(int.from_bytes(digest, "little"))

    def halves(self) -> tuple[Worlds, Worlds]:
        """Two random parts; of an odd number of models the second has one more."""
        generator = self.generator()
        parts = []
        for scores in (self.inside, self.outside):
            first = np.zeros(scores.size, dtype=bool)
            first[generator.permutation(scores.size)[: scores.size // 2]] = True
            parts.append((scores[first], scores[~first]))
        return Worlds(parts[0][0], parts[1][0]), Worlds(parts[0][1], parts[1][1])


@dataclass(frozen=True)
class Bounds:
    """A threshold, the errors it made among the models that count, and upper bounds on their rates.

    ``direction`` 1: scores of at least the threshold are called "in"; -1: those of at most the threshold. ``least_fpr``
    and ``least_fnr`` are what the upper bounds would have been without a single error.
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
    """The bounds at one threshold, each of which is wrong with probability ``error`` at most."""
    seen = worlds if direction > 0 else worlds.mirrored()
    false_positives, false_negatives = (int(count) for count in seen.errors(np.float64(direction * threshold)))
    fpr, least_fpr = (float(bound(count, worlds.outside.size, error)) for count in (false_positives, 0))
    fnr, least_fnr = (float(bound(count, worlds.inside.size, error)) for count in (false_negatives, 0))
    return Bounds(threshold, direction, worlds, false_positives, false_negatives, fpr, fnr, least_fpr, least_fnr)


def chosen_by_others(
    choosing: Worlds, counted: Worlds, rule: Rule, delta: float, error: float, bound: RateBound
) -> Bounds:
    """The bounds of some models at the threshold, and in the direction, that other models make look best."""
    if not (choosing.inside.size and choosing.outside.size):  # a world of one model: nothing to choose by
        return bounds_at(counted, 0.0, error, bound)
    threshold, direction = _best((choosing, choosing.mirrored()), rule, delta, error, bound, _FINE_RATIO)
    return bounds_at(counted, threshold, error, bound, direction)


def chosen_by_themselves(worlds: Worlds, choice: str, rule: Rule, delta: float, error: float) -> Bounds:
    """The bounds at the threshold that the scores themselves make look best, "corrected" for that or "uncorrected"."""
    bound = bound_on_rates(choice)
    ratio = CORRECTION_RATIO if choice == "corrected" else _FINE_RATIO
    threshold, _ = _best((worlds,), rule, delta, error, bound, ratio)
    return bounds_at(worlds, threshold, error, bound)


def _best(
    views: Sequence[Worlds], rule: Rule, delta: float, error: float, bound: RateBound, ratio: float
) -> tuple[float, int]:
    """The threshold whose bounds have most merit, and its direction: 1 in the first view, -1 in the second."""
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
    """The threshold that the linear analysis expects to show most, before any model is trained.

    Without the canary scores are taken to be N(0, spread^2), with it signal * S / s + N(0, spread^2), where S is how
    much of the canary is in the last iterate of ``run`` and s the standard deviation of its noise. The numbers of
    errors are averaged over. It is only a choice: wrong assumptions make the bound weak, not wrong.
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
    """The threshold that is expected to show most if scores are as these draws, which are not those to be judged."""
    error = 0.5 * (1.0 - confidence)
    thresholds = drawn.thresholds(_COARSE_RATIO)
    false_positives, false_negatives = drawn.errors(thresholds)
    bound = bound_on_rates("a-priori", validity)
    fpr_bounds = _likely_bounds(false_positives / drawn.outside.size, models_out, error, bound)
    fnr_bounds = _likely_bounds(false_negatives / drawn.inside.size, models_in, error, bound)
    return _most_merit(thresholds, rule_of(method, run).merits(fpr_bounds, fnr_bounds, delta))


def _most_merit(thresholds: FloatArray, merits: FloatArray) -> float:
    """The middle of the thresholds that are as good as any: of the highest of them, down to where others are worse.

    Where worlds are mirror images of each other the same merit is found twice, with nothing good in between.
    """
    best = float(np.max(merits))
    worse = np.flatnonzero(merits < best - _PLATEAU * abs(best))
    last = int(np.flatnonzero(merits >= best - _PLATEAU * abs(best))[-1])
    first = int(worse[worse < last][-1]) + 1 if np.any(worse < last) else 0
    return float(np.mean(thresholds[first : last + 1]))


def _likely_bounds(rate: FloatArray, models: int, error: float, bound: RateBound) -> FloatArray:
    """Upper bounds, [rates, quantiles], from quantiles of the number of errors at each rate."""
    inside = np.clip(rate, 1e-15, 1.0 - 1e-15)[:, None]
    counts = np.ceil(bdtrik(_QUANTILES, float(models), inside))
    distinct, index = np.unique(np.clip(counts, 0.0, models), return_inverse=True)
    bounds: FloatArray = bound(distinct, models, error)[index]
    return bounds.reshape(counts.shape)


def _between(low: FloatArray, high: FloatArray) -> FloatArray:
    """Numbers above ``low`` and at most ``high``, in the middle if there is one."""
    with np.errstate(invalid="ignore"):
        middle = np.minimum(0.5 * low + 0.5 * high, high)
    finite = np.isfinite(low) & np.isfinite(high)
    return np.where(np.isinf(low) & np.isinf(high) & (low < high), 0.0, np.where(finite & (middle > low), middle, high))


# Scores with the wrong sign: do they tell the two worlds apart the other way round?

CHANCE = 1e-4  # with which scores without signal seem to
_RATIO = 2.0  # of neighbouring numbers of smallest scores: finer tells hardly more, and shares the error further
OTHER_WAY = (
    f"The scores tell the two worlds apart the other way round, beyond chance ({CHANCE:g}): smaller scores speak for "
    "the canary. Their sign seems to be wrong; of many models, the threshold split finds the direction by itself."
)
SMALLER = (
    "The half of the models that chose the threshold found that smaller scores speak for the canary: those of at most "
    'the threshold are called "in".'
)


def separates_the_other_way(worlds: Worlds) -> bool:
    """Whether smaller scores, not larger ones, speak for the canary, beyond a chance of ``CHANCE``.

    Two tests share that chance; neither minds ties or infinities. Mann and Whitney's asks whether a score with the
    canary is mostly smaller than one without. The other asks whether the smallest of all scores are mostly of models
    with the canary, which is what there is to see where few models use it, and the largest are not.
    """
    if worlds.inside[0] == worlds.outside[0] == worlds.inside[-1] == worlds.outside[-1]:
        return False  # all scores are equal
    from scipy.stats import mannwhitneyu

    if mannwhitneyu(worlds.inside, worlds.outside, alternative="less").pvalue < 0.5 * CHANCE:
        return True
    return _smallest_are_in(worlds) and not _smallest_are_in(worlds.mirrored())


def _smallest_are_in(worlds: Worlds) -> bool:
    """Fisher's exact test of the smallest scores, in numbers that are fixed in advance and share the error.

    Scores that equal the largest among them belong to them: which do is the same for both worlds.
    """
    from scipy.stats import hypergeom

    scores = np.sort(np.concatenate((worlds.inside, worlds.outside)))
    counts = ranks(scores.size, _RATIO)
    bounds = scores[counts]
    ins, outs = (np.searchsorted(world, bounds, side="right") for world in (worlds.inside, worlds.outside))
    chances = hypergeom.sf(ins - 1, scores.size, worlds.inside.size, ins + outs)
    return bool(np.min(chances) < 0.5 * CHANCE / counts.size)
