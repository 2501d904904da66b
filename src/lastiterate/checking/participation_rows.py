"""Participation: how often the canary is in a batch, from its effects and from many draws of the declared sampling.

A statistic of the training is compared with the same statistic of simulated trainings: the test is exact for any
weights and any sampling (Monte Carlo test, Barnard 1963).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.stats import binom, norm

from lastiterate.checking.check_result import Row, cannot_tell, judged, not_checked
from lastiterate.checking.trainings import Setting
from lastiterate.common.types import BoolArray, FloatArray

RATE, SPREAD, COPIES, KEYS = "participation", "participation over seeds", "copies in a batch", "noise and batches"
_MOST_DRAWS, _DRAWS = 200_000, 1000  # of the null, whose quantiles are far out, and of a fault
_FACTORS = (1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0)


@dataclass(frozen=True, eq=False)
class Counts:
    """The number of batches with the canary, in steps of average weight.

    Attributes:
        totals: for each seed of the whole training.
        steps: number of steps of these trainings.
        hits: for each one-step training, in addition.
    """

    setting: Setting
    totals: FloatArray
    steps: int
    hits: FloatArray

    @cached_property
    def is_whole(self) -> bool:
        """True if all totals are whole numbers of batches, up to a loss by curvature."""
        return self._whole is not None

    @cached_property
    def values(self) -> FloatArray:
        """Numbers of batches if they are known, else totals."""
        return self.totals if self._whole is None else self._whole

    @cached_property
    def _whole(self) -> FloatArray | None:
        """Whole numbers to which no total is too close from above, and none too far from below.

        If curvature takes at most a share c of every effect, numbers below 1 / c cannot be mistaken. A seed with one
        batch shows the share.
        """
        if not self.setting.declared.prefix(self.steps).is_plain:
            return None
        near = np.round(self.totals)
        some, expected = np.unique(near[near > 0.0]), round(float(self.setting.declared.rates.mean()) * self.steps)
        # One number at all seeds may be an accident of curvature, unless it is 1 or the expected number.
        if np.all(np.abs(self.totals - near) < self.setting.allowances.whole) and (
            len(some) != 1 or some[0] in (1.0, expected)
        ):
            return near
        share, above = self.setting.allowances.curvature, np.ceil(self.totals - self.setting.allowances.whole)
        taken = np.where(above > 0.0, above - self.totals, 0.0) / np.maximum(above, 1.0)
        clear = np.all(taken <= share) and np.all(above < 1.0 / share) and np.any(above == 1.0)
        return above if clear else None

    def draw(
        self, draws: int, factor: float = 1.0, sampling: str | None = None, seeds: int = 0
    ) -> tuple[FloatArray, ...]:
        """Draw totals of each seed, and the sum of hits, of another rate or sampling if given."""
        rng, declared = np.random.default_rng(0), self.setting.declared.prefix(self.steps)
        scale = float(np.mean(declared.weights))
        totals = declared.total_weights(rng, (draws, seeds or len(self.totals)), factor, sampling) / scale
        rate = min(1.0, float(declared.rates[0]) * factor)
        return totals, rng.binomial(len(self.hits), rate, draws).astype(np.float64)

    @property
    def draws(self) -> int:
        """Number of draws that a quantile at the error of a row takes."""
        return int(min(_MOST_DRAWS, np.ceil(2.0 / self.setting.error)))


def participation_rows(counts: Counts, models_for: Callable[[int], int]) -> list[Row]:
    """Return the rows of the rate and of its spread over seeds; ``models_for(pairs)`` is how many models pairs take."""
    setting = counts.setting
    declared = setting.declared.prefix(counts.steps)
    rate = min(1.0, float(declared.weights @ declared.rates) / float(declared.weights.sum()))
    # The weights of least variance: steps of unequal weight count less.
    share = float(np.sum(declared.weights)) ** 2 / float(np.sum(declared.weights**2)) / counts.steps
    trials = share * counts.steps * len(counts.totals) + len(counts.hits)
    found = float(share * counts.values.sum() + counts.hits.sum())
    totals, hits = counts.draw(counts.draws)
    sums = share * totals.sum(axis=1) + hits
    # Too many batches are a leak, too few are not: they have most of the error.
    least, most = np.quantile(sums, (0.2 * setting.error, 1.0 - 0.8 * setting.error))
    if not counts.is_whole and found:  # curvature may have taken any part of the effects
        least = np.quantile(hits, 0.2 * setting.error)
    exact = setting.allowances.exact * found
    low, high = (found - (most - sums.mean())) / trials, (found + (sums.mean() - least)) / trials
    ends = max(0.0, low), min(1.0, high)
    outside = _outside(counts, totals)
    measured = found / trials
    row, spread = Row(RATE, None, measured, rate, *ends, "ok"), _spread_row(counts, totals, models_for)
    few = found if counts.is_whole else float(counts.hits.sum())
    if found - exact > most or few + exact < least or (not found and sums.min() > 0.0) or outside:
        return [replace(row, status="fault", advice=_rate_advice(counts, measured, rate)), spread]
    words, is_found = _smallest_rates(counts, share, least, most)
    if is_found:
        return [replace(row, smallest_fault=words), spread]
    pairs = int(np.ceil((trials_for_rate(setting, rate) - len(counts.hits)) / (share * counts.steps)))
    needs = f"{models_for(max(len(counts.totals) + 1, pairs))} models" if allowed_rate(counts) else "one-step models"
    why = f"too few batches to tell {setting.allowances.rate:g} times the rate: more models, or more steps"
    return [replace(row, status="cannot tell", advice=why, smallest_fault=words, needs=needs), spread]


def allowed_rate(counts: Counts) -> bool:
    """Return whether the stated rate exists, so that more models would tell it whatever curvature takes."""
    return counts.setting.allowances.rate * float(counts.setting.declared.rates.max()) <= 1.0 or counts.is_whole


def _outside(counts: Counts, totals: FloatArray) -> bool:
    """Return whether a seed has a total that the declared sampling cannot have, as that of whole epochs."""
    exact = counts.setting.allowances.exact * np.maximum(1.0, np.abs(counts.values))
    if counts.setting.declared.run.sampling not in ("shuffled", "full"):
        return False
    below = counts.values + exact < (totals.min() if counts.is_whole else np.minimum(exact, totals.min()))
    return bool(np.any(below | (counts.values - exact > totals.max())))


def _rate_advice(counts: Counts, measured: float, rate: float) -> str:
    if not measured:
        return "the canary is in no batch: look whether batches are drawn from all data, and whether its place is drawn"
    if measured > 0.98:
        return "the canary is in every batch: look at how batches are drawn"
    if counts.is_whole and counts.values.any() and not np.any(counts.values % 2):
        return "the canary counts twice: look whether it is twice in a batch, or the learning rate is doubled"
    more = (
        "too many batches, or twice in one" if measured > rate else "too few batches, as if some examples were dropped"
    )
    return f"the canary is in {more}: look at the sample rate, and at how batches are drawn"


def _smallest_rates(counts: Counts, share: float, least: float, most: float) -> tuple[str, bool]:
    """Return the smallest factors of the rate that are found, and whether the stated fault is."""
    allowed = counts.setting.allowances
    rate = float(counts.setting.declared.rates.max())

    def power(factor: float) -> float:
        totals, hits = counts.draw(_DRAWS, factor)
        sums = share * totals.sum(axis=1) + hits
        return float(np.mean((sums > most) | ((sums if counts.is_whole else hits) < least)))

    up = next((each for each in _FACTORS if each * rate <= 1.0 and power(each) >= allowed.power), None)
    down = next((each for each in _FACTORS if power(1.0 / each) >= allowed.power), None)
    words = " or ".join(f"rate {sign} {each:g}" for sign, each in (("x", up), ("/", down)) if each is not None)
    if counts.setting.declared.run.sampling == "shuffled":
        return "an epoch without the canary", True
    if allowed.rate * rate > 1.0:  # no such rate exists
        return words, down is not None and down <= allowed.rate
    return words, up is not None and up <= allowed.rate


def trials_for_rate(setting: Setting, rate: float) -> float:
    """Return how many batches tell the stated rate from the declared one, by the normal law and with some to spare."""
    allowed = setting.allowances
    other = allowed.rate * rate if allowed.rate * rate <= 1.0 else rate / allowed.rate
    needed = float(norm.isf(0.8 * setting.error)) * np.sqrt(rate * (1.0 - rate))
    needed += float(norm.ppf(allowed.power)) * np.sqrt(other * (1.0 - other))
    return float(allowed.spare * (needed / (other - rate)) ** 2)


def _spread_row(counts: Counts, totals: FloatArray, models_for: Callable[[int], int]) -> Row:
    """Return the dispersion of totals over seeds: too little if each example is used equally often."""
    setting, run = counts.setting, counts.setting.declared.run
    if setting.declared.is_certain or run.sampling == "shuffled" or run.min_separation > 1:
        return not_checked(SPREAD, "batches do not differ so")
    if counts.steps * float(setting.declared.rates[0]) < 0.999:
        return not_checked(SPREAD, "the training is shorter than an epoch")
    if len(counts.totals) < 3:
        return cannot_tell(SPREAD, None, "too few models", f"{models_for(8)} models")
    # Curvature takes from variance and mean alike. Factors in [0, 1] that fall geometrically leave half of their ratio.
    left = 1.0 if counts.is_whole else 0.5
    null = _dispersion(totals)
    low, high = np.quantile(null, (0.9 * setting.error, 1.0 - 0.1 * setting.error))
    low *= left
    found = float(_dispersion(counts.values[None])[0])
    numbers = found, float(null.mean()), float(low), float(high)
    if found < low or found > high:
        how = "in as many batches at every seed, as by a shuffled loader"
        if found > high:
            how = "in much more or less batches from seed to seed"
        why = f"the canary is {how}: look whether batches are drawn by {run.sampling} sampling, anew for every seed"
        return Row(SPREAD, None, *numbers, "fault", why, "shuffled batches")
    for factor in (1, 1.5, 2, 3, 4, 6, 8):
        seeds = int(np.ceil(factor * len(counts.totals)))
        if factor > 1:
            null = _dispersion(counts.draw(counts.draws // 4, seeds=seeds)[0])
        limit = left * np.quantile(null, 0.9 * setting.error)
        shuffled = _dispersion(counts.draw(_DRAWS, sampling="shuffled", seeds=seeds)[0])
        if np.mean(shuffled < limit) >= setting.allowances.power:
            if factor == 1:
                return Row(SPREAD, None, *numbers, "ok", "", "shuffled batches")
            why, needs = "too few models to tell shuffled batches", f"{models_for(seeds)} models"
            return Row(SPREAD, None, *numbers, "cannot tell", why, "", needs)
    return not_checked(SPREAD, "weights of steps differ so that shuffled batches do not show")


def _dispersion(totals: FloatArray) -> FloatArray:
    """Return the variance over seeds, divided by the mean; 1 - rate for Poisson sampling and equal weights."""
    return np.asarray(totals.var(axis=1, ddof=1) / np.maximum(np.abs(totals.mean(axis=1)), 1e-9))


def epoch_seeds(setting: Setting) -> tuple[int, int]:
    """Return how many seeds tell shuffled batches in trainings of one epoch, and the steps of an epoch."""
    rate = float(setting.declared.rates[0])
    length = max(1, round(1.0 / rate))
    never = max((1.0 - rate) ** length, 1e-300)
    return int(np.ceil(np.log(0.9 * setting.error) / np.log1p(-never))) + 1, length


def epoch_row(setting: Setting, taken: BoolArray, length: int) -> Row:
    """Return how many models of one epoch do not have the canary in any batch: none if data are shuffled."""
    never, seeds = (1.0 - float(setting.declared.rates[0])) ** length, len(taken)
    found = int(np.count_nonzero(~taken))
    low = int(binom.ppf(0.9 * setting.error, seeds, never))
    high = int(binom.isf(0.1 * setting.error, seeds, never))
    why = (
        f"the canary is in {'some' if found < low else 'no'} batch of {length} steps at too many seeds, as by a "
        f"shuffled loader: look whether batches are drawn by {setting.declared.run.sampling} sampling"
    )
    numbers = found / seeds, never, low / seeds, high / seeds
    return judged(SPREAD, numbers, not low <= found <= high, why, "shuffled batches")


def _chance_of_copies(rate: float) -> float:
    """Return the probability of several copies in a batch that has one, if batches are drawn with replacement.

    The number of copies is Poisson's.
    """
    return float(1.0 - rate * np.exp(-rate) / -np.expm1(-rate))


def seeds_for_copies(rate: float) -> float:
    """Return how many seeds show copies with probability 0.95."""
    return float(np.log(0.05) / np.log1p(-_chance_of_copies(rate)) / rate)


def copies_row(setting: Setting, hits: FloatArray) -> Row:
    """Return the most copies of the canary in one batch: two if batches are drawn with replacement."""
    rate = float(setting.declared.rates[0])
    some = hits[hits > 0.5]
    if not len(some):
        return not_checked(COPIES, "the canary was in no batch of one step")
    most = float(some.max())
    twice = _chance_of_copies(rate)
    if most > 1.5:
        why = "the canary was several times in one batch: look whether batches are drawn with replacement"
        return Row(COPIES, None, most, 1.0, most, most, "fault", why)
    if 1.0 - (1.0 - twice) ** len(some) < setting.allowances.power:
        seeds = seeds_for_copies(rate)
        return not_checked(COPIES, f"drawing with replacement would show in about {seeds:.0f} pairs of one step")
    return Row(COPIES, None, most, 1.0, most, most, "ok", "", "sampling with replacement")


def keys_row(setting: Setting, models: FloatArray, taken: BoolArray) -> Row:
    """Return the largest difference of a parameter's noise between seeds with and without the canary in the batch.

    If one key draws both, the noise of a parameter decides which examples are drawn.
    """
    found = models[: len(taken), setting.columns]
    inside = int(taken.sum())
    if setting.declared.run.sampling != "poisson":
        return not_checked(KEYS, "the size of other batches depends on the canary")
    if inside < 3 or len(taken) - inside < 3:
        return not_checked(KEYS, "the canary was in too few, or too many, batches of one step")
    around = (found - found.mean(axis=0)) / found.std(axis=0, ddof=1).clip(1e-300)
    scale = np.sqrt(1.0 / inside + 1.0 / (len(taken) - inside))
    limit = float(norm.isf(setting.error / (2.0 * found.shape[1])))
    # A draw below the rate has this mean, and this is what the difference would be.
    rate = min(max(float(setting.declared.rates[0]), 1e-6), 1.0 - 1e-6)
    mean = float(norm.pdf(norm.ppf(rate))) / rate / (1.0 - rate)
    if mean / scale < limit + 1.0:
        return not_checked(KEYS, "one key for noise and batches would take more pairs of one step to show")
    best = float(np.max(np.abs(around[taken].mean(axis=0) - around[~taken].mean(axis=0)))) / float(scale)
    why = "the noise of a parameter tells whether the canary is in the batch: look whether one key or seed draws both"
    return judged(KEYS, (best, 0.0, 0.0, limit), best > limit, why, "one key for both")


# Worlds that do not share randomness: the canary's effect is one number in the noise of two models.

UNSHARED = (
    "Models with and without a canary do not share noise and batches. Draw the canary's place in both worlds, so that "
    "random numbers are the same: then its effect shows without noise."
)
TINY_INSTEAD = (
    "Models with and without a canary do not share noise and batches, but models with different canaries do: canaries "
    "are compared with a tiny one. Division by the size of the batch that was drawn is not checked. Draw the canary's "
    "place in both worlds to check it, too."
)


def unshared_rows(setting: Setting, ones: FloatArray, totals: FloatArray, ratio: float, clipping: str) -> list[Row]:
    """Return rows of the mean and the largest displacement along a huge canary.

    Args:
        ones: displacement in one step, for each seed, in units of a clipped canary; empty without one-step models.
        totals: displacement in the whole training, in steps of average weight.
        ratio: variance between models over the declared one.
        clipping: name of the row of clipping.
    """
    declared, allowed = setting.declared, setting.allowances
    rows = []
    if len(ones):
        first = declared.prefix(1)
        deviation = float(np.sqrt(2.0 * ratio * first.variance)) / abs(first.step)
        limit = 1.0 + float(norm.isf(setting.error / len(ones))) * deviation
        most, rate = float(ones.max()), float(first.rates[0])
        why = "a large gradient has an effect far above the clipping norm: look where gradients are clipped"
        numbers = most, 1.0, most - deviation, most + deviation
        row = judged(clipping, numbers, most > limit, why, f"norm x {limit + deviation:.2g}")
        if most <= limit and (1.0 - rate) ** len(ones) > 1.0 - allowed.power:
            row = cannot_tell(clipping, 1.0, "the canary may have been in no batch", "more models")
        rows.append(row)
    parts = [(ones, declared.prefix(1))] if len(ones) else []
    found = []
    for values, run in [*parts, (totals, declared)]:
        scale = float(np.mean(run.weights)) * run.run.clip_norm
        mean = float(run.weights @ run.rates) / float(np.mean(run.weights))
        spread = 2.0 * ratio * run.variance / scale**2
        spread += float(np.sum((run.weights / np.mean(run.weights)) ** 2 * run.rates))
        error = float(np.sqrt(spread / len(values)))
        found.append((mean / error, float(values.mean()) / mean, error / mean, run.run.steps == 1))
    _, share, error, is_one = max(found)
    limit = float(norm.isf(setting.error / 2.0)) * error
    rate = float(np.mean(declared.rates))
    factor = 1.0 + limit + error
    words = f"rate x {factor:.2g}" if factor * rate <= 1.0 else ""
    row = Row(RATE, None, share * rate, rate, max(0.0, share - limit) * rate, (share + limit) * rate, "ok", "", words)
    # Curvature of several steps may have taken any part of the effect.
    if share - 1.0 > limit + allowed.curvature or (is_one and 1.0 - share > limit):
        why = "canaries count more, or less, than the rate and the clipping norm say: look at both"
        return [*rows, replace(row, status="fault", advice=why)]
    if factor <= allowed.rate:
        return [*rows, row]
    why = "noise hides how often the canary is in a batch"
    return [*rows, replace(row, status="cannot tell", advice=why, needs="shared randomness")]
