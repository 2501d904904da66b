"""Rows on participation: the number of batches with the canary, compared with draws of the declared sampling.

A statistic of the training is compared with the same statistic of simulated trainings. The test is exact for any
weights and any sampling (Monte Carlo test, Barnard 1963). If only the canary's presence in a training is known, the
test is binomial.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.stats import binom, norm

from lastiterate.checking.check_result import Row, judged, not_checked
from lastiterate.checking.declared import Declared
from lastiterate.checking.trainings import Setting
from lastiterate.common.search import first_integer
from lastiterate.common.types import BoolArray, FloatArray

RATE, SPREAD, COPIES, KEYS = "participation", "participation over seeds", "copies in a batch", "noise and batches"
_DRAWS = 1000  # simulated faults: their power has a standard error of at most 0.016
_FACTORS = (1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0)  # multiples of the rate: possible faults


@dataclass(frozen=True, eq=False)
class Counts:
    """Numbers of batches with the canary, in steps of average weight.

    ``totals`` has one number for each training of ``steps`` steps. ``hits`` has one for each one-step training.
    """

    setting: Setting
    totals: FloatArray
    steps: int
    hits: FloatArray

    @cached_property
    def declared(self) -> Declared:
        """The declared run of long trainings."""
        return self.setting.declared.prefix(self.steps)

    @cached_property
    def share(self) -> float:
        """Weight of a batch of long trainings, if a one-step batch has weight 1. It minimises the sum's variance."""
        weights = self.declared.weights
        return float(np.sum(weights)) ** 2 / float(np.sum(weights**2)) / self.steps

    @property
    def trials(self) -> float:
        """The weighted number of batches that may contain the canary."""
        return self.share * self.steps * len(self.totals) + len(self.hits)

    @cached_property
    def is_whole(self) -> bool:
        """True if every total is a whole number of batches, once the effect of curvature is allowed for."""
        return self._whole is not None

    @cached_property
    def values(self) -> FloatArray:
        """Whole numbers of batches if they are known, otherwise totals."""
        return self.totals if self._whole is None else self._whole

    @cached_property
    def _whole(self) -> FloatArray | None:
        """Whole numbers of batches, or None if curvature hides them.

        If curvature removes at most a share c of every effect, numbers below 1 / c are certain. A seed with one batch
        shows the share. Larger numbers are known if all totals are whole. But if all seeds have the same number, this
        may be due to curvature, unless the number is 1 or the expected one.
        """
        if not self.declared.is_plain:
            return None
        allowed, near = self.setting.allowances, np.round(self.totals)
        some, expected = np.unique(near[near > 0.0]), round(float(self.declared.rates.sum()))
        if np.all(np.abs(self.totals - near) < allowed.whole) and (len(some) != 1 or some[0] in (1.0, expected)):
            return near
        above = np.maximum(np.ceil(self.totals - allowed.whole), 0.0)
        lost = np.where(above > 0.0, above - self.totals, 0.0) <= allowed.curvature * above
        return above if np.all(lost & (above * allowed.curvature < 1.0)) and np.any(above == 1.0) else None

    def draw(self, draws: int, factor: float = 1.0) -> tuple[FloatArray, FloatArray]:
        """Draw the sum over all batches, and the sum over one-step trainings, at a multiple of the declared rate."""
        rng, scale = np.random.default_rng(0), float(np.mean(self.declared.weights))
        totals = self.declared.with_rate(factor).total_weights(rng, draws, len(self.totals)) / scale
        hits = rng.binomial(len(self.hits), min(1.0, float(self.declared.rates[0]) * factor), draws)
        return self.share * totals + hits, hits.astype(np.float64)

    @property
    def draws(self) -> int:
        """Number of draws. One draw is expected beyond each quantile of a row's error."""
        return int(np.ceil(2.0 / self.setting.error))


def rate_row(counts: Counts, models_for: Callable[[int], int]) -> Row:
    """Return the row of the sample rate. ``models_for(pairs)`` is the number of models for a number of pairs."""
    if counts.declared.run.batches_per_epoch is not None:
        counts = replace(counts, hits=np.zeros(0))  # only the totals of whole epochs are certain
    setting, declared, trials = counts.setting, counts.declared, counts.trials
    allowed = setting.allowances
    rate = min(1.0, float(declared.weights @ declared.rates) / float(declared.weights.sum()))
    sums, hits = counts.draw(counts.draws)
    found = float(counts.share * counts.values.sum() + counts.hits.sum())
    least, most = np.quantile(sums, (setting.error / 2.0, 1.0 - setting.error / 2.0))
    low, high = (found - (most - sums.mean())) / trials, (found + (sums.mean() - least)) / trials
    few = found
    if not counts.is_whole and found:  # curvature may have removed any part of the effects
        few, least = float(counts.hits.sum()), np.quantile(hits, setting.error / 2.0)
    row = Row(RATE, None, found / trials, rate, max(0.0, low), min(1.0, high), "ok")
    slack = allowed.exact * found
    if found - slack > most or few + slack < least:
        return row.fault(_rate_advice(counts, found / trials, rate))
    if declared.run.batches_per_epoch is not None:
        return row.finds("an epoch without the canary")

    def is_found(factor: float) -> bool:
        others, other_hits = counts.draw(_DRAWS, factor)
        fewer = others if counts.is_whole else other_hits
        return bool(np.mean((others > most) | (fewer < least)) >= allowed.power)

    top = 1.0 / float(declared.rates.max())
    up = next((each for each in _FACTORS if each <= top and is_found(each)), np.inf)
    down = next((each for each in _FACTORS if is_found(1.0 / each)), np.inf)
    row = row.finds(" or ".join(f"rate {s} {each:g}" for s, each in (("x", up), ("/", down)) if each < np.inf))
    if (up if allowed.rate <= top else down) <= allowed.rate:
        return row
    pairs = int(np.ceil((trials_for_rate(setting, rate) - len(counts.hits)) / (counts.share * counts.steps)))
    is_enough = allowed.rate <= top or counts.is_whole  # otherwise more models do not help: curvature hides batches
    needs = f"{models_for(max(len(counts.totals) + 1, pairs))} models" if is_enough else "one-step models"
    return row.undecided(f"too few batches to detect {allowed.rate:g} times the rate: use more models or steps", needs)


def _rate_advice(counts: Counts, measured: float, rate: float) -> str:
    if not measured:
        return "the canary is in no batch; check whether batches are drawn from all data, including the canary's place"
    if measured > 1.0 - counts.setting.allowances.pattern:
        return "the canary is in every batch; check how batches are drawn"
    if counts.is_whole and counts.values.any() and not np.any(counts.values % 2):
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


# Presence: whether the canary was in any batch of a training. Neither curvature nor Adam hides this.


def epoch_seeds(setting: Setting) -> int:
    """Return the number of one-epoch trainings that tell independent from shuffled batches."""
    declared = setting.declared.prefix(setting.declared.epoch)
    return trials_to_tell(setting, declared.presence, declared.other_sampling().presence)


def epoch_row(setting: Setting, taken: BoolArray, steps: int) -> Row:
    """Return the row of the share of one-epoch trainings that used the canary. Shuffled batches always use it."""
    declared = setting.declared.prefix(steps)
    return _presence_row(SPREAD, setting, taken, declared, declared.other_sampling(), declared.other)


def presence_row(setting: Setting, taken: BoolArray, steps: int) -> Row:
    """Return the row of the share of trainings that used the canary, compared with the probability of any use."""
    declared, factor = setting.declared.prefix(steps), setting.allowances.rate
    return _presence_row(RATE, setting, taken, declared, declared.with_rate(factor), f"rate x {factor:g}")


def _presence_row(
    name: str, setting: Setting, taken: BoolArray, declared: Declared, other: Declared, words: str
) -> Row:
    inside, seeds, chance = int(np.count_nonzero(taken)), len(taken), declared.presence
    low, high = _limits(setting, seeds, chance)
    if low <= inside <= high and _power(setting, seeds, chance, other.presence) < setting.allowances.power:
        return not_checked(name, f"too few batches and models to detect {words}")
    why = (
        f"too {'many' if inside > high else 'few'} of {seeds} models of {declared.run.steps} steps used the canary; "
        f"check the sample rate, and whether batches are drawn by {declared.words}, independently for every seed"
    )
    if name == SPREAD and inside == seeds:
        why = _once(declared)
    numbers = inside / seeds, chance, low / seeds, high / seeds
    return judged(name, numbers, not low <= inside <= high, why, words)


def spread_row(counts: Counts) -> Row:
    """Return the row of the range of the number of batches with the canary over seeds.

    If each epoch uses each example once, the range is 0 after whole epochs, and at most 1 otherwise. For independent
    batches, the probability of such a range is at most the sum, over all numbers, of the probability that all seeds
    have this number or the number before it.
    """
    setting, declared, seeds = counts.setting, counts.declared, len(counts.totals)
    if declared.run.batches_per_epoch is not None or declared.is_certain or declared.run.min_separation > 1:
        return not_checked(SPREAD, "the declared sampling uses all examples about equally often")
    if counts.steps < declared.epoch or not counts.is_whole or np.ptp(declared.rates):
        return not_checked(SPREAD, "it needs trainings of one epoch: let the trainer accept the number of steps")
    chances = binom.pmf(np.arange(counts.steps + 1), counts.steps, declared.rates[0])
    most = 0.0 if counts.steps % declared.epoch == 0 else 1.0
    if float(np.sum((chances + most * np.append(0.0, chances[:-1])) ** seeds)) > setting.error:
        return not_checked(SPREAD, "too few models to detect shuffled batches")
    found = float(np.ptp(counts.values))
    return judged(SPREAD, (found, None, found, found), found <= most, _once(declared), "shuffled batches")


def _once(declared: Declared) -> str:
    return (
        "the canary is in equally many batches at every seed, as with a shuffled loader or balls in bins; check "
        f"whether batches are drawn by {declared.words}, independently for every seed"
    )


# One step: copies of the canary in a batch, and noise that depends on the batch.


def _chance_of_copies(rate: float) -> float:
    """Return the probability of several copies in a batch with at least one, for batches drawn with replacement.

    The number of copies has a Poisson distribution.
    """
    return float(1.0 - rate * np.exp(-rate) / -np.expm1(-rate))


def seeds_for_copies(setting: Setting, rate: float) -> float:
    """Return the number of seeds that show copies, with half of the allowed misses."""
    missed = (1.0 - setting.allowances.power) / 2.0
    return float(np.log(missed) / np.log1p(-_chance_of_copies(rate)) / rate)


def copies_row(setting: Setting, hits: FloatArray) -> Row:
    """Return the row of the largest number of copies of the canary in one batch. Two show drawing with replacement."""
    rate, inside = float(setting.declared.rates[0]), int(np.count_nonzero(hits > 0.5))
    if not inside:
        return not_checked(COPIES, "the canary was in no batch of one step")
    most = float(hits.max())
    why = "the canary was in one batch several times; check whether batches are drawn with replacement"
    row = judged(COPIES, (most, 1.0, most, most), most > 1.5, why, "sampling with replacement")
    if row.status == "ok" and (1.0 - _chance_of_copies(rate)) ** inside > 1.0 - setting.allowances.power:
        seeds = seeds_for_copies(setting, rate)
        return row.skipped(f"about {seeds:.0f} one-step pairs are needed to detect sampling with replacement")
    return row


def keys_row(setting: Setting, models: FloatArray, taken: BoolArray) -> Row:
    """Return the row of the largest difference of a parameter's noise between seeds with and without the canary.

    If one random key draws both noise and batches, the noise of a parameter tells which examples are in the batch.
    """
    found, inside = models[: len(taken), setting.columns], int(taken.sum())
    if setting.declared.run.sampling not in ("poisson", "balls-in-bins"):
        return not_checked(KEYS, "the size of other batches depends on the canary")
    if min(inside, len(taken) - inside) < 3:
        return not_checked(KEYS, "the canary was in too few or too many one-step batches")
    around = (found - found.mean(axis=0)) / found.std(axis=0, ddof=1).clip(1e-300)
    scale = np.sqrt(1.0 / inside + 1.0 / (len(taken) - inside))
    limit = float(norm.isf(setting.error / (2.0 * found.shape[1])))
    # The mean of a normal draw below its quantile at the rate. With one key, this is the difference.
    rate = inside / len(taken)
    mean = float(norm.pdf(norm.ppf(rate))) / rate / (1.0 - rate)
    if mean / scale < limit + float(norm.ppf(setting.allowances.power)):
        return not_checked(KEYS, "more one-step pairs are needed to detect one key for noise and batches")
    best = float(np.max(np.abs(around[taken].mean(axis=0) - around[~taken].mean(axis=0)))) / float(scale)
    why = "the noise of a parameter tells whether the canary is in the batch; check whether one key or seed draws both"
    return judged(KEYS, (best, 0.0, 0.0, limit), best > limit, why, "one key for both")


# Worlds that do not share randomness: the canary's effect is hidden in the noise of two models.

UNSHARED = (
    "Models with and without a canary do not share noise and batches. Draw the canary's place in both worlds, so that "
    "random numbers are the same and the noise does not hide the effect of the canary."
)
TINY_INSTEAD = (
    "Models with and without a canary do not share noise and batches, but models with different canaries do. So "
    "canaries are compared with a tiny one, and division by the actual batch size is not checked. Draw the canary's "
    "place in both worlds to check it."
)


def unshared_rows(setting: Setting, along: FloatArray, steps: int, variance: float, clipping: str) -> list[Row]:
    """Return rows of the largest and of the mean displacement along a huge canary.

    ``along`` has one number for each seed, in clipping norms. ``variance`` is the variance between models without a
    canary. The row ``clipping`` is only for one step.
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
            row = row.undecided("the canary may have been in no batch", "more models")
        rows.append(row)
    mean = float(weights @ declared.rates)
    error = float(np.sqrt((noise + np.sum(weights**2 * declared.rates)) / seeds)) / mean
    share, limit = float(along.mean()) / mean, float(norm.isf(setting.error / 2.0)) * error
    factor = 1.0 + limit + float(norm.ppf(allowed.power)) * error
    row = Row(RATE, None, share, 1.0, max(0.0, share - limit), share + limit, "ok", "", f"rate x {factor:.2g}")
    # Curvature of several steps may have removed any part of the effect.
    if share - 1.0 > limit + allowed.curvature or (steps == 1 and 1.0 - share > limit):
        return [
            *rows,
            row.fault("the effect of canaries does not match the sample rate and the clipping norm; check both"),
        ]
    if factor > allowed.rate:
        row = row.undecided("noise hides how often the canary is in a batch", "shared randomness")
    return [*rows, row]
