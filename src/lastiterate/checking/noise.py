"""The noise in the parameters: the variance between models of different seeds, over the one declared.

Sampling of batches adds to it, curvature takes away. Variance below what curvature explains is a fault: where there is
too little in all, no sampling can have added it. Variance above the declared is a fault only where sampling cannot have
added it: a step adds at most the clipping norm squared for each example of a batch, in all coordinates together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import chi2, norm

from lastiterate.checking.check_result import Row, Status, not_checked
from lastiterate.checking.declared import Declared, Parameters
from lastiterate.common.types import FloatArray, IntArray

NAME, QUIET, DEAD = "noise", "noise in quiet parameters", "noise in parameters without gradients"
ROUNDING = 0.01  # a ratio of variances so close to the limit is not told from it
MOST_BATCH = 1e5  # examples in a batch, where nobody says how many there are
LARGE_BATCH = 2000.0  # examples that would have to be in a batch to add what repeated noise does
_LEAST_REPEATED = 3.0  # the factor of repeated noise that is told from sampling
_FEW_EXAMPLES = 50.0  # of a batch, where nobody says how many there are: most have as many
_QUARTER, _LOUD = 0.25, 0.9
_SHARP = 1.6  # width of an interval that tells one factor from another
_LESS = 0.9  # less than so many times the declared variance needs an explanation
_MORE = 1.1  # more than so many times the declared variance, where nothing adds to it, is too much
_NOTABLE = 1.5  # more than so many times the declared variance: sampling hides the noise
_BATCH_HINT = 3.0  # from this factor on a mistaken batch size is worth a word
_FEWEST = 30  # numbers that two tensors must have for their noise to be compared
NOTHING = 0.05  # so little of the declared variance is none
ALIKE = 0.5  # correlation above which noise is the same noise, whatever curvature does
_ANYWAY = 0.05  # a correlation that is nothing to speak of


@dataclass(frozen=True)
class Allowance:
    """What curvature explains, by canaries: the ratio to be expected, and the least one."""

    expected: float
    least: float
    seen: bool


@dataclass(frozen=True)
class Excess:
    """What tells too much noise from what else makes models differ.

    Attributes:
        alike: whether there are several tensors, all with the same ratio, which initial values do not have.
        single: whether there is only one tensor.
        dead: whether these are parameters that no gradient moves, so that sampling adds nothing.
    """

    alike: bool
    single: bool
    dead: bool = False


@dataclass(frozen=True, eq=False)
class Spread:
    """Variances between models, over the declared one.

    Attributes:
        ratios: for each parameter, each with ``models`` - 1 degrees of freedom.
    """

    ratios: FloatArray
    models: int

    def of(self, which: IntArray) -> Spread:
        """That of some parameters."""
        return Spread(self.ratios[which], self.models)

    def interval(self, error: float) -> tuple[float, float, float]:
        """The mean ratio, and its interval for independent normal numbers."""
        freedom = len(self.ratios) * (self.models - 1)
        mean = float(self.ratios.mean())
        low, high = chi2.ppf([1.0 - error / 2.0, error / 2.0], freedom) / freedom
        return mean, mean / float(low), mean / float(high)

    def of_the_quiet(self, error: float) -> float:
        """A lower bound on the ratio that three quarters of the parameters exceed: sampling adds least to the rest."""
        size, freedom = len(self.ratios), self.models - 1
        above = min(0.999, _QUARTER + float(norm.isf(error)) * np.sqrt(_QUARTER * (1.0 - _QUARTER) / size))
        found = float(np.quantile(self.ratios, _QUARTER, method="higher"))
        return found * freedom / float(chi2.ppf(above, freedom))

    def of_the_loud(self) -> float:
        """The ratio of the parameters that vary most, as if their variances differed by chance only."""
        freedom = self.models - 1
        return float(np.quantile(self.ratios, _LOUD)) * freedom / float(chi2.ppf(_LOUD, freedom))


def spread_between(models: FloatArray, declared: Declared) -> Spread:
    """The variance of each parameter between models, which are rows."""
    return Spread(models.var(axis=0, ddof=1) / declared.variance, len(models))


def noise_row(
    spread: Spread,
    tensor: str | None,
    declared: Declared,
    allowance: Allowance,
    error: float,
    batch_size: float | None,
    excess: Excess | None,
) -> Row:
    """The noise of a tensor, or of all; without ``excess`` too much of it is not looked at."""
    measured, low, high = spread.interval(error)
    status, advice = _judge(spread, (measured, low, high), declared, allowance, error, batch_size, excess)
    return Row(NAME, tensor, measured, 1.0, low, high, status, advice)


def _judge(
    spread: Spread,
    interval: tuple[float, float, float],
    declared: Declared,
    allowance: Allowance,
    error: float,
    batch_size: float | None,
    excess: Excess | None,
) -> tuple[Status, str]:
    measured, low, high = interval
    if high < allowance.least * (1.0 - ROUNDING) and (allowance.seen or spread.of_the_loud() < allowance.least):
        return "fault", _too_little(measured, declared)
    if high < 0.9 * allowance.expected and spread.of_the_loud() < 0.9:
        why = "curvature of the loss, or noise that is too small" if allowance.seen else _UNSEEN
        return "cannot tell", f"less than declared: {why}; train for fewer steps or with a smaller learning rate"
    quiet = spread.of_the_quiet(error)
    if excess is None or min(quiet, low) <= 1.0 + ROUNDING:
        return "ok", ""
    size = len(spread.ratios)
    needed = (quiet - 1.0) * size * declared.variance / (declared.squares * declared.run.clip_norm**2)
    if batch_size is None and needed > LARGE_BATCH and _is_repeated(spread, low, high, quiet, declared):
        return "fault", (
            f"{measured:.3g} times the variance declared, as if all {declared.run.steps} steps added the same noise: "
            "look where the generator of the noise is seeded"
        )
    most = 1.5 * batch_size if batch_size is not None else MOST_BATCH
    told = excess.alike or (batch_size is not None and excess.single)
    if declared.is_correlated and not excess.dead:
        told = False  # by curvature, noise that should take back earlier noise does so only in part
    if (needed > most or (excess.dead and low > _MORE)) and told:
        return "fault", _too_much(measured, declared)
    if quiet > _NOTABLE:
        known = "" if batch_size is not None else "; with batch_size sampling is told apart"
        return "cannot tell", (
            f"{measured:.3g} times the variance declared: more noise than declared, or that of sampling, or initial "
            f"values that follow the seed (give initial), which hide it{_CURVED if declared.is_correlated else known}"
        )
    return "ok", ""


_CURVED = ", or curvature, by which correlated noise cancels less"
_UNSEEN = "noise that is too small, or curvature of the loss, which no canary showed"


def dead_row(spread: Spread, declared: Declared, error: float, alike: bool, least: float) -> Row:
    """The noise of parameters that no gradient moves: less of it has no other cause, more may be initial values.

    Those differ from tensor to tensor; ``alike``: noise does not.
    """
    measured, low, high = spread.interval(error)
    status: Status = "ok"
    advice = ""
    if high < least * (1.0 - ROUNDING):
        status, advice = "fault", _too_little(measured, declared)
    elif high < _LESS:
        status = "cannot tell"
        advice = (
            "less than declared: too little noise, or a loss that pulls all parameters alike; check a run of one step"
        )
    elif low > _MORE:
        status = "fault" if alike else "cannot tell"
        advice = (
            f"too much, where no gradient moves anything: {_off(measured, declared)}; if initial values follow the "
            "seed, give initial"
        )
    return Row(DEAD, None, measured, 1.0, low, high, status, advice)


def hidden_by_sampling(row: Row, size: int, declared: Declared, batch_size: float | None) -> Row:
    """The row; it cannot tell, if batches alone could make models of so few parameters differ as much."""
    if row.status != "ok" or row.measured is None or declared.is_certain:
        return row
    examples = row.measured * size * declared.variance / (declared.squares * declared.run.clip_norm**2)
    examples /= 1.0 - float(declared.rates.mean())
    if examples > (_FEW_EXAMPLES if batch_size is None else batch_size):
        return row
    why = (
        f"batches of {examples:.2g} examples alone could make these {size} parameters differ as much, with no noise at "
        "all: check with a larger noise multiplier, with smaller batches (and batch_size), or with more parameters"
    )
    return replace(row, status="cannot tell", advice=why)


def _is_repeated(spread: Spread, low: float, high: float, quiet: float, declared: Declared) -> bool:
    """Whether all parameters alike have the variance of one noise that is added again and again."""
    factor = declared.repeated
    alike = quiet > 0.6 * factor and spread.of_the_loud() < 1.3 * factor
    return factor >= _LEAST_REPEATED and low <= factor <= high < _SHARP * low and alike


def _off(measured: float, declared: Declared) -> str:
    """By which factor, and that it may be the batch size."""
    factor = np.sqrt(measured)
    if measured <= 0.0:
        return "no noise at all, or the same in all models: look where noise is added, and how its generator is seeded"
    times = f"{factor:.3g} times the standard deviation declared"
    ratio = max(factor, 1.0 / factor)
    if ratio < _BATCH_HINT:
        return f"{times}: look at the noise multiplier, at the steps that add noise, and at the learning rate"
    return (
        f"{times}: if {ratio:.3g} is about the size of a batch, learning_rate is that of the mean of gradients, where "
        "the run needs that of their sum (rate / batch size), or the noise is scaled by the wrong one"
    )


def _too_little(measured: float, declared: Declared) -> str:
    if measured < 1e-6:
        return "no noise, or the same in all models: look where noise is added, and how its generator is seeded"
    return f"too little: {_off(measured, declared)}"


def _too_much(measured: float, declared: Declared) -> str:
    return (
        f"too much, more than sampling explains: {_off(measured, declared)}; if initial values follow the seed, give "
        "initial"
    )


def without_sampling(row: Row, models: FloatArray, shape: tuple[int, ...], declared: Declared, error: float) -> Row:
    """The row, or a fault, if sums over the last axis have no noise at all.

    Sampling may hide that a tensor has no noise. But gradients of an output layer sum up to zero over classes, whatever
    batches are drawn, so that such sums have nothing but noise.
    """
    if row.status == "fault" or not shape or shape[-1] < 2:
        return row
    sums = models.reshape(len(models), -1, shape[-1]).sum(axis=2) / np.sqrt(shape[-1])
    measured, low, high = spread_between(sums, declared).interval(error)
    nothing = min(NOTHING, 0.5 * declared.last) if declared.is_correlated else NOTHING
    if high >= nothing * min(1.0, row.measured or 0.0):  # curvature takes from sums as from the rest
        return row
    why = "sums over the last axis, to which sampling adds nothing, have no noise: look whether this tensor gets any"
    return Row(NAME, row.tensor, measured, 1.0, low, high, "fault", why)


def unmoved_row(tensor: str, moved: bool | None) -> Row:
    """A tensor that is the same in all models; ``moved``: whether a canary on it has an effect, if that was seen."""
    if moved is False:
        return not_checked(NAME, "never changes, with a canary neither: it is not trained", tensor)
    why = "a canary moves it, but noise does not: look whether noise is added to every tensor"
    if moved is None:
        return Row(NAME, tensor, 0.0, 1.0, 0.0, 0.0, "cannot tell", "the same in all models: not trained, or no noise")
    return Row(NAME, tensor, 0.0, 1.0, 0.0, 0.0, "fault", why)


def repeated_row(models: FloatArray, like: Parameters, tensors: list[int], error: float, shared: FloatArray) -> Row:
    """Whether two tensors have the same noise, as if the generator were seeded anew for each.

    Args:
        shared: for each tensor, the most of its standard deviation that batches and curvature may have in common with
            that of another.
    """
    name = "noise in two tensors"
    around = models - models.mean(axis=0)
    pairs = [(i, j) for i in range(len(tensors)) for j in range(i + 1, len(tensors))][:200]
    found: list[tuple[float, float, float, float, str]] = []
    for i, j in pairs:
        a, b = like.slices[tensors[i]], like.slices[tensors[j]]
        size = min(a.stop - a.start, b.stop - b.start)
        numbers = size * (len(models) - 1)
        if numbers < _FEWEST:
            continue
        x, y = around[:, a][:, :size].ravel(), around[:, b][:, :size].ravel()
        scale = float(np.sqrt((x @ x) * (y @ y)))
        if scale > 0.0:
            correlation = abs(float(x @ y)) / scale
            low, high = correlation_interval(correlation, numbers, error / len(pairs))
            allowed = min(ALIKE, float(shared[i] * shared[j]))
            names = f"{like.names[tensors[i]]}, {like.names[tensors[j]]}"
            found.append((low - allowed, correlation, low, high, names))
    if not found:
        return not_checked(name, "there are no two tensors that are large enough")
    above, correlation, low, high, names = max(found)
    status: Status = "fault" if above > 0.0 else "ok"
    advice = f"{names} have the same noise, or partly: look where its generator is seeded" if status == "fault" else ""
    return Row(name, names if status == "fault" else None, correlation, 0.0, low, high, status, advice)


def correlation_interval(correlation: float, numbers: int, error: float) -> tuple[float, float]:
    """Ends of a correlation of so many pairs of normal numbers, by Fisher's transform."""
    half = float(norm.isf(error / 2.0)) / np.sqrt(max(numbers - 3, 1))
    centre = np.arctanh(min(correlation, 1.0 - 1e-12))
    return max(0.0, float(np.tanh(centre - half))), float(np.tanh(centre + half))


def most_shared(ratio: float, least: float) -> float:
    """The most of the variance between models that batches and curvature may have in common among parameters.

    Noise is independent. What batches add, and what curvature takes away, need not be: two parameters have in common at
    most what they have of it. ``least`` is what curvature leaves of the declared variance, and ``ratio`` what there is.
    """
    added, taken = max(ratio - least, 0.0), 1.0 - least
    return min(1.0, (added + taken) / max(ratio, 1e-300) + _ANYWAY)
