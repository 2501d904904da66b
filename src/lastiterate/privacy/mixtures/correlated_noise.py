"""Correlated noise in the last iterate, and products and inverses of noise filters with error bounds.

The noise of step t is the sum of c_j z_(t-j). z_s enters the last iterate in all steps from s on, with the total
weight v_s = sum_j c_j w_(s+j). So the variance is the sum of sigma_s^2 v_s^2 over all s >= 0.
"""

import math
from functools import lru_cache
from itertools import accumulate
from typing import TypeVar

import numpy as np

from lastiterate.common.errors import BadArgument
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import PerStep
from lastiterate.run import DPSGD

# Causal filters: products and inverses. A filter (c_0, c_1, ...) is the first column of a triangular Toeplitz matrix.
# Correlated noise is designed to cancel, so products lose relative accuracy: all error bounds are absolute.

Numbers = TypeVar("Numbers", float, FloatArray)

_UNIT = 2.0**-53
_MOST_EXACT = 2**23  # largest number of products for which sums are computed with twice the digits
_BLOCK = 256
_FFT = 10.0 * math.log2(2 * _BLOCK) * _UNIT  # relative error of a transform, 2-norm (Higham 2002, theorem 24.2)
_LARGEST = 1e100  # largest coefficient of an inverse


def product(first: FloatArray, second: FloatArray, size: int) -> tuple[FloatArray, float]:
    """Return the first ``size`` coefficients of a product of filters, and a bound on the 2-norm of their error."""
    first, second = first[:size], second[:size]
    if np.count_nonzero(first) > np.count_nonzero(second):
        first, second = second, first
    if np.count_nonzero(first) * size <= _MOST_EXACT:
        return _compensated(first, second, size)
    return _by_blocks(first, second, size)


def _compensated(short: FloatArray, long: FloatArray, size: int) -> tuple[FloatArray, float]:
    """Compute the product with twice the digits, then round it (Ogita, Rump and Oishi 2005, Dot2)."""
    high, low = np.zeros(size), np.zeros(size)
    upper = _upper_half(long)
    lower = long - upper
    places = np.flatnonzero(short)
    for place in places.tolist():
        factor = float(short[place])
        part = slice(place, min(place + long.size, size))
        count = part.stop - part.start
        term = factor * long[:count]
        factor_upper = _upper_half(factor)
        factor_lower = factor - factor_upper
        lost = factor_upper * upper[:count] - term
        lost += factor_lower * upper[:count]
        lost += factor_upper * lower[:count]
        lost += factor_lower * lower[:count]
        total = high[part] + term
        back = total - high[part]
        lost += (high[part] - (total - back)) + (term - back)
        high[part] = total
        low[part] += lost
    result = high + low
    doubt = (2.0 * (places.size + 2) * _UNIT) ** 2
    size_of_terms = float(np.sum(np.abs(short))) * float(np.linalg.norm(long))
    return result, _UNIT * float(np.linalg.norm(result)) + doubt * size_of_terms


def _upper_half(value: Numbers) -> Numbers:  # the upper 26 bits of the significand (Dekker 1971)
    scaled: Numbers = 134217729.0 * value
    return scaled - (scaled - value)


def _by_blocks(first: FloatArray, second: FloatArray, size: int) -> tuple[FloatArray, float]:
    """Compute the product by Fourier transforms of short blocks, so that errors are relative to each block."""
    blocks, others = (np.append(each, np.zeros(-each.size % _BLOCK)).reshape(-1, _BLOCK) for each in (first, second))
    transforms, other_transforms = (np.fft.rfft(each, 2 * _BLOCK, axis=1) for each in (blocks, others))
    count = -(-size // _BLOCK)
    total = np.zeros((count, _BLOCK + 1), complex)
    for place, transform in enumerate(transforms[:count]):
        part = other_transforms[: count - place]
        total[place : place + len(part)] += transform * part
    pieces = np.fft.irfft(total, 2 * _BLOCK, axis=1)
    result = pieces[:, :_BLOCK]
    result[1:] += pieces[:-1, _BLOCK:]
    sizes, other_sizes = ([np.linalg.norm(each, order, axis=1) for order in (1, 2)] for each in (blocks, others))
    rounding = 2.0 * _FFT + (4.0 + min(len(blocks), len(others))) * _UNIT
    errors = rounding * np.convolve(sizes[0], other_sizes[1]) + _FFT * np.convolve(sizes[1], other_sizes[0])
    return result.ravel()[:size].copy(), 2.0 * float(np.linalg.norm(errors[:count]))


def inverse(coefficients: FloatArray, size: int) -> tuple[FloatArray, float]:
    """Return the first ``size`` coefficients of the inverse of a filter, and a bound on the sum of their errors.

    Uses Newton's iteration. If c times the result is 1 + r, the error is at most |result| |r| / (1 - |r|), where |.| is
    the sum of absolute values. The bound is infinite if the inverse grows too fast for floats.
    """
    coefficients = coefficients[:size]
    result = np.array([1.0 / coefficients[0]])
    with np.errstate(all="ignore"):
        while result.size < size:
            longer = min(2 * result.size, size)
            left = _quick(coefficients, result, longer)
            left[0] -= 1.0
            result = np.append(result, np.zeros(longer - result.size)) - _quick(result, left, longer)
        if not np.isfinite(result).all() or np.abs(result).max() > _LARGEST:
            return result, math.inf
        left, _ = _residual(coefficients, result)
        result = result - _quick(result, left, size)
        left, rest = _residual(coefficients, result)
    off = float(np.sum(np.abs(left))) + math.sqrt(size) * rest
    return result, float(np.sum(np.abs(result))) * off / (1.0 - off) if off < 0.5 else math.inf


def _residual(coefficients: FloatArray, inverse_: FloatArray) -> tuple[FloatArray, float]:
    left, error = product(coefficients, inverse_, inverse_.size)
    left[0] -= 1.0
    return left, error


def _quick(first: FloatArray, second: FloatArray, size: int) -> FloatArray:
    first, second = first[:size], second[:size]
    if min(first.size, second.size) <= 64:
        values: FloatArray = np.convolve(first, second)
    else:
        length = 1 << (first.size + second.size - 1).bit_length()
        values = np.fft.irfft(np.fft.rfft(first, length) * np.fft.rfft(second, length), length)
    return values[:size].copy() if values.size >= size else np.append(values, np.zeros(size - values.size))


# Noise in the last iterate.

_MOST_DOUBT = 4e-10  # largest relative error of a standard deviation; the error is subtracted from it


def filtered_noise(run: DPSGD, weights: PerStep) -> float:
    """Return a lower bound on the standard deviation of the released noise, for steps with these weights."""
    assert run.noise_filter is not None
    sigma = np.asarray(run.noise_multiplier)
    largest = float(np.max(sigma))
    if np.ndim(weights) == 0 and sigma.ndim == 0:
        sums = prefix_sums(run.noise_filter)[: run.steps]  # v_s of steps of weight 1
        rest = (run.steps - len(sums)) * sums[-1] ** 2
        spread = abs(float(weights)) * math.sqrt(math.fsum([each * each for each in sums] + [rest]))
        error = math.sqrt(run.steps) * (len(sums) * 2.0**-52) ** 2 * math.fsum(map(abs, run.noise_filter))
        error = abs(float(weights)) * error
    else:
        values, error = influences(run, weights)
        spread = float(np.linalg.norm(sigma / largest * values))
    if not error <= _MOST_DOUBT * spread:
        raise BadArgument(
            "noise_filter",
            "must leave more noise in the released model: the filter cancels nearly all noise, and the "
            "remaining noise cannot be computed to ten digits",
        )
    return largest * (spread - error)


def influences(run: DPSGD, weights: PerStep) -> tuple[FloatArray, float]:
    """Return the weight of each z_s in the released model, and a bound on the 2-norm of the errors."""
    counts = np.broadcast_to(np.asarray(weights, np.float64), (run.steps,))
    values, error = product(np.array(run.noise_filter), counts[::-1], run.steps)
    return values[::-1], error


@lru_cache(maxsize=8)
def prefix_sums(values: tuple[float, ...]) -> list[float]:
    """Return the prefix sums of values, computed with twice the digits."""

    def add(total: tuple[float, float], value: float) -> tuple[float, float]:
        high = total[0] + value
        back = high - total[0]
        return high, total[1] + ((total[0] - (high - back)) + (value - back))

    return [high + low for high, low in accumulate(values, add, initial=(0.0, 0.0))][1:]
