"""The paper's heuristic: the analysis of a run as if its losses were linear and only the last iterate were released."""

import math
from typing import overload

import numpy as np

from lastiterate.common.errors import BadArgument
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import LEAST_NOISE, MAX_STEPS, MOST_NOISE, SomeNumbers, numbers
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures import mixture
from lastiterate.privacy.mixtures.kernels import BinomialKernel
from lastiterate.privacy.mixtures.law import BLOCKS, Law, law_of, released_laws
from lastiterate.privacy.mixtures.pairs import each_row, pair_of, replaced_pair_of
from lastiterate.run import DPSGD, MOST_OF_A_GROUP, require_run

SUPPORT = BLOCKS


def last_iterate(run: DPSGD) -> PrivacyCurve:
    """The last-iterate heuristic (the paper's Theorem 1): exact for linear losses, a prediction for all others.

    The heuristic is not a guarantee. P and Q are those of the paper's equation 1, generalised to steps of different
    weight, to people with several examples, and to examples that are replaced. If a run releases several iterates, the
    curve is for all of them.
    """
    if require_run(run).release_count > 1:
        from lastiterate.privacy.analyses.checkpoints import released_pair

        pair = released_pair(run)
    else:
        pair = replaced_pair_of(law_of(run)) if run.is_mirrored else pair_of(law_of(run))
    return PrivacyCurve(pair, "last_iterate", is_guarantee=False)


# Baseline of the paper: full-batch DP-GD with the same expected steps and the same noise.


def full_batch(run: DPSGD) -> PrivacyCurve:
    """The run with q = 1, learning rates multiplied by q_t and noise multipliers divided by q_t (equation 4).

    Every example then makes its average contribution with certainty. This is the Gaussian mechanism with mu = sum_t w_t
    q_t / sqrt(sum_t w_t^2 sigma_t^2). It is the paper's baseline for comparison, not a guarantee for the run itself.
    Each block between released iterates is such a mechanism, and the mu^2 of the blocks add up.
    """
    laws = released_laws(require_run(run))
    noise, mean = laws[0][1].noise, laws[0][1].mean
    if run.release_count > 1:
        noise, mean = 1.0, math.sqrt(math.fsum(count * (law.mean / law.noise) ** 2 for count, law in laws))
    apart = 2.0 if run.is_mirrored else 1.0
    return PrivacyCurve(pair_of(Law(noise, apart * mean)), "full_batch", is_guarantee=False)


# Grids: the heuristic for many runs at once.


@overload
def last_iterate_epsilon(  # type: ignore[overload-overlap]  # numbers give a number, arrays an array
    steps: float, sample_rate: float, noise_multiplier: float, delta: float, *, group_size: float = 1
) -> float: ...
@overload
def last_iterate_epsilon(
    steps: float | SomeNumbers,
    sample_rate: float | SomeNumbers,
    noise_multiplier: float | SomeNumbers,
    delta: float | SomeNumbers,
    *,
    group_size: float | SomeNumbers = 1,
) -> FloatArray: ...
def last_iterate_epsilon(
    steps: float | SomeNumbers,
    sample_rate: float | SomeNumbers,
    noise_multiplier: float | SomeNumbers,
    delta: float | SomeNumbers,
    *,
    group_size: float | SomeNumbers = 1,
) -> float | FloatArray:
    """Epsilon of the last-iterate heuristic for runs with constant rate and noise. Broadcasts like a NumPy ufunc.

    The values equal ``last_iterate(DPSGD(...)).epsilon(delta)``. For a grid, each value takes about a tenth of the
    time. ``group_size`` is the number of examples of a person.
    """
    count = _whole("steps", steps, MAX_STEPS)
    group = _whole("group_size", group_size, MOST_OF_A_GROUP)
    rate = numbers("sample_rate", sample_rate, 0.0, 1.0)
    sigma = numbers("noise_multiplier", noise_multiplier, LEAST_NOISE, MOST_NOISE)
    allowed = numbers("delta", delta, 0.0, 1.0, open_low=True, open_high=True)
    given = {"steps": count, "sample_rate": rate, "noise_multiplier": sigma, "delta": allowed, "group_size": group}
    try:
        items = np.broadcast_arrays(count, rate, sigma, np.log(allowed), group)
    except ValueError:
        shapes = ", ".join(f"{name} {np.shape(value)}" for name, value in given.items() if np.ndim(value))
        raise BadArgument("steps", f"and the other arguments must have shapes that broadcast, got {shapes}") from None
    flat = [np.ravel(item) for item in items]
    result = np.zeros(flat[0].shape)
    with np.errstate(all="ignore"):
        random = (flat[1] > 0.0) & (flat[1] < 1.0)
        if random.any():
            t, q, s, log_delta, m = (item[random] for item in flat)
            result[random] = each_row(mixture.epsilon, BinomialKernel(t * m, q, np.sqrt(t) * s), log_delta)
        for index in np.flatnonzero(flat[1] == 1.0):
            t, _, s, log_delta, m = (item[index] for item in flat)
            law = Law(float(np.sqrt(t)) * float(s), float(t) * float(m))  # the canary is in every batch
            result[index] = pair_of(law).epsilon(log_delta)
    return float(result[0]) if items[0].ndim == 0 else result.reshape(items[0].shape)


def _whole(name: str, value: float | SomeNumbers, most: int) -> FloatArray:
    result = numbers(name, value, 1.0, float(most))
    if np.any(result != np.floor(result)):
        raise ValueError(f"{name} must be whole numbers, got {float(result[result != np.floor(result)].flat[0])!r}")
    return result
