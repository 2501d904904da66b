"""The paper's one-bit encoding, exactly: of every step the last iterate keeps whether a coordinate passed a threshold.

Without the canary a coordinate passes with probability a = P(N(0, sigma^2) >= t), with it in the batch with probability
b = P(N(1, sigma^2) >= t). The steps are independent, so that the number of bits set is all there is to know:
Binomial(T, a) against Binomial(T, a + q (b - a)).
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from lastiterate.arrays import FloatArray
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures.discrete import DiscretePair
from lastiterate.run import DPSGD
from lastiterate.values import number

_COARSE, _FINE, _BEST, _ROUNDS = 1000, 21, 20, 3  # thresholds tried at first, then around each of the best, and rounds


def pass_rates(run: DPSGD, threshold: float) -> tuple[float, float]:
    """How often a bit is set without the canary in the data, and with it; the threshold is in clipping norms."""
    noise = float(run.noise_multiplier)
    without, together = float(ndtr(-threshold / noise)), float(ndtr((1.0 - threshold) / noise))
    return without, without + float(run.sample_rate) * (together - without)


def one_bit(run: DPSGD, threshold: float) -> PrivacyCurve:
    """The curve of the last iterate under the one-bit encoding; of this attack, not a guarantee for the run."""
    return bits(run.steps, *pass_rates(run, number("threshold", threshold)))


def bits(steps: int, without: float, together: float) -> PrivacyCurve:
    """The curve of so many independent bits, which are set at one rate without the canary and at another with it."""
    count = np.arange(steps + 1)
    pair = DiscretePair(binom.logpmf(count, steps, together), binom.logpmf(count, steps, without))
    return PrivacyCurve(pair, "one_bit", is_guarantee=False)


def epsilon_bounds(
    steps: int, bits_in: FloatArray, bits_out: FloatArray, delta: float, confidence: float
) -> tuple[float, float]:
    """A lower and an upper bound on epsilon from the numbers of bits set in models with the canary, and without.

    Each holds with the confidence. Bits are independent and alike, so that those of all models together say at which
    rates they are set, by Clopper and Pearson's bounds; and epsilon grows with the distance of the two rates. The upper
    bound holds whichever rate is the larger; the lower one counts only bits that the canary sets more often.
    """
    from lastiterate.auditing.evidence.rates import upper_bound

    error = 0.5 * (1.0 - confidence)

    def rates(counts: FloatArray) -> tuple[float, float]:
        total, set_ = steps * counts.size, counts.sum()
        return 1.0 - float(upper_bound(total - set_, total, error)), float(upper_bound(set_, total, error))

    (without_low, without_high), (together_low, together_high) = rates(bits_out), rates(bits_in)
    low = bits(steps, without_high, together_low).epsilon(delta) if together_low > without_high else 0.0
    furthest = (without_low, together_high), (without_high, together_low)
    return low, max(bits(steps, *pair).epsilon(delta) for pair in furthest)


def best_threshold(run: DPSGD, delta: float) -> float:
    """The threshold with the largest epsilon, in clipping norms.

    Epsilon has a kink wherever another number of bits becomes the telling one, and a local maximum between any two. So
    many thresholds are tried, and then more of them around each of the best.
    """
    noise = float(run.noise_multiplier)
    furthest = 2.0 - float(ndtri(min(delta, 0.5)))  # rarer events than delta tell nothing
    tried: FloatArray = np.linspace(-3.0 * noise, 1.0 + furthest * noise, _COARSE)
    spacing = tried[1] - tried[0]
    for _ in range(_ROUNDS):
        epsilons = np.array([one_bit(run, threshold).epsilon(delta) for threshold in tried])
        best = tried[np.argsort(-epsilons)[:_BEST]]
        tried = np.unique(best[:, None] + np.linspace(-spacing, spacing, _FINE))
        spacing = 2.0 * spacing / (_FINE - 1)
    return float(best[0])
