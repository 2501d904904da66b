"""Rows on the noise: its variance, its law, distinct values, reused noise, and the noise of several steps.

One step from fixed initial values has no curvature. Its parameters differ between seeds by the noise and by the batch,
which are independent. So the variance is at least that of the noise, in every direction. Tests for too little noise are
chi-square tests of normal numbers. They are exact, because sampling can only add variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import chi2, norm
from scipy.stats import f as f_law

from lastiterate.checking.check_result import Row, judged, not_checked
from lastiterate.checking.parameters import Parameters
from lastiterate.checking.trainings import Setting
from lastiterate.common.search import first_integer
from lastiterate.common.types import FloatArray

NOISE, EXCESS, WITHOUT, LAW = "noise", "excess noise", "parameters without noise", "law of the noise"
DISTINCT, AGAIN = "distinct values", "noise that is used again"
SEVERAL, LAST, RELEASED = "noise of three steps", "noise of the last step", "noise of all steps"
UNIFORM = 1.8  # kurtosis of the uniform law; that of the normal law is 3, that of Laplace's law 6
ENOUGH = 600  # amount of numbers for which the approximation of Anscombe and Glynn (1983) holds
_MOST_TIMES = 32  # largest multiple of the models that a row may ask for


@dataclass(frozen=True)
class Lower:
    """A one-sided test that a variance is at least the declared one."""

    words: str
    ratio: float
    freedom: int
    error: float

    @property
    def quantile(self) -> float:
        """The lower quantile of the ratio if the variance is the declared one."""
        return float(chi2.ppf(self.error, self.freedom)) / self.freedom

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the ratio. Each end has the error of the test."""
        return self.ratio * self.freedom / float(chi2.isf(self.error, self.freedom)), self.ratio / self.quantile

    def smallest(self, power: float, least: float) -> float:
        """Return the largest share of the declared standard deviation that is found with this power, or 0.

        Sampling is assumed to add as much variance to a faulty training. A ratio below ``least`` is a fault.
        """
        likely = float(chi2.ppf(power, self.freedom)) / self.freedom
        return float(np.sqrt(max(0.0, self.quantile * least / likely - max(0.0, self.ratio - 1.0))))


def freedom_to_see(setting: Setting) -> int:
    """Return the degrees of freedom that find a tensor without noise, if sampling adds little variance."""
    error, ratio = setting.error / len(setting.tensors) / 3.0, 1.0 + setting.allowances.sampling  # up to three tests
    return first_integer(lambda n: Lower("", ratio, n, error).smallest(setting.allowances.power, 1.0) > 0.0, 1, 10**6)


def quiet_view(values: FloatArray) -> FloatArray | None:
    """Return half of the models in the quarter of directions that vary least in the other half.

    The choice does not depend on the returned models, so the law of their noise is unchanged. Directions are
    eigenvectors of the covariance if there are more models than parameters, and otherwise single parameters. Return
    None if there are too few models or parameters.
    """
    chosen, tested = values[::2], values[1::2]
    count = values.shape[1]
    if len(values) < 8 or count < 4:
        return None
    if len(chosen) > count:
        return np.asarray(tested @ np.linalg.eigh(np.cov(chosen, rowvar=False))[1][:, : count // 4], np.float64)
    return np.asarray(tested[:, np.argsort(chosen.var(axis=0), kind="stable")[: count // 4]], np.float64)


def lower_tests(
    models: FloatArray, like: Parameters, tensors: Sequence[int], variance: float, error: float, one_step: bool = True
) -> list[Lower]:
    """Test all parameters, sums over the last axis, and the directions that vary least.

    Gradients of an output layer add up to zero over classes, so these sums show only the noise. After several steps,
    only all parameters together are tested, because curvature may reduce the variance of some parameters.
    """
    columns = np.concatenate([np.arange(like.slices[i].start, like.slices[i].stop) for i in tensors])
    views = [("all parameters", models[:, columns])]
    wide = [i for i in tensors if like.shapes[i] and like.shapes[i][-1] > 1] if one_step else []
    if wide:
        tables = [models[:, like.slices[i]].reshape(len(models), -1, like.shapes[i][-1]) for i in wide]
        sums = [table.sum(axis=2) / np.sqrt(table.shape[2]) for table in tables]
        views.append(("sums over the last axis", np.concatenate(sums, axis=1)))
    quiet = quiet_view(views[0][1]) if one_step else None
    if quiet is not None:
        views.append(("the directions that vary least", quiet))
    return [
        Lower(words, _variance(each) / variance, each.shape[1] * (len(each) - 1), error / len(views))
        for words, each in views
    ]


def _variance(models: FloatArray) -> float:
    return float(models.var(axis=0, ddof=1).mean())


def noise_row(
    setting: Setting,
    models: FloatArray,
    variance: float,
    tensor: int | None = None,
    name: str = NOISE,
    least: float | None = None,
) -> Row:
    """Return the row of too little noise.

    ``least`` is the smallest share of the declared variance that curvature of several steps may leave. It is None for
    one step, which has no curvature.
    """
    allowed, like = setting.allowances, setting.like
    tensors = setting.tensors if tensor is None else (tensor,)
    title = None if tensor is None else like.names[tensor]
    error = setting.error / (1 if tensor is None else len(setting.tensors))
    tests = lower_tests(models, like, tensors, variance, error, one_step=least is None)
    bound = (1.0 if least is None else least) * (1.0 - allowed.exact)
    worst = min(tests, key=lambda test: test.interval[1])
    if worst.interval[1] < bound:
        return Row(name, title, worst.ratio, 1.0, *worst.interval, "fault", _too_little(worst.ratio, setting))
    best = max(tests, key=lambda test: test.smallest(allowed.power, bound))
    share = best.smallest(allowed.power, bound)
    words = f"noise x {np.floor(100 * share) / 100:.2g}" if share > 0.01 else "no noise" if share else ""
    row = Row(name, title, best.ratio, 1.0, *best.interval, "ok", "", words)
    target = allowed.noise if tensor is None else 1e-3  # the stated fault of a tensor is no noise
    if share >= target:
        return row

    def is_enough(factor: int) -> bool:
        return replace(tests[0], freedom=tests[0].freedom * factor).smallest(allowed.power, bound) >= target

    if is_enough(_MOST_TIMES):  # half of the models of the declared length have no canary
        needed = 2 * (len(models) * first_integer(is_enough, 1, _MOST_TIMES) + 1)
        return row.undecided("too few models for so few parameters", f"{needed} models")
    why = (
        f"batches add too much variance: {best.ratio:.3g} times the declared variance in {best.words}; check with "
        "smaller batches or a larger noise multiplier"
    )
    return row.undecided(why, "smaller batches")


def _too_little(ratio: float, setting: Setting) -> str:
    if ratio < 1e-6:
        return "no noise, or the same noise in all models; check where noise is added, and how its generator is seeded"
    return f"too little noise: {diagnosis(ratio, setting)}"


def diagnosis(ratio: float, setting: Setting) -> str:
    """Return the likely cause of a wrong variance, with the factor of the standard deviation."""
    factor, run = float(np.sqrt(ratio)), setting.declared.run
    times = f"{factor:.3g} times the declared standard deviation"
    sigma = float(np.mean(run.noise_multiplier))
    mean = (
        "the learning rate is for the mean of gradients (the run needs the rate for their sum: rate / batch size), or "
        "noise is scaled by the wrong rate"
    )
    causes = [
        (setting.batch_size or 1.0, mean),
        (run.clip_norm, "noise is multiplied by the clipping norm twice, or not at all"),
        (np.sqrt(sigma), "the noise multiplier is used as a variance"),
        (sigma, "the noise multiplier is applied twice, or not at all"),
    ]
    near = setting.allowances.pattern
    for cause, words in causes:
        if abs(np.log(cause)) > near and abs(abs(np.log(factor)) - abs(np.log(cause))) < near:
            return f"{times}; perhaps {words}"
    if ratio > 1.5 and abs(ratio / round(ratio) - 1.0) < near:
        return f"{times}; perhaps noise is added {round(ratio)} times, such as once for each micro-batch"
    if max(factor, 1.0 / factor) > 3.0:
        return f"{times}; if {max(factor, 1.0 / factor):.3g} is about the size of a batch, {mean}"
    return f"{times}; check the noise multiplier and the learning rate"


def excess_row(setting: Setting, models: FloatArray, steps: int) -> Row:
    """Return the row of too much noise, which is not a leak. It is a fault if sampling does not explain the variance.

    One step of Poisson sampling adds at most the square of the clipping norm for each expected example of a batch, in
    all parameters together.
    """
    allowed, declared = setting.allowances, setting.declared.prefix(steps)
    variance, squares = declared.variance, float(np.sum(declared.weights**2)) * declared.run.clip_norm**2
    tests = lower_tests(models, setting.like, setting.tensors, variance, setting.error, one_step=steps == 1)
    least = min(tests, key=lambda test: test.interval[0])
    low, high = least.interval
    if setting.seeded:
        return not_checked(EXCESS, "initial values, and therefore gradients, depend on the seed")
    found = np.sqrt((1.0 + allowed.curvature) / least.quantile)
    row = Row(EXCESS, None, least.ratio, 1.0, low, high, "ok", "", f"noise x {np.ceil(100 * found) / 100:.3g}")
    if low <= 1.0 + allowed.curvature:
        return row
    examples = (low - 1.0) * len(setting.columns) * variance / squares
    known = setting.batch_size if setting.batch_size is not None else allowed.largest_batch
    if examples > known:
        limit = "" if setting.batch_size else f", if batches have at most {known:g} examples (else give batch_size)"
        why = f"too much noise, more than sampling explains{limit}: {diagnosis(least.ratio, setting)}"
        return row.fault(why)
    why = f"{least.ratio:.3g} times the declared variance; batches of {examples:.2g} examples would explain this"
    return row.finds("").skipped(why)


def without_row(setting: Setting, models: FloatArray, variance: float) -> Row:
    """Return the number of parameters whose variance is too small for a parameter with noise, by a union bound."""
    found, freedom = models[:, setting.columns], len(models) - 1
    ratios = found.var(axis=0, ddof=1) / variance
    limit = float(chi2.ppf(setting.error / len(ratios), freedom)) / freedom * (1.0 - setting.allowances.exact)
    count = float(np.count_nonzero(ratios < limit))
    share = np.sqrt(limit * freedom / float(chi2.ppf(setting.allowances.power, freedom)))
    why = "some parameters hardly vary between seeds; check whether noise is added to every parameter of every tensor"
    return judged(WITHOUT, (count, 0.0, count, count), count > 0, why, f"one with noise x {share:.2g}")


# The law of the noise, if sampling adds little variance: kurtosis and distinct values.


def kurtosis_score(kurtosis: float, count: int) -> float:
    """Return the kurtosis of normal numbers as a standard normal score, by Anscombe and Glynn (1983)."""
    mean = 3.0 * (count - 1) / (count + 1)
    variance = 24.0 * count * (count - 2) * (count - 3) / ((count + 1) ** 2 * (count + 3) * (count + 5))
    skew = 6.0 * (count**2 - 5 * count + 2) / ((count + 7) * (count + 9))
    skew *= np.sqrt(6.0 * (count + 3) * (count + 5) / (count * (count - 2) * (count - 3)))
    freedom = 6.0 + 8.0 / skew * (2.0 / skew + np.sqrt(1.0 + 4.0 / skew**2))
    inner = (1.0 - 2.0 / freedom) / (1.0 + (kurtosis - mean) / np.sqrt(variance) * np.sqrt(2.0 / (freedom - 4.0)))
    root = np.cbrt(inner)
    return float((1.0 - 2.0 / (9.0 * freedom) - root) / np.sqrt(2.0 / (9.0 * freedom))) if inner > 0 else np.inf


def law_row(setting: Setting, models: FloatArray, variance: float) -> Row:
    """Return the row of the kurtosis of the noise: small for uniform or cut-off noise, and large for heavy tails.

    If sampling adds a share s of the variance, it changes the kurtosis by its own excess times s^2. The excess is at
    least -2.
    """
    found, extra = models[:, setting.columns], setting.allowances.kurtosis
    quarter = np.argsort(found[::2].var(axis=0), kind="stable")[: max(1, found.shape[1] // 4)]
    views = [found, found[1::2, quarter]] if len(models) >= 8 else [found]
    few = [each for each in views if 0.0 < _variance(each) / variance <= 1.0 + setting.allowances.sampling]
    if not few:
        return not_checked(LAW, "batches add too much variance to see the law of the noise")
    around = few[0] - few[0].mean(axis=0)
    count = int(around.shape[1] * (len(around) - 1))
    measured = float(np.mean(around**4) / np.mean(around**2) ** 2)
    limit = float(norm.isf(setting.error / 2.0))
    half = limit * np.sqrt(24.0 / count)  # the asymptotic variance of a normal kurtosis
    share = max(0.0, 1.0 - variance / _variance(around))
    row = Row(LAW, None, measured, 3.0, measured - half, measured + half, "ok", "", "uniform or Laplace noise")
    spare = float(norm.ppf(setting.allowances.power))
    if count < ENOUGH or kurtosis_score(UNIFORM + 2 * share**2, count) > -limit - spare:
        needed = f"{2 * (int(np.ceil(ENOUGH / around.shape[1])) + 1)} models"
        why = "there are too few numbers to test the law of the noise"
        return row.finds("").undecided(why, needed)
    if kurtosis_score(measured + 2.0 * share**2, count) < -limit:
        why = "noise is not normal, but cut off, uniform, or of few values; check the law that it is drawn from"
        return row.fault(why)
    if kurtosis_score(measured - extra, count) > limit:
        why = "noise has heavier tails than normal noise, like Laplace noise; check the law that it is drawn from"
        return row.fault(why)
    return row


def distinct_row(setting: Setting, models: FloatArray, variance: float) -> Row:
    """Return the row of the smallest number of distinct values of a parameter over seeds.

    Normal noise gives different values. If a standard deviation has r rounding steps, two seeds agree with probability
    at most 0.4 / r. On average m^2 / 5 r of m values are lost, so half of them are lost only if r is far below m.
    """
    found, count = models[:, setting.columns], len(models)
    rounding = 2.0 * setting.like.precision * float(np.abs(found).max())
    if np.sqrt(variance) < count * rounding:
        return not_checked(DISTINCT, "rounding of parameters hides the noise: return more digits")
    distinct = 1 + np.count_nonzero(np.diff(np.sort(found, axis=0), axis=0), axis=0)
    few, least = int(np.count_nonzero(2 * distinct < count)), float(distinct.min())
    why = (
        f"{few} parameters have few distinct values over {count} seeds; check the number type in which noise is drawn "
        "and scaled (float16 underflows)"
    )
    numbers = least, float(count), least, float(count)
    return judged(DISTINCT, numbers, few > 0, why, f"noise of {max(1, count // 4)} values")


def again_row(setting: Setting, models: FloatArray, variance: float) -> Row:
    """Return the row of the largest correlation of the parameters with themselves, shifted by any number of places.

    If the generator is seeded again for each tensor, the shift is the distance of two tensors. Limits follow from
    Fisher's transform of a correlation, by a union bound over shifts. The correlation due to sampling is at most its
    share of the variance. The correlation of reused noise is at least the rest.
    """
    found = models[:, setting.columns]
    count, size = found.shape
    around = found - found.mean(axis=0)
    ratio = _variance(found) / variance
    if size < 4 or not ratio:
        return not_checked(AGAIN, "there are too few parameters, or there is no noise")
    length = 2 ** int(np.ceil(np.log2(2 * size)))
    spectrum = np.abs(np.fft.rfft(around, length, axis=1)) ** 2
    moved = np.arange(1, size)
    products = np.fft.irfft(spectrum.sum(axis=0), length)[moved]
    below = np.cumsum(np.sum(around**2, axis=0))
    scales = np.sqrt(below[size - 1 - moved] * (below[-1] - below[moved - 1]))
    correlations = np.abs(products) / np.maximum(scales, 1e-300)
    trials = np.maximum((size - moved) * (count - 1) - 3.0, 1.0)
    limits = np.tanh(norm.isf(setting.error / (2.0 * len(moved))) / np.sqrt(trials))
    share = max(0.0, 1.0 - 1.0 / ratio)
    allowed = share + setting.allowances.exact + limits
    tested = allowed < 1.0 - share
    if not tested.any():
        return not_checked(AGAIN, "batches add as much variance as the noise, and may correlate")
    best = int(np.argmax(np.where(tested, correlations - allowed, -np.inf)))
    why = (
        f"the noise of a parameter repeats the noise of the parameter {best + 1:,} places before it; check where the "
        "generator is seeded, and whether one draw is used for several tensors or parts"
    )
    value, limit = float(correlations[best]), float(limits[best])
    numbers = value, 0.0, max(0.0, value - limit), min(1.0, value + limit)
    words = f"correlation {min(1.0, float(allowed[best]) + limit):.2g}"
    return judged(AGAIN, numbers, value > float(allowed[best]), why, words)


# Noise of several steps: its growth, the last step, and the noise in the released model.


def several_row(setting: Setting, first: FloatArray, models: FloatArray, steps: int, left: float) -> Row:
    """Return the row of the variance of a few steps divided by that of one step, an F test.

    The ratio shows momentum and repeated noise. ``left`` is the share of a canary's effect that curvature leaves after
    one more step. Curvature leaves the same share of the noise.
    """
    declared, one, allowed = setting.declared.prefix(steps), setting.declared.prefix(1), setting.allowances
    expected = declared.variance / one.variance
    before, after = _variance(first[:, setting.columns]), _variance(models[:, setting.columns])
    if not before:
        return not_checked(SEVERAL, "one step has no noise")
    size = len(setting.columns)
    freedom = size * (len(models) - 1), size * (len(first) - 1)
    low_f, high_f = float(f_law.ppf(setting.error / 2, *freedom)), float(f_law.isf(setting.error / 2, *freedom))
    measured = after / before
    # Shuffled batches do not repeat examples, so their variance need not add up.
    share = max(0.0, 1.0 - one.variance / before) if declared.run.sampling == "shuffled" else 0.0
    parts = (declared.weights * declared.noise) ** 2
    kept = float(np.sum(parts * left ** (2.0 * np.arange(steps)[::-1])) / np.sum(parts))
    # Batches are independent. Gradients that depend on the seed are similar at every step, and add up.
    added, weights = max(0.0, before - one.variance) / before, declared.weights / one.weights[0]
    together = float(weights.sum()) ** 2 if setting.seeded else float(np.sum(weights**2))
    lower = expected * kept * (1.0 - allowed.curvature) * (1.0 - share)
    upper = (expected * (1.0 - added) + together * added) * (1.0 + allowed.curvature)
    words = f"x {lower / expected * low_f:.2g} or x {upper / expected * high_f:.2g}"
    row = Row(SEVERAL, None, measured, expected, measured / high_f, measured / low_f, "ok", "", words)
    if measured / low_f < lower or measured / high_f > upper:
        return row.fault(_several(measured, low_f, high_f, steps))
    if lower * low_f >= allowed.noise**2 * expected:
        return row
    if max(share, 1.0 - kept) > allowed.curvature:
        return not_checked(SEVERAL, "curvature or shuffled batches may reduce the variance")
    return row.undecided(f"too few parameters and models to test the growth of noise in {steps} steps", "more models")


def _several(measured: float, low_f: float, high_f: float, steps: int) -> str:
    """Return the advice, which names a known pattern whose ratio is in the interval of the measured ratio."""
    patterns = {
        float(steps): "as without momentum",
        float(
            steps**2
        ): "as if every step added the same noise; check where its generator is seeded or its key is split",
        float(sum(k * k for k in range(1, steps + 1))): "as if gradients were not set to zero between steps",
        1.0: "as if only one step added noise, or each step subtracted the noise of the step before",
    }
    name = next((words for ratio, words in patterns.items() if low_f <= measured / ratio <= high_f), "")
    where = name or "not as declared; check momentum, averaging, the schedule, and repeated or missing noise"
    return f"{steps} steps have {measured:.3g} times the variance of one step, {where}"


def last_row(setting: Setting, models: FloatArray, before: FloatArray, earlier: FloatArray | None = None) -> Row:
    """Return the row of the noise of the last step, from models of the same seeds that stop one step earlier.

    ``earlier`` models stop two steps earlier and serve to subtract momentum. What is left is the gradient and the noise
    of the last step.
    """
    declared = setting.declared
    moved = models - before
    if earlier is not None:
        moved = moved - declared.last_momentum * (before - earlier)
    if not declared.last_variance:
        return not_checked(LAST, "the last step has no weight")
    row = noise_row(setting, moved, declared.last_variance, None, LAST)
    if row.status == "cannot tell":
        why = "models that stop one step earlier differ by more than one step: they use other random numbers"
        return row.skipped(why)
    return replace(row, advice=f"{row.advice}; check whether the last step differs from others") if row.advice else row


def released_row(setting: Setting, models: FloatArray, left: float, name: str, tensor: int | None = None) -> Row:
    """Return the row of the noise of all steps. It must be at least the share of the noise that curvature leaves.

    Curvature reduces the noise and the effect of the canary by the same share. A canary of random signs shows the mean
    share. The mean square of the share is at least the square of its mean (Jensen). The noise of the last step is
    always left.
    """
    declared = setting.declared
    least = max(declared.last_variance / declared.variance, left**2 * (1.0 - setting.allowances.curvature))
    least = min(1.0, least) ** (1 if tensor is None else 2)  # curvature differs between tensors
    row = noise_row(setting, models, declared.variance, tensor, name, least)
    if row.status != "cannot tell":
        return row
    if name == RELEASED or tensor is not None:
        return row.skipped(row.advice)
    return row.undecided(f"curvature may explain it, or {row.advice}", row.needs or "one-step models")
