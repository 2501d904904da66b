"""What the linear analysis says about scores: signal * S / s + N(0, spread^2) with the canary, N alone without it.

S is how much of the canary is in the last iterate and s the standard deviation of its noise. The law comes from its
characteristic function on an equally spaced grid, to an absolute error of about 1e-12: enough to predict with.
"""

from __future__ import annotations

import math

import numpy as np

from lastiterate.arrays import ComplexArray, FloatArray
from lastiterate.privacy.mixtures.law import law_of
from lastiterate.run import DPSGD

_FURTHEST = 12.0  # standard deviations, beyond which there is no mass to speak of
_LAST = 8.5  # frequency, in 1 / spread, after which a Gaussian's characteristic function is below 1e-15
_AT_ONCE = 1_000_000  # terms in memory


def score_below(run: DPSGD, scores: FloatArray, *, spread: float = 1.0, signal: float = 1.0) -> FloatArray:
    """The probability that a model with the canary has a smaller score than each of these (Gil-Pelaez, 1951)."""
    step, frequencies, transform = _transform(run, spread, signal)
    waves = np.exp(-1j * np.multiply.outer(scores, frequencies))
    return np.clip(0.5 - step / math.pi * (waves @ (transform / frequencies)).imag, 0.0, 1.0)


def score_density(run: DPSGD, scores: FloatArray, *, spread: float = 1.0, signal: float = 1.0) -> FloatArray:
    """The density of the score of a model with the canary."""
    step, frequencies, transform = _transform(run, spread, signal)
    waves = np.exp(-1j * np.multiply.outer(scores, frequencies))
    return np.maximum(step / math.pi * (waves @ transform).real, 0.0)


def _transform(run: DPSGD, spread: float, signal: float) -> tuple[float, FloatArray, ComplexArray]:
    """The distance of frequencies, these, and the characteristic function of the score there."""
    law = law_of(run)
    scale = signal / law.noise
    deviation = math.hypot(scale * math.sqrt(law.variance), spread)
    # Half a period of the grid: from any score to be asked for to any that occurs.
    reach = 2.0 * (scale * abs(law.mean) + _FURTHEST * deviation)
    step = math.pi / reach
    frequencies = (np.arange(math.ceil(_LAST / (spread * step)), dtype=np.float64) + 0.5) * step
    logs = 1j * scale * law.constant * frequencies - 0.5 * np.square(spread * frequencies)
    chunk = max(1, _AT_ONCE // frequencies.size)
    for start in range(0, law.counts.size, chunk):
        some = slice(start, start + chunk)
        turns = np.expm1(1j * scale * np.multiply.outer(law.weights[some], frequencies))
        logs = logs + law.counts[some] @ np.log1p(law.rates[some, None] * turns)
    result = np.exp(logs)
    for values, probabilities in law.blocks:
        result = result * (probabilities @ np.exp(1j * scale * np.multiply.outer(values, frequencies)))
    return step, frequencies, result
