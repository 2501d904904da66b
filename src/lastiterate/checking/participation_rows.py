"""Rows on participation: the number of batches with the canary, compared with draws of the declared sampling.

Monte Carlo tests (Barnard 1963) are exact for any weights. If only presence in a training is known, tests are binomial.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.stats import binom, norm

from lastiterate.checking.check_result import Row, judged, not_checked
from lastiterate.checking.trainings import Setting
from lastiterate.common.search import first_integer
from lastiterate.common.types import BoolArray, FloatArray
from lastiterate.mechanism import SAMPLINGS

RATE, SPREAD, COPIES, KEYS = "participation", "participation over seeds", "copies in a batch", "noise and batches"
_ONCE = "the canary is in equally many batches at every seed, as with a shuffled loader or balls in bins"
_DRAWS = 1000  # simulated faults: their power has a standard error of at most 0.016
_FACTORS = (1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0)  # multiples of the rate: possible faults


@dataclass(frozen=True, eq=False)
class Counts:
    """Numbers of batches with the canary, in steps of average weight."""

    setting: Setting
    totals: FloatArray  # one number for each training of all steps
    hits: FloatArray  # one for each one-step training

    @cached_property
    def share(self) -> float:
        """Weight of a batch of long trainings, if a one-step batch has weight 1. It minimises the sum's variance."""
        weights = self.setting.declared.weights
        return float(np.sum(weights)) ** 2 / float(np.sum(weights**2)) / len(weights)

    def draw(self, draws: int, factor: float = 1.0) -> tuple[FloatArray, FloatArray]:
        """Draw the sum of ``totals`` and the sum of ``hits``, at a multiple of the declared rate."""
        rng, scale = np.random.default_rng(0), float(np.mean(self.setting.declared.weights))
        totals = self.setting.declared.total_weights(rng, draws, len(self.totals), factor) / scale
        hits = rng.binomial(len(self.hits), min(1.0, float(self.setting.declared.rates[0]) * factor), draws)
        return totals, hits.astype(np.float64)

    @property
    def draws(self) -> int:
        """Number of draws. One draw is expected beyond each quantile of a row's error."""
        return int(np.ceil(2.0 / self.setting.error))

    @cached_property
    def is_whole(self) -> bool:
        """True if all totals are whole numbers of batches, which are either as declared or differ."""
        near, whole = np.round(self.totals), self.setting.allowances.whole
        differ = np.ptp(near) > 0.0 or near[0] == round(float(self.setting.declared.rates.sum()))
        return bool(self.setting.declared.is_plain and differ and np.all(np.abs(self.totals - near) < whole))

    @property
    def most(self) -> float:
        """The sum of ``totals`` without curvature, or an upper bound."""
        if self.is_whole:
            return float(np.round(self.totals).sum())
        return float(np.quantile(self.draw(self.draws)[0], 1.0 - self.setting.error))


def rate_row(counts: Counts, models_for: Callable[[int], int]) -> Row:
    """Return the row of the sample rate. ``models_for(pairs)`` is the number of models for a number of pairs."""
    setting, declared, allowed = counts.setting, counts.setting.declared, counts.setting.allowances
    if declared.is_once:
        counts = replace(counts, hits=np.zeros(0))  # totals of whole epochs are certain
    rate = min(1.0, float(declared.weights @ declared.rates) / float(declared.weights.sum()))
    totals, hits = counts.draw(counts.draws)
    sums = counts.share * totals + hits
    few = found = counts.share * float(counts.totals.sum()) + float(counts.hits.sum())
    least, most = np.quantile(sums, (setting.error / 2.0, 1.0 - setting.error / 2.0))
    trials = counts.share * declared.run.steps * len(counts.totals) + len(counts.hits)
    low, high = (found - (most - sums.mean())) / trials, (found + (sums.mean() - least)) / trials
    is_hidden = counts.totals.any() and not counts.is_whole
    if is_hidden:  # curvature may have removed any part of the effects
        few, least = float(counts.hits.sum()), np.quantile(hits, setting.error / 2.0)
    measured = found / trials
    row = Row(RATE, None, measured, rate, max(0.0, low), min(1.0, high), "ok", "", "the canary twice in an epoch")
    if found * (1.0 - allowed.exact) > most or few + allowed.exact * found < least:
        return replace(row, smallest_fault="").now("fault", _rate_advice(counts, measured, rate))
    if declared.is_once:
        return row

    def is_found(factor: float) -> bool:
        totals, hits = counts.draw(_DRAWS, factor)
        sums = counts.share * totals + hits
        return bool(np.mean((sums > most) | ((hits if is_hidden else sums) < least)) >= allowed.power)

    top = 1.0 / float(declared.rates.max())
    up = next((each for each in _FACTORS if each <= top and is_found(each)), np.inf)
    down = next((each for each in _FACTORS if is_found(1.0 / each)), np.inf)
    words = " or ".join(f"rate {sign} {each:g}" for sign, each in (("x", up), ("/", down)) if each < np.inf)
    row = replace(row, smallest_fault=words)
    if (up if allowed.rate <= top else down) <= allowed.rate:
        return row
    pairs = int(np.ceil((trials_for_rate(setting, rate) - len(counts.hits)) / (counts.share * declared.run.steps)))
    needs = f"{models_for(max(len(counts.totals) + 1, pairs))} models"
    if allowed.rate > top and is_hidden:  # more models of all steps do not help
        needs = "one-step models"
    return row.now("cannot tell", f"too few batches to detect {allowed.rate:g} times the rate", needs)


def _rate_advice(counts: Counts, measured: float, rate: float) -> str:
    each = np.round(np.append(counts.totals, counts.hits))
    if not each.any():
        return "the canary is in no batch; check whether batches are drawn from all data, including the canary's place"
    if measured > 1.0 - counts.setting.allowances.pattern:
        return "the canary is in every batch; check how batches are drawn"
    if not np.any(each % 2):
        return "the canary counts twice; check whether it is twice in a batch, or the learning rate is doubled"
    many, few = "too many batches, or twice in one", "too few batches, as if some examples were dropped"
    return f"the canary is in {many if measured > rate else few}; check the sample rate, and how batches are drawn"


def trials_to_tell(setting: Setting, chance: float, other: float) -> int:
    """Return the number of trials that tell two probabilities apart by a binomial test, with half of the misses."""
    power = (1.0 + setting.allowances.power) / 2.0
    return first_integer(lambda n: _power(setting, n, chance, other) >= power, 0, 2**40)


def _power(setting: Setting, trials: int, chance: float, other: float) -> float:
    low, high = _limits(setting, trials, chance)
    return float(binom.cdf(low - 1, trials, other) + binom.sf(high, trials, other))


def _limits(setting: Setting, trials: int, chance: float) -> tuple[float, float]:
    """Return the smallest and the largest count that the error of a row allows."""
    tail = setting.error / 2.0
    return float(binom.ppf(tail, trials, chance)), float(binom.isf(tail, trials, chance))


def trials_for_rate(setting: Setting, rate: float) -> int:
    """Return the number of batches that detect the stated rate, or half of the rate if the stated one exceeds 1."""
    factor = setting.allowances.rate
    return trials_to_tell(setting, rate, factor * rate if factor * rate <= 1.0 else rate / factor)


def one_epoch(setting: Setting) -> tuple[float, float]:
    """Return the probability that one epoch uses an example, and the probability with the other kind of batches."""
    declared = setting.declared.prefix(setting.declared.epoch)
    return declared.presence, declared.chance() if declared.is_once else 1.0


def epoch_row(setting: Setting, taken: BoolArray) -> Row:
    """Return the row of the share of one-epoch trainings that used the canary. Shuffled batches always use it."""
    words = "independent batches" if setting.declared.is_once else "shuffled batches"
    return _presence_row(SPREAD, setting, taken, *one_epoch(setting), words)


def presence_row(setting: Setting, taken: BoolArray, steps: int) -> Row:
    """Return the row of the share of trainings that used the canary, compared with the probability of any use."""
    declared, factor = setting.declared.prefix(steps), setting.allowances.rate
    other = declared.presence if declared.is_once else declared.chance(factor)
    return _presence_row(RATE, setting, taken, declared.presence, other, f"rate x {factor:g}")


def _presence_row(name: str, setting: Setting, taken: BoolArray, chance: float, other: float, words: str) -> Row:
    inside, seeds = int(np.count_nonzero(taken)), len(taken)
    low, high = _limits(setting, seeds, chance)
    if low <= inside <= high and _power(setting, seeds, chance, other) < setting.allowances.power:
        return not_checked(name, f"too few batches and models to detect {words}")
    why = _ONCE if name == SPREAD and inside == seeds else f"{inside} of {seeds} models used the canary"
    numbers = inside / seeds, chance, low / seeds, high / seeds
    return judged(name, numbers, not low <= inside <= high, _independently(setting, why), words)


def spread_row(counts: Counts) -> Row:
    """Return the row of the deviation of the canary's batches over seeds, divided by their mean: a Monte Carlo test.

    If each epoch uses each example once, the deviation is 0 after whole epochs, and at most 1/2 otherwise.
    """
    setting, declared, allowed = counts.setting, counts.setting.declared, counts.setting.allowances
    if not declared.is_independent:
        return not_checked(SPREAD, "the declared sampling uses all examples about equally often")
    if (steps := declared.run.steps) < declared.epoch or not declared.is_plain or np.ptp(declared.rates):
        return not_checked(SPREAD, "it needs trainings of one epoch: let the trainer accept the number of steps")
    rate, mean = float(declared.rates[0]), float(counts.totals.mean())
    expected, seeds = steps * rate, len(counts.totals)
    drawn = np.random.default_rng(0).binomial(steps, rate, (counts.draws, seeds))
    limit = float(np.quantile(drawn.std(axis=1) / drawn.mean(axis=1).clip(1.0 / seeds), setting.error))
    found = float(counts.totals.std()) / max(mean, 1.0 / seeds)
    if limit <= (0.5 if steps % declared.epoch else allowed.whole) / expected:
        return not_checked(SPREAD, "too few models to detect shuffled batches")
    if found < limit and mean < (1.0 - allowed.curvature) * expected:
        return not_checked(SPREAD, "curvature may hide how often the canary was drawn")
    numbers = found, float(np.sqrt((1.0 - rate) / expected)), found, found
    return judged(SPREAD, numbers, found < limit, _independently(setting, _ONCE), "shuffled batches")


def _independently(setting: Setting, why: str) -> str:
    words = SAMPLINGS[setting.declared.run.sampling].words
    return f"{why}; check whether batches are drawn by {words}, independently for every seed"


def _chance_of_copies(rate: float) -> float:
    """Return the probability of several copies, whose number is Poisson, in a batch with at least one."""
    return float(1.0 - rate * np.exp(-rate) / -np.expm1(-rate))


def seeds_for_copies(setting: Setting, rate: float) -> float:
    """Return the number of seeds that show copies, with half of the allowed misses."""
    missed = (1.0 - setting.allowances.power) / 2.0
    return float(np.log(missed) / np.log1p(-_chance_of_copies(rate)) / rate)


def copies_row(setting: Setting, hits: FloatArray) -> Row:
    """Return the row of the largest number of copies of the canary in one batch. Two show drawing with replacement."""
    rate, inside = float(setting.declared.rates[0]), int(np.count_nonzero(hits > 0.5))
    most = float(hits.max())
    why = "the canary was in one batch several times; check whether batches are drawn with replacement"
    if most < 1.5 and (1.0 - _chance_of_copies(rate)) ** inside > 1.0 - setting.allowances.power:
        seeds = f"about {seeds_for_copies(setting, rate):.0f} one-step pairs"
        return not_checked(COPIES, f"{seeds} would detect sampling with replacement")
    return judged(COPIES, (most, 1.0, most, most), most > 1.5, why, "sampling with replacement")


def keys_row(setting: Setting, models: FloatArray, taken: BoolArray) -> Row:
    """Return the row of the largest difference of a parameter's noise between seeds with and without the canary."""
    found, inside = models[: len(taken), setting.columns], int(taken.sum())
    outside = len(taken) - inside
    if setting.declared.run.sampling not in ("poisson", "balls-in-bins") or not inside or not outside:
        return not_checked(KEYS, "it needs batches whose size does not depend on the canary, some of them without it")
    around = (found - found.mean(axis=0)) / found.std(axis=0, ddof=1).clip(1e-300)
    scale = np.sqrt(1.0 / inside + 1.0 / outside)
    limit = float(norm.isf(setting.error / (2.0 * found.shape[1])))
    # The mean of a normal draw below its quantile at the rate. With one key, this is the difference.
    rate = inside / len(taken)
    mean = float(norm.pdf(norm.ppf(rate))) / rate / (1.0 - rate)
    if mean / scale < limit + float(norm.ppf(setting.allowances.power)):
        return not_checked(KEYS, "more one-step pairs are needed to detect one key for noise and batches")
    best = float(np.max(np.abs(around[taken].mean(axis=0) - around[~taken].mean(axis=0))) / scale)
    why = "the noise of a parameter tells whether the canary is in the batch; check whether one key or seed draws both"
    return judged(KEYS, (best, 0.0, 0.0, limit), best > limit, why, "one key for both")


UNSHARED = (
    "models with and without a canary do not share noise and batches, so noise hides the effect of the canary; draw "
    "the canary's place in both worlds"
)
TINY_INSTEAD = (
    "models with and without a canary do not share noise and batches; canaries are compared with a tiny one, which "
    "does not show division by the actual batch size; draw the canary's place in both worlds"
)


def unshared_rows(setting: Setting, along: FloatArray, steps: int, variance: float, clipping: str) -> list[Row]:
    """Return rows of the largest and of the mean displacement along a huge canary, in clipping norms.

    ``variance`` is the variance between models without a canary. The row ``clipping`` is only for one step.
    """
    declared, allowed, rows = setting.declared.prefix(steps), setting.allowances, list[Row]()
    weights, seeds = declared.weights, len(along)
    noise = 2.0 * max(variance, declared.variance) / declared.run.clip_norm**2
    if steps == 1:
        deviation, most = float(np.sqrt(noise) / weights[0]), float(along.max() / weights[0])
        limit = 1.0 + float(norm.isf(setting.error / seeds)) * deviation
        why = "a large gradient has an effect far above the clipping norm: look where gradients are clipped"
        numbers = most, 1.0, most - deviation, most + deviation
        row = judged(clipping, numbers, most > limit, why, f"norm x {limit + deviation:.2g}")
        if most <= limit and (1.0 - declared.presence) ** seeds > 1.0 - allowed.power:
            row = row.now("cannot tell", "the canary may have been in no batch", "more models")
        rows.append(row)
    mean = float(weights @ declared.rates)
    error = float(np.sqrt((noise + np.sum(weights**2 * declared.rates)) / seeds)) / mean
    share, limit = float(along.mean()) / mean, float(norm.isf(setting.error / 2.0)) * error
    factor = 1.0 + limit + float(norm.ppf(allowed.power)) * error
    row = Row(RATE, None, share, 1.0, max(0.0, share - limit), share + limit, "ok", "", f"rate x {factor:.2g}")
    # Curvature of several steps may have removed any part of the effect.
    if share - 1.0 > limit + allowed.curvature or (steps == 1 and 1.0 - share > limit):
        row = row.now(
            "fault", "the effect of canaries does not match the sample rate and the clipping norm; check both"
        )
    elif factor > allowed.rate:
        row = row.now("cannot tell", "noise hides how often the canary is in a batch", "shared randomness")
    return [*rows, row]
