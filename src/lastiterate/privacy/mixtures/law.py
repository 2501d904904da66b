"""The law (the distribution) of S = sum_t w_t A_t, the signal of the canary in the released model.

w_t is the weight of step t, and A_t is 1 if the canary is in the batch of step t and 0 otherwise. The paper's
Theorem 1 is the case of equal weights 1 and Poisson-sampled batches, where S is Binomial(T, q). The theorem's proof
(Appendix A) unrolls the updates of linear losses. This file uses the weights that an optimizer gives to its steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np
from scipy.special import betainc

from lastiterate.common.errors import BadArgument
from lastiterate.common.types import FloatArray, IntArray
from lastiterate.common.validation import PerStep
from lastiterate.privacy.mixtures.correlated_noise import filtered_noise
from lastiterate.run import DPSGD
from lastiterate.supported_runs import (
    CHECKPOINTS_INSIDE_EPOCHS,
    CHECKPOINTS_OF_MEMORY,
    COMBINATIONS,
    CORRELATED_ADAM,
    CORRELATED_RELEASES,
    GROUPS_IN_FIXED_BATCHES,
    GROUPS_IN_SHUFFLED_BATCHES,
    LINEAR,
    RELEASES,
    Support,
    require_supported,
    reveals_every_step,
)

_no_terms = partial(np.empty, 0)


@dataclass(frozen=True)
class Law:
    """S as a constant plus independent terms, and the standard deviation ``noise`` of the noise N added to S.

    ``counts[j]`` Bernoulli terms take the value ``weights[j]`` with probability ``rates[j]`` and 0 otherwise. A block
    (values, probabilities) is one term with this distribution, such as an epoch of shuffled batches.
    """

    noise: float
    constant: float
    counts: FloatArray = field(default_factory=_no_terms)
    rates: FloatArray = field(default_factory=_no_terms)
    weights: FloatArray = field(default_factory=_no_terms)
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
        """Round the weights, in [0, 1], of a law without blocks up to few values. The result is no harder to detect."""
        weights = np.ceil(self.weights * levels) / levels
        pairs, index = np.unique(weights + 2j * self.rates, return_inverse=True)
        counts = _sums_of_groups(index, self.counts)
        return Law(self.noise, self.constant, counts, 0.5 * pairs.imag, pairs.real)

    def from_lowest(self) -> Law:
        """Return the same law, written as its smallest value plus terms that are never negative.

        A Bernoulli term of weight -w equals -w plus a term of weight w that occurs if the first one does not. The
        smallest value must not be negative, except by rounding.
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
        """Return the law of -S. It is as easy to detect as S."""
        return self.scaled(-1.0, self.noise)


NOTHING = Law(1.0, 0.0)


LAW = Support(
    "the heuristic",
    (LINEAR | {RELEASES} | COMBINATIONS) - {GROUPS_IN_FIXED_BATCHES, GROUPS_IN_SHUFFLED_BATCHES, CORRELATED_ADAM},
)


def law_of(run: DPSGD) -> Law:
    """Return the law of S for a run, with its noise (Theorem 1, equation 1, with weights).

    Weights are scaled so that the largest absolute weight is 1. Steps of weight 0 are left out.
    """
    require_supported(run.replace(releases=None) if run.release_count > 1 else run, LAW)
    weights = run.effective_weights()
    if np.ndim(weights) == 0 and np.ndim(run.noise_multiplier) == 0 and run.batches_per_epoch is None:
        noise = float(run.noise_multiplier) * math.sqrt(run.steps)
        return _independent(run, np.ones(()), noise if run.noise_filter is None else filtered_noise(run, 1.0))
    size = float(np.max(np.abs(weights)))
    if size == 0.0:
        raise BadArgument("weights", "must not all be zero: with these learning rates the run releases nothing")
    weights = np.asarray(weights) / size
    noise = _noise(run, weights) if run.noise_filter is None else filtered_noise(run, weights)
    if run.batches_per_epoch is not None:
        return _once_per_epoch(run, weights, noise)
    return _independent(run, weights, noise)


def _noise(run: DPSGD, weights: FloatArray) -> float:
    spread = weights * np.asarray(run.noise_multiplier)
    largest = float(np.max(np.abs(spread)))
    spread /= largest
    return largest * math.sqrt(float(np.sum(spread * spread)) * (1 if spread.ndim else run.steps))


def _independent(run: DPSGD, weights: FloatArray, noise: float) -> Law:
    """Return the law if batches are drawn anew at each step: a Bernoulli(q_t) term for each step and example."""
    if run.min_separation > 1:
        return _in_turns(run, weights, noise)
    rate = participation_rate(run)
    if weights.ndim == 0 and np.ndim(rate) == 0 and 0.0 < rate < 1.0:
        one = np.ones(1)
        return Law(noise, 0.0, one * run.steps * run.group_size, one * rate, one * weights)
    rates, values, counts = distinct(np.asarray(rate), weights, run.steps)
    counts = counts * run.group_size
    matters = (rates > 0.0) & (values != 0.0)
    certain = matters & (rates == 1.0)
    random = matters & ~certain
    constant = float(np.sum(counts[certain] * values[certain]))
    return Law(noise, constant, counts[random], rates[random], values[random])


def _in_turns(run: DPSGD, weights: FloatArray, noise: float) -> Law:
    """Return the law for Poisson sampling of b = ``min_separation`` groups that take turns.

    The canary is in a random group. With k b + r steps, r < b, its group has k turns, or k + 1 with probability r / b.
    """
    apart, rate = run.min_separation, float(np.max(run.sample_rate))
    alike = weights.ndim == 0 or bool(np.all(weights == weights[0]))
    always = apart * rate > 1.0 - 1e-9
    if run.sampling != "poisson" or np.ndim(run.sample_rate) or not (alike or always):
        raise BadArgument(
            "min_separation",
            f"must be 1 for the heuristic, got {apart}. A larger value needs shuffled batches, or "
            "Poisson sampling at a constant sample_rate with equal weights of all steps (or with sample_rate = 1 / "
            "min_separation)",
        )
    if apart * rate > 1.0 + 1e-9:
        raise BadArgument(
            "sample_rate",
            f"must be at most 1 / min_separation = {1.0 / apart:g} for the heuristic, got {rate!r}: "
            "an example is in at most one of min_separation consecutive batches",
        )
    if not alike:
        return Law(noise, 0.0, blocks=(_in_order(weights, np.full(apart, 1.0 / apart)),) * run.group_size)
    turns, rest = divmod(run.steps, apart)
    counts = np.array([turns, 1.0 if rest else 0.0]) * run.group_size
    rates = np.array([min(apart * rate, 1.0), rest * min(rate, 1.0 / apart)])
    values = np.full(2, float(weights if weights.ndim == 0 else weights[0]))
    matters = (counts > 0.0) & (rates > 0.0)
    certain, random = matters & (rates == 1.0), matters & (rates < 1.0)
    return Law(noise, float(np.sum((counts * values)[certain])), counts[random], rates[random], values[random])


def _in_order(weights: FloatArray, chances: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the block for batches in an order that repeats. The canary's batch is drawn with these probabilities."""
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
    sums: FloatArray = np.bincount(groups, weights=values).astype(np.float64, copy=False)
    return sums


def participation_rate(run: DPSGD) -> PerStep:
    """Return the probability that the canary is used in a step. Truncation drops some of the drawn examples."""
    if run.sampling != "truncated-poisson":
        return run.sample_rate
    full, full_rate = full_batches(run)
    return float(run.sample_rate) * (1.0 - full) + full * full_rate


def full_batches(run: DPSGD) -> tuple[float, float]:
    """Return the probability that the other examples fill a batch, and that the canary is then in this batch.

    The first is P(J >= B) for J ~ Binomial(n - 1, q). The second is q E(B / (J + 1) | J >= B). Since C(n - 1, j) / (j +
    1) = C(n, j + 1) / n, their product is B / n P(Binomial(n, q) > B).
    """
    size, most, rate = run.dataset_size, run.max_batch_size, float(run.sample_rate)
    assert size is not None
    assert most is not None
    if size == most:
        return 0.0, 0.0
    full = float(betainc(most, size - most, rate))
    together = most / size * float(betainc(most + 1, size - most, rate))
    return full, min(together / full, rate) if full > 0.0 else 0.0


def epoch_length(run: DPSGD) -> int:
    """Return the number of batches in an epoch in which each example is used once."""
    assert run.batches_per_epoch is not None
    return run.batches_per_epoch


def _once_per_epoch(run: DPSGD, weights: FloatArray, noise: float) -> Law:
    """Return the law for shuffled batches or balls in bins.

    Examples of a group draw their bins independently. In shuffled batches they do not, so groups need whole epochs and
    steps of equal weight.
    """
    rate = float(run.sample_rate)
    length = epoch_length(run)
    if weights.ndim == 0 or np.all(weights == weights[0]):
        value = float(weights if weights.ndim == 0 else weights[0])
        epochs, rest = divmod(run.steps, length)
        constant = epochs * value * run.group_size
        if not rest:
            return Law(noise, constant)
        assert run.group_size == 1 or run.sampling != "shuffled"
        counts, rates, values = np.array([[float(run.group_size)], [rest * rate], [value]])
        return Law(noise, constant, counts, rates, values)
    assert run.group_size == 1 or run.sampling != "shuffled"
    if run.min_separation == length:  # all epochs have the same order
        return Law(noise, 0.0, blocks=(_in_order(weights, _places(rate, length)),) * run.group_size)
    if run.min_separation > 1:
        raise BadArgument(
            "min_separation",
            f"must be 1 or {length}, the number of batches in an epoch, for the heuristic with sampling "
            f"{run.sampling!r} and different weights, got {run.min_separation}: otherwise epochs depend on each other",
        )
    constant, blocks = 0.0, []
    for start in range(0, run.steps, length):
        values, index = np.unique(_epoch(weights[start : start + length], length), return_inverse=True)
        if values.size == 1:
            constant += float(values[0]) * run.group_size
        else:
            blocks.append((values, _sums_of_groups(index, _places(rate, index.size))))
    return Law(noise, constant, blocks=tuple(blocks) * run.group_size)


def _places(rate: float, count: int) -> FloatArray:
    """Return the probability of the canary in each batch of an epoch. The last shuffled batch may be smaller."""
    chances = np.full(count, rate)
    chances[-1] = 1.0 - rate * (count - 1)
    return chances


def _epoch(weights: FloatArray, length: int) -> FloatArray:
    """Return the weights of an epoch, and 0 for an unused batch if the run ends within the epoch."""
    return weights if weights.size == length else np.append(weights, 0.0)


# Blocks of steps between released iterates. With plain SGD, and with decay, an iterate is determined by the iterate
# before it and the block in between. The contribution of the earlier iterate is a known constant. So the block reveals
# as much as if the run had begun there. Each block has its own signal S and its own noise.

BLOCKS = Support(
    "the heuristic", LAW.features - {CORRELATED_RELEASES, CHECKPOINTS_OF_MEMORY, CHECKPOINTS_INSIDE_EPOCHS}
)


def released_laws(run: DPSGD) -> list[tuple[float, Law]]:
    """Return pairs (number of blocks, law of S), one for each distinct law.

    Blocks that add nothing are left out. All values of S have one sign, and are returned as non-negative.
    """
    if run.release_count == 1:
        return [(1.0, law_of(run))]
    require_supported(run, BLOCKS)
    if reveals_every_step(run):
        run = run.replace(optimizer=None, weights=None)
    counts: dict[object, float] = {}
    laws: dict[object, Law] = {}
    for start, stop, number in _blocks(run):
        if (law := _law_of_block(run, start, stop)) is not None:
            key = _key(law)
            laws[key] = law
            counts[key] = counts.get(key, 0.0) + number
    if not laws:
        raise BadArgument("weights", "must not all be zero: with these learning rates the run releases nothing")
    return [(counts[key], law) for key, law in laws.items()]


def laws_in_order(run: DPSGD) -> list[Law | None]:
    """Return the law of S of each block in order, or None for a block that adds nothing."""
    require_supported(run, BLOCKS)
    if reveals_every_step(run):
        run = run.replace(optimizer=None, weights=None)
    ends = np.concatenate(([0], run.released_steps())).tolist()
    known: dict[object, Law] = {}  # equal laws are the same object

    def law(start: int, stop: int) -> Law | None:
        found = _law_of_block(run, start, stop)
        return None if found is None else known.setdefault(_key(found), found)

    if any(np.ndim(value) for value in _settings(run)):
        return [law(start, stop) for start, stop in pairwise(ends)]
    of_length = {length: law(0, length) for length in set(np.diff(ends).tolist())}
    return [of_length[stop - start] for start, stop in pairwise(ends)]


def _blocks(run: DPSGD) -> list[tuple[int, int, float]]:
    ends = np.concatenate(([0], run.released_steps()))
    if any(np.ndim(value) for value in _settings(run)):
        return [(start, stop, 1.0) for start, stop in pairwise(ends.tolist())]
    lengths, numbers = np.unique(np.diff(ends), return_counts=True)
    return [(0, length, float(number)) for length, number in zip(lengths.tolist(), numbers.tolist(), strict=True)]


def _settings(run: DPSGD) -> tuple[PerStep, ...]:
    rate = 1.0 if run.optimizer is None else run.optimizer.learning_rate
    return run.sample_rate, run.noise_multiplier, rate, 1.0 if run.weights is None else run.weights


def _law_of_block(run: DPSGD, start: int, stop: int) -> Law | None:
    """Return the law of a non-negative S of a block, or None if the block adds nothing."""
    schedule = run.weights if run.optimizer is None else run.optimizer.learning_rate
    if schedule is not None and np.ndim(schedule) == 1 and not np.any(np.asarray(schedule)[start:stop]):
        return None
    law = law_of(run.stretch(start, stop))
    if law.low < 0.0 < law.high:
        raise BadArgument(
            "weights", "must all have one sign with several releases: otherwise the best test for a block is unknown"
        )
    return law.flipped() if law.low < 0.0 else law


def _key(law: Law) -> tuple[object, ...]:
    blocks = tuple((values.tobytes(), chances.tobytes()) for values, chances in law.blocks)
    return law.noise, law.constant, law.counts.tobytes(), law.rates.tobytes(), law.weights.tobytes(), blocks
