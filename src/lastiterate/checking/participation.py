"""How often the canary was in a batch: counted by its effect, where every step counts alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import beta, binom, norm

from lastiterate.checking.canary_effects import Effect, Fit, fit, fit_freely
from lastiterate.checking.check_result import Row, Status, cannot_tell, models_for, not_checked
from lastiterate.checking.declared import Declared
from lastiterate.checking.optimizer_effect import weighted_spread_row
from lastiterate.common.types import FloatArray

RATE, SPREAD = "participation", "participation over seeds"
_LOST = "the effect of the canary is no sum of the weights of its batches, by curvature or else; train for fewer steps"
_APART = "batches keep an example apart, so that they depend on each other"
_KEPT = 0.6  # the least of an effect that curvature leaves, where the sums of weights lie too close to tell
_ACCIDENT = 3e-4  # probability with which curvature makes a count as good as whole that is not
_TELLS = 5.0  # an interval of the rate that ends above so many times the declared one tells nothing


@dataclass(frozen=True)
class Counts:
    """How often the canary was in, for each seed: at least, and at most if curvature took some of its effect."""

    least: tuple[int, ...]
    most: tuple[int, ...]


def participation_rows(effects: Sequence[Effect], declared: Declared, clip: float, error: float) -> list[Row]:
    """How often the canary was in, and how much that differs from seed to seed."""
    rate = float(declared.rates.mean())
    if not all(effect.shared for effect in effects):
        why = "models with and without a canary do not share noise and batches, so that its batches cannot be counted"
        return [cannot_tell(RATE, rate, why), not_checked(SPREAD, why)]
    if not declared.is_plain:
        spread = weighted_spread_row(SPREAD, effects, declared, clip, error)
        if declared.run.min_separation > 1:
            spread = not_checked(SPREAD, _APART)
        return [_weighted_row(effects, declared, clip, error), spread]
    counts = _counted(effects, declared, clip)
    if counts is None:
        why = "effects of the canary are no multiples of a step's"
        return [not_checked(RATE, why), not_checked(SPREAD, why)]
    if declared.is_certain or declared.run.sampling == "shuffled":
        return [_fixed_row(effects, counts, declared, clip), not_checked(SPREAD, "batches do not differ so")]
    whole = all(fit_freely(effect, declared, clip).is_close for effect in effects if effect.took_part)
    row = _rate_row(counts, declared, rate, error / 2.0)
    if row.status == "fault" and row.high is not None and row.high < rate and not whole:
        row = replace(row, status="cannot tell", advice=_LOST)
    if declared.run.min_separation > 1:
        return [row, not_checked(SPREAD, _APART)]
    return [_in_pairs(row, counts, declared, error / 2.0), _spread_row(counts, declared, error)]


def _counted(effects: Sequence[Effect], declared: Declared, clip: float) -> Counts | None:
    least, most = [], []
    for effect in effects:
        if not effect.took_part:
            least.append(0)
            most.append(0)
            continue
        found = fit_freely(effect, declared, clip)
        if found.sum is None or not 0.3 <= found.ratio <= 1.3:
            return None
        least.append(max(1, round(effect.along / clip / found.near / declared.weights[0])))
        most.append(max(round(found.most / declared.weights[0]), least[-1]))
    return Counts(tuple(least), tuple(most))


def _rate_row(counts: Counts, declared: Declared, rate: float, error: float) -> Row:
    """The rate by its exact interval; if rates differ by step counts are less spread than that (Hoeffding 1956)."""
    trials = declared.run.steps * len(counts.least)
    least, most = sum(counts.least), sum(counts.most)
    # Too many batches are a leak, too few are not: they have most of the error.
    low = float(beta.ppf(0.8 * error, least, trials - least + 1)) if least else 0.0
    high = float(beta.isf(0.2 * error, most + 1, trials - most)) if most < trials else 1.0
    status: Status = "ok"
    if not low <= rate <= high:
        status = "fault"
    elif low <= 0.0 and high > min(_TELLS * 2.0 * rate, 0.99):
        status = "cannot tell"
    much = least / trials > rate
    advice = {
        "ok": _unexcluded(declared.run.steps, rate, high, error),
        "fault": "the canary is in "
        + ("too many batches, or twice in one" if much else "too few batches")
        + ": look at the sample rate, and at how batches are drawn",
        "cannot tell": "too few batches to tell: more models, or more steps",
    }[status]
    return Row(RATE, None, least / trials, rate, low, high, status, advice)


def _unexcluded(steps: int, rate: float, high: float, error: float) -> str:
    """What else would be ok as well, and how many models would tell it."""
    if high < 2.0 * rate or rate > 0.5:
        return ""
    deviations = float(norm.isf(0.8 * error)) * np.sqrt(rate * (1.0 - rate)) + np.sqrt(2.0 * rate * (1.0 - rate))
    seeds = int(np.ceil((deviations / rate) ** 2 / steps)) + 1
    return f"twice the rate is not excluded: that takes about {models_for(seeds)} models, or more steps"


def _in_pairs(row: Row, counts: Counts, declared: Declared, error: float) -> Row:
    """The row, or a fault, if every count is even: what counts one is then counted twice.

    Given that a seed's count is not zero, it is even with a probability that follows from the binomial law.
    """
    some = [count for count in counts.least if count]
    rate, steps = float(declared.rates.mean()), declared.run.steps
    if row.status == "fault" or counts.least != counts.most or np.ptp(declared.rates) or any(n % 2 for n in some):
        return row
    if declared.run.sampling != "poisson" or not some or not 0.0 < rate < 1.0:
        return row
    none = (1.0 - rate) ** steps
    even = ((1.0 + (1.0 - 2.0 * rate) ** steps) / 2.0 - none) / (1.0 - none)
    if even ** len(some) > error:
        return row
    why = (
        "the effect of the canary is always that of an even number of steps: look whether it is twice in a batch, and "
        "whether the learning rate is twice the declared one"
    )
    return Row(RATE, None, row.measured, rate, row.low, row.high, "fault", why)


def _spread_row(counts: Counts, declared: Declared, error: float) -> Row:
    """The range of counts over seeds: none, if each example is used equally often; exact for independent batches."""
    seeds = len(counts.least)
    rate = float(declared.rates.mean())
    if seeds < 2 or counts.least != counts.most or np.ptp(declared.rates) or not 0.0 < rate < 1.0:
        return not_checked(SPREAD, "counts are not known well enough")
    found = max(counts.least) - min(counts.least)
    law = _range_law(declared.run.steps, rate, seeds)
    # Too little spread is what matters: it has most of the error.
    low, high = int(np.searchsorted(law, 0.9 * error)), int(np.searchsorted(law, 1.0 - 0.1 * error))
    expected = float(np.sum(1.0 - law))
    status: Status = "fault" if found < low or found > high else "ok"
    less = found < low
    advice = (
        f"the canary is in {'as many' if less else 'much more or less'} batches "
        f"{'at every seed' if less else 'from seed to seed'}: look whether batches are drawn by "
        f"{declared.run.sampling} sampling"
    )
    return Row(SPREAD, None, float(found), expected, low, high, status, advice if status == "fault" else "")


def _range_law(steps: int, rate: float, seeds: int) -> FloatArray:
    """P(range <= r) of independent binomial counts, for r = 0, 1, ..."""
    least, most = (int(end) for end in binom.ppf([1e-15, 1.0 - 1e-15], steps, rate))
    below = binom.cdf(np.arange(least - 1, most + 1), steps, rate)
    law = []
    for width in range(most - least + 1):
        ends = np.minimum(np.arange(len(below) - 1) + 1 + width, len(below) - 1)
        law.append(float(np.sum((below[ends] - below[:-1]) ** seeds - (below[ends] - below[1:]) ** seeds)))
    return np.minimum(np.maximum.accumulate(law), 1.0)


def _fixed_row(effects: Sequence[Effect], counts: Counts, declared: Declared, clip: float) -> Row:
    """In every batch, or once in every epoch: the same at every seed."""
    fits = [fit(effect, declared, clip) for effect in effects]
    steps = declared.run.steps
    rates = [count / steps for count in (*counts.least, *counts.most)]
    measured = float(np.mean([count / steps for count in counts.least]))
    rate = float(declared.rates.mean())
    never = declared.sums is not None and not declared.sums.all()
    explained = [each.explained or (never and not one.took_part) for one, each in zip(effects, fits, strict=True)]
    if all(explained):
        return Row(RATE, None, rate, rate, rate, rate, "ok")
    free = [fit_freely(effect, declared, clip) for effect in effects]
    others = [(one, other) for fine, one, other in zip(explained, effects, free, strict=True) if not fine]
    away = all(
        not one.took_part or (other.is_close and 2.0 * steps * abs(other.ratio - 1.0) < _ACCIDENT)
        for one, other in others
    )
    often = "every batch" if declared.is_certain else "one batch of every epoch"
    if away:
        why = f"the canary must be in {often}, but was not: look at how batches are drawn"
        return Row(RATE, None, measured, rate, min(rates), max(rates), "fault", why)
    return Row(RATE, None, measured, rate, min(rates), max(rates), "ok" if _kept(fits) else "cannot tell", _LOST)


def _kept(fits: Sequence[Fit]) -> bool:
    return all(_KEPT < each.ratio <= 1.0 + each.slack for each in fits)


def _weighted_row(effects: Sequence[Effect], declared: Declared, clip: float, error: float) -> Row:
    """The mean of the weights of the canary's batches, by Bernstein's inequality; shuffled: by the sums there are."""
    weights, rates = declared.weights, declared.rates
    total = declared.most
    rate = float((weights * rates).sum()) / total
    seeds = len(effects)
    summed = sum(effect.along for effect in effects) / clip
    if declared.is_certain or declared.run.sampling == "shuffled":
        never = declared.sums is not None and not declared.sums.all()
        fits = [fit(effect, declared, clip) for effect in effects if effect.took_part or not never]
        if not fits:
            return cannot_tell(RATE, rate, "the canary was in no batch")
        ratios = [each.ratio for each in fits]
        status: Status = "ok" if _kept(fits) else "cannot tell"
        low, high = min(ratios) * rate, max(ratios) * rate
        return Row(RATE, None, float(np.mean(ratios)) * rate, rate, low, high, status, "" if status == "ok" else _LOST)
    reach = declared.reach(seeds, error)
    ends = summed, summed / _KEPT
    low, high = (min(ends) - reach) / seeds / total, (max(ends) + reach) / seeds / total
    measured = summed / seeds / total
    if low <= rate <= high:
        return Row(RATE, None, measured, rate, low, high, "ok")
    why = (
        "the batches of the canary have another share of all weights than declared: look at how batches are drawn, at "
        "momentum, decay and the schedule"
    )
    # Curvature may have taken more than is allowed for: too little is no proof, too much is.
    return Row(RATE, None, measured, rate, low, high, "fault" if low > rate else "cannot tell", why)
