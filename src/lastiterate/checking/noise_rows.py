"""The noise of one step: variance, law, distinct values, and numbers that are used again.

One step from fixed initial values has no curvature. Its parameters differ between seeds by the noise and by the batch,
which are independent: the variance is at least that of the noise, in every direction. So tests for too little noise are
exact, whatever sampling adds: chi-square for variances of normal numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import chi2, norm
from scipy.stats import f as f_law

from lastiterate.checking.check_result import Row, Status, not_checked
from lastiterate.checking.parameters import Parameters
from lastiterate.checking.trainings import Setting
from lastiterate.common.types import FloatArray

NOISE, EXCESS, WITHOUT, LAW = "noise", "excess noise", "parameters without noise", "law of the noise"
DISTINCT, AGAIN, TWO = "distinct values", "noise that is used again", "noise in two tensors"
SEVERAL, LAST, RELEASED = "noise of three steps", "noise of the last step", "noise of all steps"
UNIFORM, LAPLACE = 1.8, 6.0  # kurtosis of laws that must be told from the normal law, which has 3
ENOUGH = 600  # numbers whose kurtosis follows Anscombe and Glynn (1983)
_LEAST_SAMPLING = 1.1  # variance over the declared one: sampling of excess kurtosis 50 then adds 0.5 at most
_COARSE = 16.0  # rounding steps in a standard deviation: with fewer, equal values have another cause


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
        """The interval of the ratio; each end has the error of the test."""
        return self.ratio * self.freedom / float(chi2.isf(self.error, self.freedom)), self.ratio / self.quantile

    def smallest(self, power: float, least: float) -> float:
        """Return the largest share of the declared deviation that is found with this power, 0 if none is.

        Sampling adds to the variance of the fault as much as it added here. A ratio below ``least`` is a fault.
        """
        likely = float(chi2.ppf(power, self.freedom)) / self.freedom
        return float(np.sqrt(max(0.0, self.quantile * least / likely - max(0.0, self.ratio - 1.0))))


def lower_tests(
    models: FloatArray, like: Parameters, tensors: Sequence[int], variance: float, error: float, one_step: bool = True
) -> list[Lower]:
    """Test all parameters, sums over the last axis, and the parameters that vary least.

    Gradients of an output layer sum up to zero over classes, so that such sums show the noise alone. Parameters that
    vary least are chosen by one half of the models and tested on the other half. After several steps only all
    parameters together are tested: curvature may leave less variance in some.
    """
    columns = np.concatenate([np.arange(like.slices[i].start, like.slices[i].stop) for i in tensors])
    views = [("all parameters", models[:, columns])]
    wide = [i for i in tensors if like.shapes[i] and like.shapes[i][-1] > 1]
    if wide and one_step:
        sums = [
            models[:, like.slices[i]].reshape(len(models), -1, like.shapes[i][-1]).sum(axis=2)
            / np.sqrt(like.shapes[i][-1])
            for i in wide
        ]
        views.append(("sums over the last axis", np.concatenate(sums, axis=1)))
    if len(models) >= 8 and len(columns) >= 8 and one_step:
        chosen = np.argsort(models[::2, columns].var(axis=0), kind="stable")[: len(columns) // 4]
        views.append(("the parameters that vary least", models[1::2, columns[chosen]]))
    return [
        Lower(
            words,
            float(each.var(axis=0, ddof=1).mean()) / variance,
            each.shape[1] * (len(each) - 1),
            error / len(views),
        )
        for words, each in views
    ]


def noise_row(
    setting: Setting,
    models: FloatArray,
    variance: float,
    tensor: int | None = None,
    name: str = NOISE,
    least: float | None = None,
) -> Row:
    """Return the row of too little noise.

    ``least`` is what curvature of several steps may leave of the declared variance; None: of one step.
    """
    allowed, like = setting.allowances, setting.like
    tensors = setting.tensors if tensor is None else (tensor,)
    title = None if tensor is None else like.names[tensor]
    error = setting.error / (1 if tensor is None else len(setting.tensors))
    tests = lower_tests(models, like, tensors, variance, error, one_step=least is None)
    bound = (1.0 if least is None else least) * (1.0 - allowed.exact)
    worst = min(tests, key=lambda test: test.interval[1])
    if worst.interval[1] < bound:
        return Row(name, title, worst.ratio, 1.0, *worst.interval, "fault", too_little(worst.ratio, setting))
    best = max(tests, key=lambda test: test.smallest(allowed.power, bound))
    share = best.smallest(allowed.power, bound)
    target = allowed.noise if tensor is None else 1e-3  # of a tensor: one without noise
    words = f"noise x {np.floor(100 * share) / 100:.2g}" if share > 0.01 else "no noise" if share else ""
    if share >= target:
        return Row(name, title, best.ratio, 1.0, *best.interval, "ok", "", words)
    needed = _models_needed(tests[0], len(models), allowed.power, bound, target)
    why = "too few models for so few parameters"
    if not needed:
        why = (
            f"batches alone make models differ: {best.ratio:.3g} times the declared variance in {best.words}; check "
            "with smaller batches or a larger noise multiplier"
        )
    return Row(name, title, best.ratio, 1.0, *best.interval, "cannot tell", why, words, needed)


def _models_needed(test: Lower, count: int, power: float, least: float, target: float) -> str:
    """Return how many models of the declared length it takes; half as many are trained for one step."""
    for factor in (2, 3, 4, 6, 8, 12, 16, 24, 32):
        more = replace(test, freedom=test.freedom * factor)
        if more.smallest(power, least) >= target:
            return f"{2 * (count * factor + 1)} models"
    return ""


def tensor_rows(setting: Setting, models: FloatArray, variance: float) -> list[Row]:
    """Return a row for each tensor, if there are several."""
    if len(setting.like.names) < 2:
        return []
    return [noise_row(setting, models, variance, tensor) for tensor in setting.tensors]


def too_little(ratio: float, setting: Setting) -> str:
    """Return the advice for too little noise."""
    if ratio < 1e-6:
        return "no noise, or the same in all models: look where noise is added, and how its generator is seeded"
    return f"too little: {diagnosis(ratio, setting)}"


def diagnosis(ratio: float, setting: Setting) -> str:
    """Return the likely cause of a wrong variance, with the factor of the standard deviation."""
    factor, run = float(np.sqrt(ratio)), setting.declared.run
    times = f"{factor:.3g} times the standard deviation declared"
    sigma = float(np.mean(run.noise_multiplier))
    causes = [
        (run.clip_norm, "noise is multiplied by the clipping norm twice, or not at all"),
        (np.sqrt(sigma), "the noise multiplier is taken for a variance"),
        (sigma, "the noise multiplier is applied twice, or not at all"),
    ]
    if setting.batch_size is not None:
        causes.insert(0, (setting.batch_size, _MEAN))
    for cause, words in causes:
        if cause > 0.0 and abs(np.log(cause)) > 0.2 and abs(abs(np.log(factor)) - abs(np.log(cause))) < 0.03:
            return f"{times}, as if {words}"
    if ratio > 1.5 and abs(ratio / round(ratio) - 1.0) < 0.03:
        return f"{times}, as if noise were added {round(ratio)} times, such as once for each micro-batch"
    if max(factor, 1.0 / factor) > 3.0:
        return f"{times}: if {max(factor, 1.0 / factor):.3g} is about the size of a batch, {_MEAN}"
    return f"{times}: look at the noise multiplier, and at the learning rate"


_MEAN = (
    "the learning rate is that of the mean of gradients, where the run needs that of their sum (rate / batch size), or "
    "noise is scaled by the wrong one"
)


def excess_row(setting: Setting, models: FloatArray, steps: int) -> Row:
    """Return the row of too much noise, which is no leak. Sampling must not explain it.

    One step of Poisson sampling adds at most the clipping norm squared for each expected example of a batch, in all
    parameters together.
    """
    allowed, declared = setting.allowances, setting.declared.prefix(steps)
    variance, squares = declared.variance, float(np.sum(declared.weights**2)) * declared.run.clip_norm**2
    tests = lower_tests(models, setting.like, setting.tensors, variance, setting.error, one_step=steps == 1)
    least = min(tests, key=lambda test: test.interval[0])
    low, high = least.interval
    if setting.seeded:
        return not_checked(EXCESS, "initial values follow the seed, and gradients with them")
    if low <= 1.0 + allowed.curvature:
        found = np.sqrt((1.0 + allowed.curvature) / least.quantile)
        return Row(EXCESS, None, least.ratio, 1.0, low, high, "ok", "", f"noise x {np.ceil(100 * found) / 100:.3g}")
    examples = (low - 1.0) * len(setting.columns) * variance / squares
    known = setting.batch_size if setting.batch_size is not None else allowed.largest_batch
    if examples > known:
        limit = (
            ""
            if setting.batch_size is not None
            else f", if batches have at most {known:g} examples (else give batch_size)"
        )
        why = f"too much, more than sampling explains{limit}: {diagnosis(least.ratio, setting)}"
        return Row(EXCESS, None, least.ratio, 1.0, low, high, "fault", why)
    why = f"{least.ratio:.3g} times the declared variance, which batches of {examples:.2g} examples would explain"
    return replace(not_checked(EXCESS, why), measured=least.ratio, declared=1.0, low=low, high=high)


def without_row(setting: Setting, models: FloatArray, variance: float) -> Row:
    """Return how many parameters have less variance than any parameter with noise may have, by a union bound."""
    found, freedom = models[:, setting.columns], len(models) - 1
    ratios = found.var(axis=0, ddof=1) / variance
    limit = float(chi2.ppf(setting.error / len(ratios), freedom)) / freedom * (1.0 - setting.allowances.exact)
    count = int(np.count_nonzero(ratios < limit))
    share = np.sqrt(limit * freedom / float(chi2.ppf(setting.allowances.power, freedom)))
    status: Status = "fault" if count else "ok"
    why = "parameters hardly vary from seed to seed: look whether noise is added to every parameter of every tensor"
    words = f"one with noise x {share:.2g}"
    return Row(WITHOUT, None, float(count), 0.0, float(count), float(count), status, why if count else "", words)


# The law of the noise, where sampling adds little: kurtosis, and distinct values.


def kurtosis_score(kurtosis: float, count: int) -> float:
    """Return the kurtosis of normal numbers as a standard normal number, by Anscombe and Glynn (1983)."""
    mean = 3.0 * (count - 1) / (count + 1)
    variance = 24.0 * count * (count - 2) * (count - 3) / ((count + 1) ** 2 * (count + 3) * (count + 5))
    skew = 6.0 * (count**2 - 5 * count + 2) / ((count + 7) * (count + 9))
    skew *= np.sqrt(6.0 * (count + 3) * (count + 5) / (count * (count - 2) * (count - 3)))
    freedom = 6.0 + 8.0 / skew * (2.0 / skew + np.sqrt(1.0 + 4.0 / skew**2))
    inner = (1.0 - 2.0 / freedom) / (1.0 + (kurtosis - mean) / np.sqrt(variance) * np.sqrt(2.0 / (freedom - 4.0)))
    root = np.cbrt(inner)
    return float((1.0 - 2.0 / (9.0 * freedom) - root) / np.sqrt(2.0 / (9.0 * freedom))) if inner > 0 else np.inf


def law_row(setting: Setting, models: FloatArray, variance: float) -> Row:
    """Return the kurtosis of the noise: less than normal if uniform or cut off, more if its tails are heavier."""
    views = [models[:, setting.columns]]
    if len(models) >= 8:
        chosen = np.argsort(views[0][::2].var(axis=0), kind="stable")[: max(1, views[0].shape[1] // 4)]
        views.append(views[0][1::2, chosen])
    few = [each for each in views if 0.0 < each.var(axis=0, ddof=1).mean() / variance <= _LEAST_SAMPLING]
    if not few:
        return not_checked(LAW, "the variance is not that of the noise alone, so that its law does not show")
    around = few[0] - few[0].mean(axis=0)
    count = int(around.shape[1] * (len(around) - 1))
    measured = float(np.mean(around**4) / np.mean(around**2) ** 2)
    half = float(norm.isf(setting.error / 2.0)) * np.sqrt(24.0 / count)
    interval = measured - half, measured + half
    # Sampling of a share s of the variance has excess kurtosis of at least -2, and counts by the square of s.
    share = max(0.0, 1.0 - variance / float(around.var(axis=0, ddof=1).mean()))
    extra, limit = setting.allowances.kurtosis, float(norm.isf(setting.error / 2.0))
    spare = float(norm.ppf(setting.allowances.power))
    if count < ENOUGH or kurtosis_score(UNIFORM + 2 * share**2, count) > -limit - spare:
        needed = f"{2 * (int(np.ceil(ENOUGH / around.shape[1])) + 1)} models"
        why = "there are too few numbers to tell the law of the noise"
        return Row(LAW, None, measured, 3.0, *interval, "cannot tell", why, "", needed)
    low = kurtosis_score(measured + 2.0 * share**2, count) < -limit
    high = kurtosis_score(measured - extra, count) > limit
    why = ""
    if low:
        why = "noise is not normal, but cut off, uniform, or of few values: look which law it is drawn from"
    elif high:
        why = "noise has heavier tails than normal noise, such as Laplace's: look which law it is drawn from"
    return Row(LAW, None, measured, 3.0, *interval, "fault" if why else "ok", why, "uniform or Laplace noise")


def distinct_row(setting: Setting, models: FloatArray, variance: float) -> Row:
    """Return the least number of distinct values of a parameter over seeds. Normal noise gives all different values."""
    found, count = models[:, setting.columns], len(models)
    rounding = 2.0 * setting.like.precision * float(np.abs(found).max())
    if np.sqrt(variance) < _COARSE * rounding:
        return not_checked(DISTINCT, "parameters are rounded more coarsely than the noise: return more digits")
    ordered = np.sort(found, axis=0)
    distinct = 1 + np.count_nonzero(np.diff(ordered, axis=0), axis=0)
    least = int(distinct.min())
    few = int(np.count_nonzero(2 * distinct < count))
    why = (
        f"{few} parameters have few distinct values over {count} seeds: look in which number type noise is drawn and "
        "scaled (float16 underflows)"
    )
    status: Status = "fault" if few else "ok"
    words = f"noise of {max(1, count // 4)} values"
    return Row(
        DISTINCT, None, float(least), float(count), float(least), float(count), status, why if few else "", words
    )


# Numbers of noise that are used twice within a model.


def _correlation_limit(count: float, error: float) -> float:
    """Return the largest correlation of ``count`` pairs of independent normal numbers, by Fisher's transform."""
    return float(np.tanh(norm.isf(error / 2.0) / np.sqrt(max(count - 3.0, 1.0))))


def again_row(setting: Setting, models: FloatArray, variance: float) -> Row:
    """Return the largest correlation of the parameters with themselves, moved by up to half of their number."""
    found = models[:, setting.columns]
    count, size = found.shape
    around = found - found.mean(axis=0)
    ratio = float(found.var(axis=0, ddof=1).mean()) / variance
    if size < 4 or not ratio:
        return not_checked(AGAIN, "there are too few parameters, or there is no noise")
    length = 2 ** int(np.ceil(np.log2(1.5 * size + 1)))
    spectrum = np.abs(np.fft.rfft(around, length, axis=1)) ** 2
    products = np.fft.irfft(spectrum.sum(axis=0), length)[1 : size // 2 + 1]
    below = np.cumsum(np.sum(around**2, axis=0))
    moved = np.arange(1, size // 2 + 1)
    scales = np.sqrt(below[size - 1 - moved] * (below[-1] - below[moved - 1]))
    correlations = np.abs(products) / np.maximum(scales, 1e-300)
    limits = np.array([_correlation_limit((size - m) * (count - 1), setting.error / len(moved)) for m in moved])
    best = int(np.argmax(correlations - limits))
    why = (
        f"the noise of a parameter is, or partly, that of the one {best + 1:,} places before: look where its generator "
        "is seeded, and whether a draw is used for several parts"
    )
    return _correlation_row(setting, AGAIN, None, float(correlations[best]), float(limits[best]), ratio, why)


def two_tensors_row(setting: Setting, models: FloatArray, variance: float) -> Row:
    """Return the largest correlation of two tensors, as if the generator were seeded anew for each."""
    like, tensors = setting.like, setting.tensors
    around = models - models.mean(axis=0)
    ratio = float(models[:, setting.columns].var(axis=0, ddof=1).mean()) / variance
    pairs = [(i, j) for k, i in enumerate(tensors) for j in tensors[k + 1 :]][:200]
    best: tuple[float, float, float, str] | None = None
    for i, j in pairs:
        a, b = like.slices[i], like.slices[j]
        size = min(a.stop - a.start, b.stop - b.start)
        x, y = around[:, a][:, :size].ravel(), around[:, b][:, :size].ravel()
        scale = float(np.sqrt((x @ x) * (y @ y)))
        limit = _correlation_limit(size * (len(models) - 1), setting.error / len(pairs))
        if scale > 0.0 and limit < 0.9:
            found = abs(float(x @ y)) / scale
            best = max(best or (-2.0, 0.0, 0.0, ""), (found - limit, found, limit, f"{like.names[i]}, {like.names[j]}"))
    if best is None:
        return not_checked(TWO, "there are no two tensors that are large enough")
    why = f"{best[3]} have the same noise, or partly: look where its generator is seeded"
    return _correlation_row(setting, TWO, best[3], best[1], best[2], ratio, why)


def _correlation_row(
    setting: Setting, name: str, tensor: str | None, found: float, limit: float, ratio: float, why: str
) -> Row:
    """Return the row of a correlation. Sampling may correlate as much as its share of the variance."""
    share = max(0.0, 1.0 - 1.0 / ratio)
    allowed = share + setting.allowances.exact + limit
    if allowed >= 1.0 - share:  # noise that is used twice has correlation 1 - share at least
        return not_checked(name, "batches make models differ as much as noise, and may correlate")
    is_fault = found > allowed
    words = f"correlation {min(1.0, allowed + limit):.2g}"
    low, high = max(0.0, found - limit), min(1.0, found + limit)
    return Row(
        name,
        tensor if is_fault else None,
        found,
        0.0,
        low,
        high,
        "fault" if is_fault else "ok",
        why if is_fault else "",
        words,
    )


# Noise of several steps: its growth, the last step, and what is released.


def several_row(setting: Setting, first: FloatArray, models: FloatArray, steps: int, left: float) -> Row:
    """Return the variance of a few steps over that of one step (an F test), which shows momentum and repeated noise.

    ``left`` is what one more step leaves of the effect of a canary, by curvature. It leaves as much of the noise.
    """
    declared, allowed = setting.declared.prefix(steps), setting.allowances
    one = setting.declared.prefix(1)
    expected = declared.variance / one.variance
    before = float(first[:, setting.columns].var(axis=0, ddof=1).mean())
    after = float(models[:, setting.columns].var(axis=0, ddof=1).mean())
    if not before:
        return not_checked(SEVERAL, "one step has no noise")
    size = len(setting.columns)
    freedom = size * (len(models) - 1), size * (len(first) - 1)
    low_f, high_f = float(f_law.ppf(setting.error / 2, *freedom)), float(f_law.isf(setting.error / 2, *freedom))
    measured = after / before
    # Shuffled batches do not repeat examples, so that sampling need not add up.
    share = max(0.0, 1.0 - one.variance / before) if declared.run.sampling == "shuffled" else 0.0
    after_it = left ** (2.0 * np.arange(steps)[::-1])
    kept = float(
        np.sum((declared.weights * declared.noise) ** 2 * after_it) / np.sum((declared.weights * declared.noise) ** 2)
    )
    lower = expected * kept * (1.0 - allowed.curvature) * (1.0 - share)
    # Batches are drawn anew. Gradients that follow the seed are much the same at every step, and add up.
    added, weights = max(0.0, before - one.variance) / before, declared.weights / one.weights[0]
    together = float(weights.sum()) ** 2 if setting.seeded else float(np.sum(weights**2))
    bounds = lower, (expected * (1.0 - added) + together * added) * (1.0 + allowed.curvature)
    low, high = measured / high_f, measured / low_f
    words = f"x {bounds[0] / expected * low_f:.2g} or x {bounds[1] / expected * high_f:.2g}"
    if high < bounds[0] or low > bounds[1]:
        return Row(
            SEVERAL, None, measured, expected, low, high, "fault", _several(measured, steps, one, expected), words
        )
    if bounds[0] * low_f < allowed.noise**2 * expected and max(share, 1.0 - kept) > allowed.curvature:
        return not_checked(SEVERAL, "curvature, or shuffled batches, may take from the noise")
    if bounds[0] * low_f < allowed.noise**2 * expected:
        why = f"too few parameters and models to tell the growth of noise in {steps} steps"
        return Row(SEVERAL, None, measured, expected, low, high, "cannot tell", why, words, "more models")
    return Row(SEVERAL, None, measured, expected, low, high, "ok", "", words)


def _several(measured: float, steps: int, one: object, expected: float) -> str:
    patterns = {
        float(steps): "as without momentum",
        float(
            steps**2
        ): "as if every step added the same noise: look where its generator is seeded or its key is split",
        float(sum(k * k for k in range(1, steps + 1))): "as if gradients were not set to zero between steps",
        1.0: "as if one step alone added noise, or a step took back the noise of the step before",
    }
    name = next((words for ratio, words in patterns.items() if abs(measured / ratio - 1.0) < 0.1), "")
    where = name or "look at momentum, averaging, the schedule, and at noise that is repeated or missing"
    return f"{steps} steps have {measured:.3g} times the variance of one step, {where}"


def last_row(setting: Setting, models: FloatArray, before: FloatArray, earlier: FloatArray | None) -> Row:
    """Return the noise of the last step, by models of the same seeds that stop one step earlier.

    ``earlier`` models stop two steps earlier, to take out momentum. The rest is the last step's own gradient and noise.
    """
    declared = setting.declared
    sgd, noise = declared.run.optimizer, float(declared.noise[-1])
    rates = np.broadcast_to(np.asarray(1.0 if sgd is None else sgd.learning_rate, np.float64), (declared.run.steps,))
    moved, entering = models - before, 1.0
    if earlier is not None and sgd is not None:
        moved = moved - sgd.momentum * rates[-1] / rates[-2] * (before - earlier)
        entering = 1.0 - sgd.dampening  # type: ignore[union-attr]  # not asked for with Adam
    own = 1.0 if declared.run.noise_filter is None else abs(declared.run.noise_filter[0])
    variance = (float(rates[-1]) * entering * own * noise) ** 2
    if declared.run.weights is not None:
        variance = (float(declared.weights[-1]) * own * noise) ** 2
    if not variance:
        return not_checked(LAST, "the last step has no weight")
    row = noise_row(setting, moved, variance, None, LAST)
    if row.status == "cannot tell":
        why = "models that stop one step earlier differ by more than a step: their random numbers are others"
        return replace(row, status="not checked", advice=why, needs="")
    if row.status == "fault":
        return replace(row, advice=f"{row.advice}; look whether the last step differs from others")
    return row
