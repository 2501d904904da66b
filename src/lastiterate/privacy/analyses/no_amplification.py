"""A bound that holds for every way to draw batches: the adversary is told which batches contain the canary.

To this adversary every step with the canary is a Gaussian mechanism. k such steps are one Gaussian mechanism with mu =
sqrt(k) / sigma (Dong et al. 2022), whose delta has a closed form (Balle and Wang 2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import log_ndtr, ndtr, xlog1py, xlogy

from lastiterate.common.types import FloatArray, Floats
from lastiterate.privacy.analyses.correlated import correlated_pair, without_filter
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures import support as binomial
from lastiterate.privacy.mixtures.law import epoch_length, participation_rate
from lastiterate.privacy.mixtures.mixture import SinglePair
from lastiterate.privacy.mixtures.solve import Side, a_little_less, invert, solve
from lastiterate.run import DPSGD
from lastiterate.supported_runs import COMBINATIONS, LINEAR, RELEASES, Support, require_supported

_MOST_COUNTS = 20_000
_ONE = np.float64(1.0)
_UP = 1.0 + 1e-14  # a factor that exceeds the rounding error of a sum of squares


SUPPORT = Support("no_amplification", LINEAR | {RELEASES} | COMBINATIONS)


def no_amplification(run: DPSGD) -> PrivacyCurve:
    """A guarantee for any sampling, even if all iterates are released. It is loose if sampling hides the canary.

    Shuffled batches use the canary once an epoch: a Gaussian mechanism with mu = sqrt(epochs) / sigma. A last partial
    epoch counts as a whole epoch. With Poisson sampling and batches of fixed size, the number of batches with the
    canary is Binomial(steps, q). A schedule of noise is replaced by its smallest value, a schedule of rates by its
    largest value. Examples of a group may all be in the same batches, unless each is sampled independently. If one
    example replaces another, gradients differ by twice the clipping norm, which halves the noise multiplier. Correlated
    noise has the guarantee of ``composition``, unless the filter only scales the noise.
    """
    if require_supported(run, SUPPORT).noise_filter is not None:
        plain = without_filter(run)
        if plain is None:
            return PrivacyCurve(correlated_pair(run), "no_amplification", is_guarantee=True)
        run = plain
    return PrivacyCurve(told_run(run), "no_amplification", is_guarantee=True)


def told_run(run: DPSGD) -> KnownParticipations:
    """Return an upper bound on the privacy loss of all iterates of a run."""
    sigma, rate, group = float(np.min(run.noise_multiplier)), float(np.max(participation_rate(run))), run.group_size
    if run.neighbours == "replace":
        sigma *= 0.5  # gradients differ by twice the clipping norm
    if run.batches_per_epoch is not None:
        epochs = np.array([float(-(-run.steps // epoch_length(run)))])
        return KnownParticipations(sigma / group, epochs, np.zeros(1), np.zeros(1))
    if run.sampling in ("fixed", "truncated-poisson"):
        return told_participations(run.steps, min(group * rate, 1.0), sigma / group, upper=True)
    return told_group(run.steps, rate, sigma, group)


def told_group(steps: int, rate: float, sigma: float, group: int) -> KnownParticipations:
    """Return an upper bound for a group whose examples are sampled independently.

    mu^2 is the sum over batches of n^2 / sigma^2, where n is the number of the group's examples in the batch. Since n
    <= ``group``, mu^2 is at most ``group`` / sigma^2 times the sum of all n.
    """
    if group == 1 or rate < 1.0:
        return told_participations(steps * group, rate, sigma / math.sqrt(group), upper=True)
    return told_participations(steps, rate, sigma / group, upper=True)


def told_kinds(counts: FloatArray, rates: FloatArray, sigmas: FloatArray, group: int) -> KnownParticipations:
    """Return an upper bound for several rates and noise multipliers. If they are too many, use the worst ones."""
    worst = told_group(int(counts.sum()), float(rates.max()), float(sigmas.min()), group)
    count, log_mass = np.zeros(1), np.zeros(1)
    if counts.size == 1:
        return worst
    for steps, rate, sigma in zip(counts.tolist(), rates.tolist(), sigmas.tolist(), strict=True):
        kind = told_group(int(steps), rate, sigma, group)
        if count.size * kind.count.size > _MOST_COUNTS:
            return worst
        count = np.add.outer(count, kind.count * (worst.sigma / kind.sigma) ** 2 * _UP).ravel()
        log_mass = np.add.outer(log_mass, kind.log_mass).ravel()
    return KnownParticipations(worst.sigma, count, log_mass, np.zeros_like(count))


def told_participations(steps: int, rate: float, sigma: float, *, upper: bool) -> KnownParticipations:
    """Bound composition with Poisson sampling, by an adversary who is told which batches contain the canary.

    Upper bound: knowledge of the batches never hides anything.

    Lower bound: let x be the loss of a step with the canary for the adversary who is told. For the adversary who is not
    told, the loss is log(1 - q + q e^x) >= x + log q, and a step without the canary has a loss of at least log(1 - q)
    instead of 0. With k steps with the canary the loss changes by at least k log q + (steps - k) log(1 - q) in all. The
    bounds are close if there is little noise.
    """
    middle, half = _stretches(steps, rate)
    log_mass = _log_masses(middle, half, steps, rate, upper=upper)
    fewest, most = (np.clip(middle + side * half, 0.0, float(steps)) for side in (-1.0, 1.0))
    if upper:
        return KnownParticipations(sigma, most, log_mass, np.zeros_like(most), 2.0 * half)
    # The smallest count of the interval, with the largest decrease of the loss. The decrease is linear in the count.
    shifts = [-(xlogy(count, rate) + xlog1py(steps - count, -rate)) for count in (fewest, most)]
    return KnownParticipations(sigma, fewest, log_mass, np.maximum(*shifts))


def _stretches(steps: int, rate: float) -> tuple[FloatArray, float]:
    """Split the range of the number of batches with the canary into intervals. Return middles and half-width."""
    if rate in (0.0, 1.0):
        return np.array([steps * rate]), 0.0
    spread = math.sqrt(1500.0 * steps * rate * (1.0 - rate)) + 500.0
    low, high = max(0.0, math.floor(steps * rate - spread)), min(float(steps), math.ceil(steps * rate + spread))
    half = float(math.ceil(0.5 * max((high - low) / _MOST_COUNTS - 1.0, 0.0)))
    return np.arange(min(low + half, high), high + half + 1.0, 2.0 * half + 1.0), half


def _log_masses(middle: FloatArray, half: float, steps: int, rate: float, *, upper: bool) -> FloatArray:
    """Return logs of bounds on the probabilities of intervals, by log-concavity. They are exact for half-width 0."""
    if rate in (0.0, 1.0):
        return np.zeros(1)

    def log_binomial(count: FloatArray) -> FloatArray:
        inside = (count >= 0.0) & (count <= steps)
        logs = binomial.log_binomial(np.clip(count, 0.0, float(steps)), np.float64(steps), np.float64(rate))
        return np.where(inside, logs, -np.inf)

    with np.errstate(all="ignore"):
        if half == 0.0:
            return log_binomial(middle)
        if upper:
            middle, odds = np.minimum(middle, float(steps)), rate / (1.0 - rate)
            ratios = [(steps - middle) / (middle + 1.0) * odds, middle / (steps - middle + 1.0) / odds]
        else:
            ends, inside = (log_binomial(middle + half), log_binomial(middle - half)), middle <= steps
            ratios = [np.where(inside, np.exp((end - log_binomial(middle)) / half), 0.0) for end in ends]
        sides = [np.where(ratio == 1.0, half, ratio * (1.0 - ratio**half) / (1.0 - ratio)) for ratio in ratios]
        log_masses: FloatArray = log_binomial(middle) + np.log1p(sides[0] + sides[1])
    return log_masses


@dataclass(frozen=True)
class KnownParticipations(SinglePair):
    """A Gaussian mechanism with mu = sqrt(count) / sigma and a random count, which the adversary knows.

    The ``shift`` of a count is subtracted from the privacy loss. A count stands for ``count - below`` up to ``count``.
    """

    sigma: float
    count: FloatArray
    log_mass: FloatArray
    shift: FloatArray
    below: float = 0.0

    @cached_property
    def mus(self) -> FloatArray:
        return np.sqrt(self.count) / self.sigma

    def _lower(self) -> KnownParticipations:
        return replace(self, count=np.maximum(self.count - self.below, 0.0))

    def proved_end(self, log_delta: float, *, upper: bool) -> float:
        """Return an epsilon at which delta is at most (``upper``) or at least the given delta.

        If none is found, return infinity for ``upper`` and 0 otherwise. Delta is evaluated at the epsilon that the
        search returns. Its rounding error comes from the terms of delta and from the log-probabilities of counts far
        from their mean (see `log_binomial`).
        """
        rounding = 1e-11 + 1e-15 * float(np.ptp(self.count))
        goal = log_delta - rounding if upper else log_delta + rounding
        if not goal < 0.0:
            return 0.0
        end, step = float(self._epsilon(np.float64(goal))), 1e-12
        for _ in range(40):
            if not math.isfinite(end) or (end <= 0.0 and not upper):
                break
            now = float(self._side(np.float64(end)).log_delta)
            if now <= goal if upper else now >= goal:
                return end
            end, step = end + (step if upper else -step) * max(1.0, end), 4.0 * step
        return math.inf if upper else 0.0

    def mu(self, smallest_error: float) -> float:
        return float(self.mus[0]) if self.mus.size == 1 else super().mu(smallest_error)

    def mu_bracket(self, smallest_error: float) -> tuple[float, float]:
        if self.mus.size > 1 or self.below:
            return super().mu_bracket(smallest_error)
        return (1.0 - self.relative_error) * float(self.mus[0]), (1.0 + self.relative_error) * float(self.mus[0])

    def _epsilon(self, log_delta: Floats) -> Floats:
        largest = self.mus.max()
        high: Floats = 0.5 * largest**2 + largest * np.sqrt(-2.0 * log_delta) + 1e-300
        if not np.isfinite(high):
            return high
        if self._side(np.float64(0.0)).log_delta <= a_little_less(log_delta):
            return np.float64(0.0)
        return solve(self._side, log_delta, 0.5 * high, 0.0 * high, high)[0]

    def _log_delta(self, epsilon: Floats) -> Floats:
        return self._side(epsilon).log_delta

    def _side(self, epsilon: Floats) -> Side:
        used = self.mus > 0.0
        mu, log_mass, loss = self.mus[used], self.log_mass[used], epsilon + self.shift[used]
        log_p, log_q = log_ndtr(0.5 * mu - loss / mu), loss + log_ndtr(-0.5 * mu - loss / mu)
        log_terms = np.where(log_q < log_p, log_mass + log_p + np.log1p(-np.exp(log_q - log_p)), -np.inf)
        log_delta = np.minimum(np.logaddexp.reduce(log_terms), 0.0)
        return Side(epsilon, _ONE, log_delta, -np.exp(np.logaddexp.reduce(log_mass + log_q) - log_delta))

    def _fnr(self, fpr: Floats) -> Floats:
        """Return P(L <= l) + e^l (Q(L > l) - fpr), where the loss L exceeds l with probability fpr under Q."""
        used = self.mus > 0.0
        mu, log_mass, goal = self.mus[used], self.log_mass[used], np.log(fpr)
        unused = np.exp(np.logaddexp.reduce(self.log_mass[~used], initial=-np.inf))

        def rarity(loss: Floats) -> tuple[Floats, Floats]:
            idle = unused if loss < 0.0 else 0.0  # an unused canary has loss 0
            rate = np.exp(np.logaddexp.reduce(log_mass + log_ndtr(-loss / mu - 0.5 * mu), initial=-np.inf))
            return -np.log(rate + idle), np.float64(np.nan)

        loss: Floats = np.float64(0.0)
        if rarity(loss)[0] < -goal or rarity(np.float64(-1e-300))[0] > -goal:
            reach = np.float64(self.mus.max() ** 2 + 40.0 * self.mus.max())
            loss = invert(rarity, -goal, loss, -reach, reach)
        accepted = np.vecdot(np.exp(log_mass), ndtr(loss / mu - 0.5 * mu)) + (unused if loss >= 0.0 else 0.0)
        missed: Floats = accepted + np.exp(loss - rarity(loss)[0]) - np.exp(loss + goal)
        return missed


TOLD_NOTHING = KnownParticipations(1.0, np.zeros(1), np.zeros(1), np.zeros(1))
