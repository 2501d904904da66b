"""A bound that holds however batches are drawn: the adversary is told which batches contain the canary.

To this adversary every step with the canary is a Gaussian mechanism. k such steps are one Gaussian mechanism with mu =
sqrt(k) / sigma (Dong et al. 2022), whose delta has a closed form (Balle and Wang 2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import log_ndtr, ndtr, xlog1py, xlogy

from lastiterate.privacy.analyses.correlated import correlated_pair, without_filter
from lastiterate.privacy.curve import PrivacyCurve
from lastiterate.privacy.mixtures import support as binomial
from lastiterate.privacy.mixtures.law import epoch_length
from lastiterate.privacy.mixtures.pairs import RELATIVE_ERROR, larger_delta, smaller_delta
from lastiterate.privacy.mixtures.solve import Side, a_little_less, each, invert, solve
from lastiterate.run import DPSGD, require_run

if TYPE_CHECKING:
    from lastiterate.common.types import FloatArray, Floats

_MOST_COUNTS = 20_000
_ONE = np.float64(1.0)
_UP = 1.0 + 1e-14  # a factor that exceeds the rounding error of a sum of squares


def no_amplification(run: DPSGD) -> PrivacyCurve:
    """A guarantee for every way of sampling and every iterate released; loose if sampling hides the canary.

    Shuffled batches use the canary once an epoch: a Gaussian mechanism with mu = sqrt(epochs) / sigma. A last partial
    epoch counts as a whole one. With Poisson sampling and batches of fixed size, the number of batches with the canary
    is Binomial(steps, q). A schedule of noise counts as its smallest value, a schedule of rates as its largest.
    Examples of a group may all be in the same batches, unless each is sampled independently. If one example replaces
    another, gradients differ by twice the clipping norm, which halves the noise multiplier. Correlated noise has the
    guarantee of ``composition``, unless the filter only scales the noise.
    """
    if require_run(run).noise_filter is not None:
        plain = without_filter(run)
        if plain is None:
            return PrivacyCurve(correlated_pair(run), "no_amplification", is_guarantee=True)
        run = plain
    return PrivacyCurve(told_run(run), "no_amplification", is_guarantee=True)


def told_run(run: DPSGD) -> KnownParticipations:
    """Return an upper bound on the privacy loss of any iterates of a run."""
    sigma, rate, group = float(np.min(run.noise_multiplier)), float(np.max(run.sample_rate)), run.group_size
    if run.neighbours == "replace":
        sigma *= 0.5  # gradients differ by twice the clipping norm
    if run.sampling == "shuffled":
        epochs = np.array([float(-(-run.steps // epoch_length(run)))])
        return KnownParticipations(sigma / group, epochs, np.zeros(1), np.zeros(1))
    if run.sampling == "fixed":
        return told_participations(run.steps, min(group * rate, 1.0), sigma / group, upper=True)
    return told_group(run.steps, rate, sigma, group)


def told_group(steps: int, rate: float, sigma: float, group: int) -> KnownParticipations:
    """Return an upper bound for a group whose examples are sampled independently.

    If B_t of the examples are in batch t, mu^2 is the sum of B_t^2 over sigma^2. The sum is at most ``group`` times the
    sum of B_t, which is Binomial(group steps, rate). The bound is exact if all examples are in every batch.
    """
    if group == 1 or rate < 1.0:
        return told_participations(steps * group, rate, sigma / math.sqrt(group), upper=True)
    return told_participations(steps, rate, sigma / group, upper=True)


def told_kinds(counts: FloatArray, rates: FloatArray, sigmas: FloatArray, group: int) -> KnownParticipations:
    """Return an upper bound for steps of several kinds.

    The adversary is told, for each kind, the number of steps with the canary. If there are too many combinations of
    these numbers, every step counts as the worst kind.
    """
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

    Upper bound: knowledge of the batches with the canary never hides anything.

    Lower bound: without this knowledge the loss is lower by at most a constant. Let x be the loss of a step with the
    canary for the adversary who is told. For the adversary who is not told, the loss of that step is log(1 - q + q e^x)
    >= x + log q, and a step without the canary has a loss of at least log(1 - q) instead of 0. With k steps with the
    canary the loss changes by at least k log q + (steps - k) log(1 - q) in all.

    The two bounds are close to each other if there is little noise.
    """
    middle, half = _stretches(steps, rate)
    log_mass = _log_masses(middle, half, steps, rate, upper=upper)
    fewest, most = (np.clip(middle + side * half, 0.0, float(steps)) for side in (-1.0, 1.0))
    if upper:
        return KnownParticipations(sigma, most, log_mass, np.zeros_like(most), 2.0 * half)
    # The smallest count of the stretch, with the largest decrease of the loss, which is linear in the count.
    shifts = [-(xlogy(count, rate) + xlog1py(steps - count, -rate)) for count in (fewest, most)]
    return KnownParticipations(sigma, fewest, log_mass, np.maximum(*shifts))


def _stretches(steps: int, rate: float) -> tuple[FloatArray, float]:
    """Return the numbers of batches that may have the canary, as stretches of counts: the middles, and the half-width.

    All counts down to a probability of 1e-320 are covered. The half-width is 0 unless there are too many counts.
    """
    if rate in (0.0, 1.0):
        return np.array([steps * rate]), 0.0
    spread = math.sqrt(1500.0 * steps * rate * (1.0 - rate)) + 500.0
    low, high = max(0.0, math.floor(steps * rate - spread)), min(float(steps), math.ceil(steps * rate + spread))
    half = float(math.ceil(0.5 * max((high - low) / _MOST_COUNTS - 1.0, 0.0)))
    return np.arange(min(low + half, high), high + half + 1.0, 2.0 * half + 1.0), half


def _log_masses(middle: FloatArray, half: float, steps: int, rate: float, *, upper: bool) -> FloatArray:
    """Return logarithms of bounds on the probabilities of stretches; log-probabilities if stretches are single counts.

    The binomial distribution is log-concave. So from the middle on, the probability falls at least as fast as over the
    first count, and at most as fast as on average up to the end of the stretch.
    """
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
class KnownParticipations:
    """A randomly drawn Gaussian mechanism with mu = sqrt(count) / sigma; the adversary knows which one was drawn.

    The privacy loss is lowered by the ``shift`` of the count. A count may stand for a stretch of smaller counts, down
    to ``count - below``.
    """

    sigma: float
    count: FloatArray
    log_mass: FloatArray
    shift: FloatArray
    below: float = 0.0

    @cached_property
    def mu(self) -> FloatArray:
        return np.sqrt(self.count) / self.sigma

    def epsilon(self, log_delta: Floats) -> Floats:
        return each(self._epsilon, log_delta)

    def log_delta(self, epsilon: Floats) -> Floats:
        return each(lambda value: self._side(value).log_delta, epsilon)

    def fnr(self, fpr: Floats) -> Floats:
        return each(self._fnr, fpr)

    def bracket(self, log_delta: Floats) -> tuple[Floats, Floats]:
        least = replace(self, count=np.maximum(self.count - self.below, 0.0))
        lower, upper = least.epsilon(larger_delta(log_delta)), self.epsilon(smaller_delta(log_delta))
        error = RELATIVE_ERROR * np.maximum(1.0, upper)
        return lower - error, upper + error

    def proved_end(self, log_delta: float, *, upper: bool) -> float:
        """Return an epsilon at which delta is at most (or at least) the given delta; inf (or 0) if none is found.

        Delta is evaluated at the epsilon that the search returns, with an allowance for rounding errors.
        """
        goal = log_delta - self._rounding if upper else log_delta + self._rounding
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

    @property
    def _rounding(self) -> float:
        """The rounding error of log delta.

        It comes from the terms of delta, and from log-probabilities of counts far from their mean (see `log_binomial`).
        """
        return 1e-11 + 1e-15 * float(np.ptp(self.count))

    def _epsilon(self, log_delta: Floats) -> Floats:
        largest = self.mu.max()
        high: Floats = 0.5 * largest**2 + largest * np.sqrt(-2.0 * log_delta) + 1e-300
        if not np.isfinite(high):
            return high
        if self._side(np.float64(0.0)).log_delta <= a_little_less(log_delta):
            return np.float64(0.0)
        return solve(self._side, log_delta, 0.5 * high, 0.0 * high, high)[0]

    def _side(self, epsilon: Floats) -> Side:
        used = self.mu > 0.0
        mu, log_mass, loss = self.mu[used], self.log_mass[used], epsilon + self.shift[used]
        log_p, log_q = log_ndtr(0.5 * mu - loss / mu), loss + log_ndtr(-0.5 * mu - loss / mu)
        log_terms = np.where(log_q < log_p, log_mass + log_p + np.log1p(-np.exp(log_q - log_p)), -np.inf)
        log_delta = np.minimum(np.logaddexp.reduce(log_terms), 0.0)
        return Side(epsilon, _ONE, log_delta, -np.exp(np.logaddexp.reduce(log_mass + log_q) - log_delta))

    def _fnr(self, fpr: Floats) -> Floats:
        """Return P(L <= l) + e^l (Q(L > l) - fpr), where the loss L exceeds l with probability fpr under Q.

        The formula is that of `TwoSidedPair`. If the canary may be in no batch at all, the loss is 0 with a positive
        probability and Q(L > l) may jump over fpr at l = 0. The best test is then randomised.
        """
        used = self.mu > 0.0
        mu, log_mass, goal = self.mu[used], self.log_mass[used], np.log(fpr)
        unused = np.exp(np.logaddexp.reduce(self.log_mass[~used], initial=-np.inf))

        def rarity(loss: Floats) -> tuple[Floats, Floats]:
            idle = unused if loss < 0.0 else 0.0  # an unused canary has loss 0
            rate = np.exp(np.logaddexp.reduce(log_mass + log_ndtr(-loss / mu - 0.5 * mu), initial=-np.inf))
            return -np.log(rate + idle), np.float64(np.nan)

        loss: Floats = np.float64(0.0)
        if rarity(loss)[0] < -goal or rarity(np.float64(-1e-300))[0] > -goal:
            reach = np.float64(self.mu.max() ** 2 + 40.0 * self.mu.max())
            loss = invert(rarity, -goal, loss, -reach, reach)
        accepted = np.vecdot(np.exp(log_mass), ndtr(loss / mu - 0.5 * mu)) + (unused if loss >= 0.0 else 0.0)
        missed: Floats = accepted + np.exp(loss - rarity(loss)[0]) - np.exp(loss + goal)
        return missed


TOLD_NOTHING = KnownParticipations(1.0, np.zeros(1), np.zeros(1), np.zeros(1))
