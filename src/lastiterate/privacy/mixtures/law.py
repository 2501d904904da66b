"""The law of S = sum_t w_t A_t, the signal of the canary in the released model.

The paper's Theorem 1 is the case of equal weights 1 and Poisson-sampled batches, where S is Binomial(T, q). The proof
of the theorem (Appendix A) unrolls the updates of linear losses. This file unrolls the same sum with the weights that
an optimizer gives to its steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.privacy.mixtures.correlated_noise import filtered_noise

if TYPE_CHECKING:
    from lastiterate.common.types import FloatArray, IntArray
    from lastiterate.run import DPSGD


@dataclass(frozen=True)
class Law:
    """S as a constant plus independent terms, and the standard deviation ``noise`` of the noise N added to S.

    ``counts[j]`` Bernoulli terms take the value ``weights[j]`` with probability ``rates[j]`` and 0 otherwise. A block
    (values, probabilities) is one term with that distribution: an epoch of shuffled batches.
    """

    noise: float
    constant: float
    counts: FloatArray
    rates: FloatArray
    weights: FloatArray
    blocks: tuple[tuple[FloatArray, FloatArray], ...] = ()

    @property
    def mean(self) -> float:
        blocks = math.fsum(float(v @ p) for v, p in self.blocks)
        return self.constant + float(np.sum(self.counts * self.rates * self.weights)) + blocks

    @property
    def variance(self) -> float:
        blocks = math.fsum(float((v * v) @ p - (v @ p) ** 2) for v, p in self.blocks)
        return float(np.sum(self.counts * self.rates * (1.0 - self.rates) * self.weights**2)) + blocks

    @property
    def low(self) -> float:
        """The smallest value of S."""
        if self.is_binomial:
            return float(self.counts[0]) * min(float(self.weights[0]), 0.0)
        blocks = math.fsum(float(v.min()) for v, _ in self.blocks)
        return self.constant + float(np.sum(self.counts * np.minimum(self.weights, 0.0))) + blocks

    @property
    def high(self) -> float:
        """The largest value of S."""
        if self.is_binomial:
            return float(self.counts[0]) * max(float(self.weights[0]), 0.0)
        blocks = math.fsum(float(v.max()) for v, _ in self.blocks)
        return self.constant + float(np.sum(self.counts * np.maximum(self.weights, 0.0))) + blocks

    @property
    def is_binomial(self) -> bool:
        return self.counts.size == 1 and not self.blocks and self.constant == 0.0

    def rounded_up(self, levels: int) -> Law:
        """Return a law with few distinct weights that is at least as easy to detect.

        Weights, which must be in [0, 1], are rounded up. The law must have no blocks.
        """
        weights = np.ceil(self.weights * levels) / levels
        pairs, index = np.unique(weights + 2j * self.rates, return_inverse=True)
        counts = _sums_of_groups(index, self.counts)
        return Law(self.noise, self.constant, counts, 0.5 * pairs.imag, pairs.real)

    def from_lowest(self) -> Law:
        """Return the same law, written as its smallest value plus terms that are never negative.

        A Bernoulli term of weight -w equals -w plus a term of weight w that occurs if the first one does not. The
        smallest value must not be negative. A value that is negative by rounding is taken for 0.
        """
        rates = np.where(self.weights < 0.0, np.minimum(1.0 - self.rates, 1.0 - 1e-16), self.rates)
        blocks = tuple((v - v.min(), p) for v, p in self.blocks)
        return Law(self.noise, max(self.low, 0.0), self.counts, rates, np.abs(self.weights), blocks)

    def sample(self, size: int, generator: np.random.Generator) -> FloatArray:
        """Draw values of S."""
        total = np.full(size, self.constant)
        for count, rate, weight in zip(self.counts.tolist(), self.rates.tolist(), self.weights.tolist(), strict=True):
            total += weight * generator.binomial(int(count), rate, size)
        for values, chances in self.blocks:
            total += generator.choice(values, size, p=chances / chances.sum())
        return total

    def scaled(self, factor: float, noise: float) -> Law:
        """Return the law of ``factor`` times S, under noise of this standard deviation."""
        blocks = tuple((factor * v, p) for v, p in self.blocks)
        return Law(noise, factor * self.constant, self.counts, self.rates, factor * self.weights, blocks)

    def flipped(self) -> Law:
        """Return the law of -S, which is as easy to detect as S."""
        blocks = tuple((-v, p) for v, p in self.blocks)
        return Law(self.noise, -self.constant, self.counts, self.rates, -self.weights, blocks)


_NO_TERMS = (np.empty(0), np.empty(0), np.empty(0))
NOTHING = Law(1.0, 0.0, *_NO_TERMS)


def law_of(run: DPSGD) -> Law:
    """Return the law of S for a run, with its noise (Theorem 1, equation 1, with weights).

    Weights are scaled so that the largest absolute weight is 1. Steps of weight 0 are left out.
    """
    require_independence(run)
    weights = run.effective_weights()
    if np.ndim(weights) == 0 and np.ndim(run.noise_multiplier) == 0 and run.sampling != "shuffled":
        noise = float(run.noise_multiplier) * math.sqrt(run.steps)
        return _independent(run, np.ones(()), noise if run.noise_filter is None else filtered_noise(run, 1.0))
    size = float(np.max(np.abs(weights)))
    if size == 0.0:
        raise ValueError("weights must not all be zero: with these learning rates the run releases nothing")
    weights = np.asarray(weights) / size
    noise = _noise(run, weights) if run.noise_filter is None else filtered_noise(run, weights)
    if run.sampling == "shuffled":
        return _shuffled(run, weights, noise)
    return _independent(run, weights, noise)


def _noise(run: DPSGD, weights: FloatArray) -> float:
    """Return the standard deviation of the released noise, if the noise of the steps is independent."""
    spread = weights * np.asarray(run.noise_multiplier)
    largest = float(np.max(np.abs(spread)))
    spread /= largest
    return largest * math.sqrt(float(np.sum(spread * spread)) * (1 if spread.ndim else run.steps))


def require_independence(run: DPSGD) -> None:
    """Refuse groups whose examples displace each other from batches."""
    if run.group_size > 1 and run.sampling == "fixed":
        raise ValueError(
            f"group_size must be 1 with sampling 'fixed', got {run.group_size}: examples of one person then keep each "
            "other out of a batch, by how much depends on the size of the data set"
        )


def _independent(run: DPSGD, weights: FloatArray, noise: float) -> Law:
    """Return the law for Poisson sampling and for batches of fixed size.

    Batches of fixed size are drawn anew at each step, so each A_t is Bernoulli(q_t) as with Poisson sampling. A group
    has one such term a step for each of its examples.
    """
    if run.min_separation > 1:
        return _in_turns(run, weights, noise)
    if weights.ndim == 0 and np.ndim(run.sample_rate) == 0 and 0.0 < run.sample_rate < 1.0:
        one = np.ones(1)
        return Law(noise, 0.0, one * run.steps * run.group_size, one * run.sample_rate, one * weights)
    rates, values, counts = distinct(np.asarray(run.sample_rate), weights, run.steps)
    counts = counts * run.group_size
    matters = (rates > 0.0) & (values != 0.0)
    certain = matters & (rates == 1.0)
    random = matters & ~certain
    constant = float(np.sum(counts[certain] * values[certain]))
    return Law(noise, constant, counts[random], rates[random], values[random])


def _in_turns(run: DPSGD, weights: FloatArray, noise: float) -> Law:
    """Return the law for Poisson sampling of b = ``min_separation`` groups that take turns.

    The group of the canary is random. With k b + r steps, r < b, the canary's group has k turns, and one more with
    probability r / b. Each turn is one independent term.
    """
    apart, rate = run.min_separation, float(np.max(run.sample_rate))
    alike = weights.ndim == 0 or bool(np.all(weights == weights[0]))
    always = apart * rate > 1.0 - 1e-9
    if run.sampling != "poisson" or np.ndim(run.sample_rate) or not (alike or always):
        raise ValueError(
            f"min_separation must be 1 for the heuristic, got {apart}, but for Poisson sampling at one sample_rate of "
            "steps that count alike (or of all of a group at each of its turns), and for shuffled batches: otherwise "
            "batches depend on each other in a way that is not known"
        )
    if apart * rate > 1.0 + 1e-9:
        raise ValueError(
            f"sample_rate must be at most 1 / min_separation = {1.0 / apart:g} for the heuristic, got {rate!r}: an "
            "example can be in no more batches than its group has turns"
        )
    if not alike:
        return Law(noise, 0.0, *_NO_TERMS, (_in_order(weights, np.full(apart, 1.0 / apart)),) * run.group_size)
    turns, rest = divmod(run.steps, apart)
    counts = np.array([turns, 1.0 if rest else 0.0]) * run.group_size
    rates = np.array([min(apart * rate, 1.0), rest * min(rate, 1.0 / apart)])
    values = np.full(2, float(weights if weights.ndim == 0 else weights[0]))
    matters = (counts > 0.0) & (rates > 0.0)
    certain, random = matters & (rates == 1.0), matters & (rates < 1.0)
    return Law(noise, float(np.sum((counts * values)[certain])), counts[random], rates[random], values[random])


def _in_order(weights: FloatArray, chances: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the block of a canary with one random place in an order of batches that repeats.

    ``chances`` holds the probabilities of the places.
    """
    sums = np.array([float(np.sum(weights[place :: chances.size])) for place in range(chances.size)])
    values, index = np.unique(sums, return_inverse=True)
    return values, _sums_of_groups(index, chances)


def distinct(first: FloatArray, second: FloatArray, steps: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the distinct pairs of two per-step values, and the number of steps with each pair."""
    if first.ndim == 0 and second.ndim == 0:
        return first.reshape(1), second.reshape(1), np.array([float(steps)])
    if first.ndim == 0:
        values, times = np.unique(second, return_counts=True)
        return np.full(values.size, float(first)), values, times.astype(np.float64)
    if second.ndim == 0:
        second_values, values, counts = distinct(second, first, steps)
        return values, second_values, counts
    pairs, times = np.unique(np.stack((first, second), axis=1), axis=0, return_counts=True)
    return pairs[:, 0], pairs[:, 1], times.astype(np.float64)


def _sums_of_groups(groups: IntArray, values: FloatArray) -> FloatArray:
    """Return the sum of the values of each group; groups are numbered from 0."""
    sums: FloatArray = np.bincount(groups, weights=values).astype(np.float64, copy=False)
    return sums


def epoch_length(run: DPSGD) -> int:
    """Return the number of batches in an epoch of shuffled batches."""
    assert run.batches_per_epoch is not None
    return run.batches_per_epoch


def _shuffled(run: DPSGD, weights: FloatArray, noise: float) -> Law:
    """Return the law for shuffled batches, where each example is used once an epoch.

    Groups of several examples need whole epochs and steps of equal weight.
    """
    rate = float(run.sample_rate)
    length = epoch_length(run)
    none = np.empty(0)
    require_separable_epochs(run)
    if weights.ndim == 0 or np.all(weights == weights[0]):
        value = float(weights if weights.ndim == 0 else weights[0])
        epochs, rest = divmod(run.steps, length)
        if run.group_size > 1 and not rest:
            return Law(noise, epochs * value * run.group_size, none, none, none)
        _require_one(run)
        counts, rates, values = np.array([[1.0], [rest * rate], [value]]) if rest else (none, none, none)
        return Law(noise, epochs * value, counts, rates, values)
    _require_one(run)
    if run.min_separation == length:  # all epochs have the same order
        return Law(noise, 0.0, *_NO_TERMS, (_in_order(weights, _places(rate, length)),))
    if run.min_separation > 1:
        raise ValueError(
            f"min_separation must be 1 for the heuristic with sampling 'shuffled', or the {length} batches of an "
            f"epoch, got {run.min_separation}, unless steps count alike: epochs whose shuffles depend on each other "
            "are not independent"
        )
    constant, blocks = 0.0, []
    for start in range(0, run.steps, length):
        values, index = np.unique(_epoch(weights[start : start + length], length), return_inverse=True)
        if values.size == 1:
            constant += float(values[0])
        else:
            blocks.append((values, _sums_of_groups(index, _places(rate, index.size))))
    return Law(noise, constant, none, none, none, tuple(blocks))


def _places(rate: float, count: int) -> FloatArray:
    """Return the probability of each place in an epoch.

    The last place has the remaining probability: a smaller batch.
    """
    chances = np.full(count, rate)
    chances[-1] = 1.0 - rate * (count - 1)
    return chances


def require_separable_epochs(run: DPSGD) -> None:
    """Refuse a separation of more steps than an epoch of shuffled batches has."""
    length = epoch_length(run)
    if run.min_separation > length:
        raise ValueError(
            f"min_separation must be at most the {length} batches of an epoch with sampling 'shuffled', got "
            f"{run.min_separation}"
        )


def _require_one(run: DPSGD) -> None:
    if run.group_size > 1:
        raise ValueError(
            f"group_size must be 1 with sampling 'shuffled', got {run.group_size}, unless epochs are whole and steps "
            "count alike: one shuffle places all examples of a person, so that they are not independent"
        )


def _epoch(weights: FloatArray, length: int) -> FloatArray:
    """Return the weights of an epoch.

    If the run ends within the epoch, append weight 0 for a canary in an unused batch.
    """
    return weights if weights.size == length else np.append(weights, 0.0)
