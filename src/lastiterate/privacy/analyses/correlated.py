"""The guarantee for correlated noise: one Gaussian mechanism, whichever batches contain the canary.

The adversary sees the noisy sums G + F z of all steps. F is lower triangular, so with C = F^-1 the adversary equally
sees C G + z, step by step. The canary changes the mean of step t by (C D)_t. D holds the gradients of the canary, which
may depend on everything seen before. The sum of the squares of these changes is at most the largest |C D|^2. If changes
are chosen adaptively under such a bound, the mechanism reveals no more than one Gaussian mechanism whose change equals
the bound (Denisov et al. 2022, theorem 2.1). A mixture over batches is no easier to distinguish than the worst choice
of batches.

The largest change is the largest |C u|, where u is 1 for batches with the example and 0 for the others. The gradient of
the example may point in a different direction at every step. So |C u|^2 means here the sum of |X_ij| over all pairs of
steps in u, where X = C^T C. The sum is |C u|^2 itself if no entry of C is negative.

Let the filter decrease and never be negative, and let participations be at least b steps apart. Then the worst
participations are at steps 0, b, 2b, ...: X_ij falls with the later of the two steps and with their distance, and
participation k = 0, 1, ... cannot be before step k b. The absolute values of any filter lie below a decreasing filter,
their running maximum from the end (``_envelope``). So the bound for the decreasing filter holds for every filter.
"""

import math
from functools import lru_cache

import numpy as np

from lastiterate.common.errors import BadArgument
from lastiterate.common.types import BoolArray, FloatArray
from lastiterate.privacy.curve import Pair
from lastiterate.privacy.mixtures.correlated_noise import inverse
from lastiterate.privacy.mixtures.law import Law
from lastiterate.privacy.mixtures.pairs import NothingPair, pair_of
from lastiterate.run import DPSGD

# Largest change: upper bounds on |C u| over all allowed u. C is the inverse of the noise filter's matrix.

MOST_STEPS = 10**6
_MOST_DOUBT = 1e-7  # largest relative error of the result; the error is added to the result
_MOST_PAIRS = 16_384  # largest number of steps for which all pairs of steps are examined
_MOST_ROWS = 2048  # largest number of steps for which X fits into memory
_MOST_ENTRIES = 2**21  # largest product of patterns and steps for which all patterns are tried
_MOST_PRODUCTS = 3 * 10**8
_UNIT = 2.0**-53


@lru_cache(maxsize=16)
def largest_norm(coefficients: tuple[float, ...], steps: int, apart: int, epoch: int | None) -> float:
    """Return an upper bound on |C u| for gradients of norm 1, over all u allowed by ``apart`` and ``epoch``.

    Participations are at least ``apart`` steps apart. If ``epoch`` is None, their number is not limited. Otherwise the
    example is used once in every ``epoch`` steps. The bound is tight up to 1e-7 in three cases:

    - ``apart`` is 1, ``epoch`` is None, and either there are at most 16,384 steps or no entry of C is negative;
    - C decreases, no entry is negative, and ``epoch`` is None or ``apart``;
    - there are few enough participation patterns to try them all.
    """
    if steps > MOST_STEPS:
        raise BadArgument("steps", f"must be at most {MOST_STEPS} for a guarantee with noise_filter, got {steps}")
    values, error = inverse(np.array(coefficients), steps)
    count = -(-steps // apart) if epoch is None else -(-steps // epoch)
    with np.errstate(all="ignore"):
        doubt = error * math.sqrt(count)
        found = _bound(values, apart, epoch)
        if not (math.isfinite(found) and doubt <= _MOST_DOUBT * found):
            raise BadArgument(
                "noise_filter",
                "must have an inverse that floats can hold, for a guarantee: with this filter, later "
                "steps cancel nearly all of the noise",
            )
    return found + doubt


def _bound(values: FloatArray, apart: int, epoch: int | None) -> float:
    rounding = 1.0 + 8.0 * values.size * _UNIT
    if apart == 1 and epoch is None:
        return rounding * _of_all_steps(values)
    falling = _envelope(values)
    bounds = [_evenly(falling, apart, -(-values.size // (apart if epoch is None else epoch)))]
    if epoch is not None and -(-values.size // epoch) * values.size <= _MOST_PRODUCTS:
        bounds.append(_one_each_epoch(falling, apart, epoch))
    if values.size <= _MOST_ROWS and not (np.array_equal(values, falling) and epoch in (None, apart)):
        patterns = _patterns(values.size, apart, epoch)
        if patterns is None:
            bounds.append(_by_rows(values, apart, epoch))
        else:
            matrix, doubt = _absolute_gram(values)
            rows = patterns.astype(np.float64)
            bounds.append(math.sqrt(float(np.max(np.vecdot(rows @ matrix, rows))) + doubt))
    if apart == 1:
        bounds.append(_of_all_steps(values))
    return rounding * min(bounds)


def _of_all_steps(values: FloatArray) -> float:
    absolute = float(np.linalg.norm(np.cumsum(np.abs(values))))
    if values.min() >= 0.0 or values.size > _MOST_PAIRS:
        return absolute
    total = 0.0
    for lag in range(values.size):  # X at (i, i + lag) is a prefix sum of products
        entries = np.cumsum(values[: values.size - lag] * values[lag:])
        total += (2.0 if lag else 1.0) * float(np.sum(np.abs(entries)))
    return min(math.sqrt(total + 4.0 * values.size * _UNIT * absolute**2), absolute)


def _envelope(values: FloatArray) -> FloatArray:
    result: FloatArray = np.maximum.accumulate(np.abs(values)[::-1])[::-1]
    return result


def _evenly(falling: FloatArray, apart: int, count: int) -> float:
    """Return the norm for ``count`` participations at steps 0, ``apart``, 2 ``apart``, ...: the worst case."""
    size = falling.size
    padded = np.zeros(-(-size // apart) * apart)
    padded[:size] = falling
    sums = np.cumsum(padded.reshape(-1, apart), axis=0)
    sums[count:] -= sums[:-count].copy()
    return float(np.linalg.norm(sums.ravel()[:size]))


def _one_each_epoch(falling: FloatArray, apart: int, epoch: int) -> float:
    """Bound one participation per epoch. Each two epochs count with the two nearest steps that are allowed."""
    size, count = falling.size, -(-falling.size // epoch)
    total = 0.0
    for later in range(count):
        lag = max((later - 1) * epoch + 1, later * apart) if later else 0
        entries = np.cumsum(falling[: size - lag] * falling[lag:])
        begins = np.arange(later, count) * epoch
        total += (2.0 if later else 1.0) * float(np.sum(entries[size - 1 - begins]))
    return math.sqrt(total)


def _patterns(steps: int, apart: int, epoch: int | None) -> BoolArray | None:
    rows, last = np.zeros((1, steps), bool), np.full(1, -max(apart, steps + 1))
    for step in range(steps):
        free = step - last >= apart
        if epoch is not None:
            free &= last // epoch != step // epoch
        more = rows[free]
        more[:, step] = True
        rows, last = np.concatenate([rows, more]), np.append(last, np.full(len(more), step))
        if rows.size > _MOST_ENTRIES:
            return None
    return rows


def _by_rows(values: FloatArray, apart: int, epoch: int | None) -> float:
    """Sum over rows of |X| (Choquette-Choo et al. 2023, Algorithm 4). The diagonal entries are always included."""
    matrix, doubt = _absolute_gram(values)
    steps = np.arange(values.size)
    far = np.abs(steps[:, None] - steps) >= apart
    if epoch is None:
        own = np.diag(matrix) + _best(np.where(steps < steps[:, None], matrix * far, 0.0), apart)
        own += _best(np.where(steps > steps[:, None], matrix * far, 0.0), apart)
        return math.sqrt(float(_best(own[None], apart)[0]) + doubt)
    begins = np.arange(0, values.size, epoch)
    elsewhere = far & (steps[:, None] // epoch != steps // epoch)
    own = np.diag(matrix) + np.maximum.reduceat(matrix * elsewhere, begins, axis=1).sum(axis=1)
    return math.sqrt(float(np.maximum.reduceat(own, begins).sum()) + doubt)


def _absolute_gram(values: FloatArray) -> tuple[FloatArray, float]:
    """Return |X|, and a bound on the error of any sum of its entries."""
    size = values.size
    result = np.zeros((size, size))
    for lag in range(size):
        entries = np.abs(np.cumsum(values[: size - lag] * values[lag:]))[::-1]
        places = np.arange(size - lag)
        result[places, places + lag] = result[places + lag, places] = entries
    return result, 4.0 * size * _UNIT * float(np.linalg.norm(np.cumsum(np.abs(values)))) ** 2


def _best(rows: FloatArray, apart: int) -> FloatArray:
    """Return, for each row, the largest sum of entries that are at least ``apart`` from each other."""
    columns = rows.T
    best = np.zeros((len(columns) + apart, len(rows)))
    for place, column in enumerate(columns):
        best[place + apart] = np.maximum(best[place + apart - 1], column + best[place])
    return np.asarray(best[-1])


def correlated_pair(run: DPSGD) -> Pair:
    """Return the Gaussian mechanism with mu = |C u| / sigma, for the worst u and the smallest sigma of a schedule.

    Examples of a group may all be in the same batches. If one example replaces another, gradients differ by twice the
    clipping norm.
    """
    assert run.noise_filter is not None
    if not np.any(run.sample_rate):
        return NothingPair()
    size = largest_norm(run.noise_filter, run.steps, run.min_separation, run.batches_per_epoch)
    apart = run.group_size * (2.0 if run.neighbours == "replace" else 1.0)
    return pair_of(Law(float(np.min(run.noise_multiplier)), apart * size))


def without_filter(run: DPSGD) -> DPSGD | None:
    """Return an equivalent run without a filter, or None if the filter mixes steps or ``min_separation`` exceeds 1."""
    assert run.noise_filter is not None
    if any(run.noise_filter[1 : run.steps]) or run.min_separation > 1:
        return None
    return run.replace(noise_filter=None, noise_multiplier=run.noise_multiplier * abs(run.noise_filter[0]))
