"""Rows on the noise: its variance, its law, distinct values, reused noise, and the noise of several steps.

After one step, noise and batch are independent, so the variance is at least that of the noise, in every direction.
Chi-square tests for too little noise are exact, because sampling can only add variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import chi2, norm
from scipy.stats import f as f_law

from lastiterate.checking.check_result import Row, judged, not_checked
from lastiterate.checking.parameters import Parameters
from lastiterate.checking.trainings import LEAST_MODELS, MEAN, MOST_MODELS, SMALLEST_BATCH, Setting
from lastiterate.common.search import first_integer
from lastiterate.common.types import FloatArray
from lastiterate.optimizer import is_sgd

NOISE, EXCESS, WITHOUT, LAW = "noise", "excess noise", "parameters without noise", "law of the noise"
DISTINCT, AGAIN = "distinct values", "noise that is used again"
SEVERAL, LAST, RELEASED = "noise of three steps", "noise of the last step", "noise of all steps"
UNIFORM = 1.8  # kurtosis of the uniform law; that of the normal law is 3, that of Laplace's law 6
ENOUGH = 600  # amount of numbers for which the approximation of Anscombe and Glynn (1983) holds


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
        """Return the largest share of the standard deviation that is found, if sampling adds as much variance to it."""
        likely = float(chi2.ppf(power, self.freedom)) / self.freedom
        return float(np.sqrt(max(0.0, self.quantile * least / likely - max(0.0, self.ratio - 1.0))))


def quiet_view(values: FloatArray, rotate: bool = True) -> FloatArray | None:
    """Return half of the models, in the quarter of directions that vary least in the other, independent half."""
    chosen, tested = values[::2], values[1::2]
    count = values.shape[1]
    if len(values) < LEAST_MODELS or count < 4:
        return None
    if rotate and len(chosen) > count:
        return np.asarray(tested @ np.linalg.eigh(np.cov(chosen, rowvar=False))[1][:, : count // 4], np.float64)
    return np.asarray(tested[:, np.argsort(chosen.var(axis=0), kind="stable")[: count // 4]], np.float64)


def lower_tests(
    models: FloatArray, like: Parameters, tensors: Sequence[int], variance: float, error: float, one_step: bool = True
) -> list[Lower]:
    """Test all parameters, sums over the last axis, and the directions that vary least.

    Gradients of an output layer add up to zero over classes. After several steps, curvature differs between parameters.
    """
    views = [("all parameters", models[:, like.columns(tensors)])]
    if wide := [i for i in tensors if like.shapes[i] and like.shapes[i][-1] > 1] if one_step else []:
        tables = [models[:, like.slices[i]].reshape(len(models), -1, like.shapes[i][-1]) for i in wide]
        sums = [table.sum(axis=2) / np.sqrt(table.shape[2]) for table in tables]
        views.append(("sums over the last axis", np.concatenate(sums, axis=1)))
    if one_step and (quiet := quiet_view(views[0][1])) is not None:
        views.append(("the directions that vary least", quiet))
    size = {words: each.shape[1] * (len(each) - 1) for words, each in views}
    return [Lower(words, _variance(each) / variance, size[words], error / len(views)) for words, each in views]


def _variance(models: FloatArray) -> float:
    return float(models.var(axis=0, ddof=1).mean())


def noise_row(
    setting: Setting,
    models: FloatArray,
    variance: float,
    tensor: int | None = None,
    name: str = NOISE,
    left: float = 0.0,
) -> Row:
    """Return the row of too little noise. ``left`` is the share of the variance that curvature of many steps leaves."""
    allowed, like = setting.allowances, setting.trainings.like
    tensors, title = (setting.tensors, None) if tensor is None else ((tensor,), like.names[tensor])
    error = setting.error / (1 if tensor is None else len(setting.tensors))
    tests = lower_tests(models, like, tensors, variance, error, one_step=not left)
    bound = (left or 1.0) * (1.0 - allowed.exact)
    worst = min(tests, key=lambda test: test.interval[1])
    if worst.interval[1] < bound:
        why = "no noise, or the same noise in all models; check where noise is added, and how it is seeded"
        if worst.ratio > allowed.equal**2:
            why = f"too little noise: {diagnosis(worst.ratio, setting)}"
        return Row(name, title, worst.ratio, 1.0, *worst.interval, "fault", why)
    share, best = max(((test.smallest(allowed.power, bound), test) for test in tests), key=lambda pair: pair[0])
    words = f"noise x {np.floor(100 * share) / 100:.2g}" if share > 0.01 else "no noise" if share else ""
    row = Row(name, title, best.ratio, 1.0, *best.interval, "ok", "", words)
    target = allowed.noise if tensor is None else np.finfo(float).tiny  # the stated fault of a tensor is no noise

    def is_enough(factor: int) -> bool:
        return replace(tests[0], freedom=tests[0].freedom * factor).smallest(allowed.power, bound) >= target

    if share >= target:
        return row
    most = MOST_MODELS // (2 * len(models) + 2)  # half of the models of the declared length have no canary
    if most > 1 and is_enough(most):
        needed = 2 * (len(models) * first_integer(is_enough, 1, most) + 1)
        return row.now("cannot tell", "too few models for so few parameters", f"{needed} models")
    why = f"batches add too much variance: {best.ratio:.3g} times the declared variance in {best.words}"
    return row.now("cannot tell", f"{why}; use smaller batches or a larger noise multiplier", "smaller batches")


def diagnosis(ratio: float, setting: Setting) -> str:
    """Return the likely cause of a wrong variance, with the factor of the standard deviation."""
    factor, run, near = float(np.sqrt(ratio)), setting.declared.run, setting.allowances.pattern
    times, sigma = f"{factor:.3g} times the declared standard deviation", float(np.mean(run.noise_multiplier))
    causes = {
        f"{MEAN}, or noise is scaled by the wrong rate": setting.batch_size or 1.0,
        "noise is multiplied by the clipping norm twice, or not at all": run.clip_norm,
        "the noise multiplier is used as a variance": np.sqrt(sigma),
        "the noise multiplier is applied twice, or not at all": sigma,
    }
    for words, cause in causes.items():
        if abs(np.log(cause)) > near and abs(abs(np.log(factor)) - abs(np.log(cause))) < near:
            return f"{times}; perhaps {words}"
    if round(ratio) > 1 and abs(ratio / round(ratio) - 1.0) < near:
        return f"{times}; perhaps noise is added {round(ratio)} times, such as once for each micro-batch"
    if (size := max(factor, 1.0 / factor)) > SMALLEST_BATCH:
        return f"{times}; if {size:.3g} is about the size of a batch, {MEAN}"
    return f"{times}; check the noise multiplier and the learning rate"


def excess_row(setting: Setting, models: FloatArray, steps: int) -> Row:
    """Return the row of too much noise, which is a fault if sampling does not explain the variance.

    One step of Poisson sampling adds at most the squared clipping norm for each expected example, over all parameters.
    """
    if setting.seeded:
        return not_checked(EXCESS, "initial values, and therefore gradients, depend on the seed")
    allowed, declared = setting.allowances, setting.declared.prefix(steps)
    variance, squares = declared.variance, float(np.sum(declared.weights**2)) * declared.run.clip_norm**2
    tests = lower_tests(models, setting.trainings.like, setting.tensors, variance, setting.error, one_step=steps == 1)
    least = min(tests, key=lambda test: test.interval[0])
    found = np.ceil(100 * np.sqrt((1.0 + allowed.curvature) / least.quantile)) / 100
    row = Row(EXCESS, None, least.ratio, 1.0, *least.interval, "ok", "", f"noise x {found:.3g}")
    extra = least.interval[0] - 1.0
    if extra <= allowed.curvature:
        return row
    examples = extra * len(setting.columns) * variance / squares
    if examples > (setting.batch_size or allowed.largest_batch):
        limit = f", if batches have at most {allowed.largest_batch:g} examples (else give batch_size)"
        why = f"too much noise, more than sampling explains{'' if setting.batch_size else limit}"
        return row.now("fault", f"{why}: {diagnosis(least.ratio, setting)}")
    why = f"{least.ratio:.3g} times the declared variance; batches of {examples:.2g} examples would explain this"
    return replace(row, smallest_fault="").now("not checked", why)


def without_row(setting: Setting, models: FloatArray, variance: float) -> Row:
    """Return the number of parameters whose variance is too small for a parameter with noise, by a union bound."""
    found, freedom = models[:, setting.columns], len(models) - 1
    ratios = found.var(axis=0, ddof=1) / variance
    limit = float(chi2.ppf(setting.error / len(ratios), freedom)) / freedom * (1.0 - setting.allowances.exact)
    count = float(np.count_nonzero(ratios < limit))
    share = np.sqrt(limit * freedom / float(chi2.ppf(setting.allowances.power, freedom)))
    why = "some parameters hardly vary between seeds; check that noise is added to every parameter"
    return judged(WITHOUT, (count, 0.0, count, count), count > 0, why, f"one with noise x {share:.2g}")


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

    Sampling that adds a share s of the variance changes the kurtosis by s^2 times its own excess, which is at least -2.
    """
    allowed, found = setting.allowances, models[:, setting.columns]
    views = found, quiet_view(found, rotate=False)
    few = [each for each in views if each is not None and 0.0 < _variance(each) / variance <= 1.0 + allowed.sampling]
    if not few:
        return not_checked(LAW, "batches add too much variance to see the law of the noise")
    around = few[0] - few[0].mean(axis=0)
    count = int(around.shape[1] * (len(around) - 1))
    measured = float(np.mean(around**4) / np.mean(around**2) ** 2)
    limit = float(norm.isf(setting.error / 2.0))
    half = limit * np.sqrt(24.0 / count)  # the asymptotic variance of a normal kurtosis
    less = 2.0 * max(0.0, 1.0 - variance / _variance(around)) ** 2
    row = Row(LAW, None, measured, 3.0, measured - half, measured + half, "ok", "", "uniform or Laplace noise")
    if count < ENOUGH or kurtosis_score(UNIFORM + less, count) > -limit - float(norm.ppf(allowed.power)):
        needed = f"{2 * (int(np.ceil(ENOUGH / around.shape[1])) + 1)} models"
        row = replace(row, smallest_fault="")
        return row.now("cannot tell", "there are too few numbers to test the law of the noise", needed)
    if kurtosis_score(measured + less, count) < -limit:
        return row.now("fault", "noise is not normal, but cut off, uniform or of few values; check how it is drawn")
    if kurtosis_score(measured - allowed.kurtosis, count) > limit:
        return row.now("fault", "noise has heavier tails than normal noise, like Laplace noise; check how it is drawn")
    return row


def distinct_row(setting: Setting, models: FloatArray, variance: float) -> Row:
    """Return the row of the smallest number of distinct values of a parameter over seeds.

    If a standard deviation has r rounding steps, two seeds agree with probability at most 0.4 / r. On average m^2 / 5 r
    of m values are lost, so half of them are lost only if r is far below m.
    """
    found, count = models[:, setting.columns], len(models)
    rounding = 2.0 * setting.trainings.like.precision * float(np.abs(found).max())
    if np.sqrt(variance) < count * rounding:
        return not_checked(DISTINCT, "rounding of parameters hides the noise: return more digits")
    distinct = 1 + np.count_nonzero(np.diff(np.sort(found, axis=0), axis=0), axis=0)
    few, least = int(np.count_nonzero(2 * distinct < count)), float(distinct.min())
    why = (
        f"{few} parameters have few values over {count} seeds; check the number type of the noise (float16 underflows)"
    )
    words = f"noise of {max(1, count // 4)} values"
    return judged(DISTINCT, (least, float(count), least, float(count)), few > 0, why, words)


def again_row(setting: Setting, models: FloatArray, variance: float) -> Row:
    """Return the row of the largest correlation of the parameters with themselves, shifted by any number of places.

    Limits follow from Fisher's transform of a correlation, by a union bound over shifts. The correlation due to
    sampling is at most its share of the variance. The correlation of reused noise is at least the rest.
    """
    found = models[:, setting.columns]
    count, size = found.shape
    around, ratio = found - found.mean(axis=0), _variance(found) / variance
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
    value, limit, most = float(correlations[best]), float(limits[best]), float(allowed[best])
    why = (
        f"the noise of a parameter repeats the noise {best + 1:,} places before it; check where its generator is seeded"
    )
    numbers = value, 0.0, max(0.0, value - limit), min(1.0, value + limit)
    return judged(AGAIN, numbers, value > most, why, f"correlation {min(1.0, most + limit):.2g}")


def several_row(setting: Setting, first: FloatArray, models: FloatArray, steps: int, left: float) -> Row:
    """Return the row of the variance of a few steps over that of one step, an F test. Curvature leaves ``left``."""
    declared, one, allowed = setting.declared.prefix(steps), setting.declared.prefix(1), setting.allowances
    before, after = _variance(first[:, setting.columns]), _variance(models[:, setting.columns])
    if not before:
        return not_checked(SEVERAL, "one step has no noise")
    freedom = len(setting.columns) * (len(models) - 1), len(setting.columns) * (len(first) - 1)
    low_f, high_f = float(f_law.ppf(setting.error / 2, *freedom)), float(f_law.isf(setting.error / 2, *freedom))
    measured, expected = after / before, declared.variance / one.variance
    added = max(0.0, 1.0 - one.variance / before)
    # Shuffled batches do not repeat examples, so their variance need not add up.
    share = added if declared.run.sampling == "shuffled" else 0.0
    parts = (declared.weights * declared.noise) ** 2
    kept = float(np.sum(parts * left ** (2.0 * np.arange(steps)[::-1])) / np.sum(parts))
    # Batches are independent. Gradients that depend on the seed are similar at every step, and add up.
    weights = declared.weights / one.weights[0]
    together = float(weights.sum()) ** 2 if setting.seeded else float(np.sum(weights**2))
    lower = expected * kept * (1.0 - allowed.curvature) * (1.0 - share)
    upper = (expected * (1.0 - added) + together * added) * (1.0 + allowed.curvature)
    words = f"x {lower / expected * low_f:.2g} or x {upper / expected * high_f:.2g}"
    row = Row(SEVERAL, None, measured, expected, measured / high_f, measured / low_f, "ok", "", words)
    if measured / low_f < lower or measured / high_f > upper:
        return row.now("fault", _several(measured, low_f, high_f, steps))
    if lower * low_f >= allowed.noise**2 * expected:
        return row
    if max(share, 1.0 - kept) > allowed.curvature:
        return not_checked(SEVERAL, "curvature or shuffled batches may reduce the variance")
    why = f"too few parameters and models to test the growth of noise in {steps} steps"
    return row.now("cannot tell", why, "more models")


def _several(measured: float, low_f: float, high_f: float, steps: int) -> str:
    patterns = {
        float(steps): "as without momentum",
        float(steps**2): "as if every step added the same noise; check how its generator is seeded or its key is split",
        float(sum(k * k for k in range(1, steps + 1))): "as if gradients were not set to zero between steps",
        1.0: "as if only one step added noise, or each step subtracted the noise of the step before",
    }
    other = "not as declared; check momentum, averaging, the schedule, and repeated or missing noise"
    name = next((words for ratio, words in patterns.items() if low_f <= measured / ratio <= high_f), other)
    return f"{steps} steps have {measured:.3g} times the variance of one step, {name}"


def last_row(setting: Setting, models: FloatArray, before: FloatArray, earlier: FloatArray | None = None) -> Row:
    """Return the row of the noise of the last step, from models of the same seeds that stop one step earlier.

    ``earlier`` models stop two steps earlier and serve to subtract momentum.
    """
    moved, variance, sgd = models - before, setting.declared.last_variance, setting.declared.run.optimizer
    if earlier is not None and is_sgd(sgd):
        rates = np.broadcast_to(sgd.learning_rate, setting.declared.run.steps)
        moved = moved - sgd.momentum * rates[-1] / rates[-2] * (before - earlier)
    if not variance:
        return not_checked(LAST, "the last step has no weight")
    row = noise_row(setting, moved, variance, None, LAST)
    if row.status == "cannot tell":
        return row.now("not checked", f"{row.advice}, or models that stop earlier use other random numbers")
    return replace(row, advice=f"{row.advice}; check whether the last step differs from others") if row.advice else row


def released_row(setting: Setting, models: FloatArray, left: float, name: str, tensor: int | None = None) -> Row:
    """Return the row of the noise of all steps. It must be at least the share of the noise that curvature leaves.

    A canary of random signs shows the mean share. The mean square is at least its square (Jensen). The noise of the
    last step is always left.
    """
    declared = setting.declared
    least = max(declared.last_variance / declared.variance, left**2 * (1.0 - setting.allowances.curvature))
    least = min(1.0, least) ** (1 if tensor is None else 2)  # curvature differs between tensors
    row = noise_row(setting, models, declared.variance, tensor, name, least)
    if row.status != "cannot tell":
        return row
    why = "curvature of many steps may reduce the noise by more than is measured"
    if name == RELEASED or tensor is not None:
        return row.now("not checked", why)
    return row.now("cannot tell", why, row.needs or "one-step models")
