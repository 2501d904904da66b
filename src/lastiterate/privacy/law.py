"""The law of S = sum_t w_t A_t: how much of the canary is in the released model, in units of the noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lastiterate.run import DPSGD
from lastiterate.values import Array


@dataclass(frozen=True)
class Law:
    """S as a constant plus independent terms, and the standard deviation ``noise`` of what is added to it.

    ``counts[j]`` Bernoulli terms take the value ``weights[j]`` with probability ``rates[j]`` and 0 otherwise. A block
    (values, probabilities) is one term with that distribution: an epoch of shuffled batches.
    """

    noise: float
    constant: float
    counts: Array
    rates: Array
    weights: Array
    blocks: tuple[tuple[Array, Array], ...] = ()

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
        """The smallest value S can take."""
        if self.is_binomial:
            return float(self.counts[0]) * min(float(self.weights[0]), 0.0)
        blocks = math.fsum(float(v.min()) for v, _ in self.blocks)
        return self.constant + float(np.sum(self.counts * np.minimum(self.weights, 0.0))) + blocks

    @property
    def high(self) -> float:
        """The largest value S can take."""
        if self.is_binomial:
            return float(self.counts[0]) * max(float(self.weights[0]), 0.0)
        blocks = math.fsum(float(v.max()) for v, _ in self.blocks)
        return self.constant + float(np.sum(self.counts * np.maximum(self.weights, 0.0))) + blocks

    @property
    def is_binomial(self) -> bool:
        return self.counts.size == 1 and not self.blocks and self.constant == 0.0

    def rounded_up(self, levels: int) -> Law:
        """A law that dominates this one (weights in [0, 1], no blocks) and has few distinct weights."""
        weights = np.ceil(self.weights * levels) / levels
        pairs, index = np.unique(weights + 2j * self.rates, return_inverse=True)
        counts = np.bincount(index, weights=self.counts)
        return Law(self.noise, self.constant, counts, 0.5 * pairs.imag, pairs.real)

    def flipped(self) -> Law:
        """The law of -S, which is as easy to tell from nothing as S."""
        blocks = tuple((-v, p) for v, p in self.blocks)
        return Law(self.noise, -self.constant, self.counts, self.rates, -self.weights, blocks)


def law_of(run: DPSGD) -> Law:
    """The law of S for a run, scaled so that the largest weight is 1. Steps that count for nothing are left out."""
    weights = run.effective_weights()
    if np.ndim(weights) == 0 and np.ndim(run.noise_multiplier) == 0 and run.sampling != "shuffled":
        return _independent(run, np.float64(1.0), float(run.noise_multiplier) * math.sqrt(run.steps))
    size = float(np.max(np.abs(weights)))
    if size == 0.0:
        raise ValueError("weights must not all be zero: with these learning rates the run releases nothing")
    weights = np.asarray(weights) / size
    spread = weights * np.asarray(run.noise_multiplier)
    largest = float(np.max(np.abs(spread)))
    noise = largest * math.sqrt(float(np.sum((spread / largest) ** 2)) * (1 if spread.ndim else run.steps))
    if run.sampling == "shuffled":
        return _shuffled(run, weights, noise)
    return _independent(run, weights, noise)


def _independent(run: DPSGD, weights: Array, noise: float) -> Law:
    """Poisson sampling; and batches of fixed size, where by itself each A_t is Bernoulli(q_t) too."""
    if weights.ndim == 0 and np.ndim(run.sample_rate) == 0 and 0.0 < run.sample_rate < 1.0:
        one = np.ones(1)
        return Law(noise, 0.0, one * run.steps, one * run.sample_rate, one * weights)
    rates, values, counts = distinct(np.asarray(run.sample_rate), weights, run.steps)
    matters = (rates > 0.0) & (values != 0.0)
    certain = matters & (rates == 1.0)
    random = matters & ~certain
    constant = float(np.sum(counts[certain] * values[certain]))
    return Law(noise, constant, counts[random], rates[random], values[random])


def distinct(first: Array, second: Array, steps: int) -> tuple[Array, Array, Array]:
    """The distinct pairs of two per-step values, and how many steps have each."""
    if first.ndim == 0 and second.ndim == 0:
        return first.reshape(1), second.reshape(1), np.array([float(steps)])
    if first.ndim == 0:
        values, counts = np.unique(second, return_counts=True)
        return np.full(values.size, float(first)), values, counts.astype(np.float64)
    if second.ndim == 0:
        second_values, values, counts = distinct(second, first, steps)
        return values, second_values, counts
    pairs, counts = np.unique(np.stack((first, second), axis=1), axis=0, return_counts=True)
    return pairs[:, 0], pairs[:, 1], counts.astype(np.float64)


def _shuffled(run: DPSGD, weights: Array, noise: float) -> Law:
    """Each example once an epoch. Where 1/q is not whole the last batch of an epoch is the smaller one."""
    rate = float(run.sample_rate)
    length = math.ceil(1.0 / rate - 1e-9)
    chance = np.full(length, rate)
    chance[-1] = 1.0 - rate * (length - 1)
    epochs, rest = divmod(run.steps, length)
    none = np.empty(0)
    if weights.ndim == 0 or np.all(weights == weights[0]):
        value = float(weights if weights.ndim == 0 else weights[0])
        partial = float(np.sum(chance[:rest]))
        counts, rates, values = (np.array([1.0]), np.array([partial]), np.array([value])) if rest else (none, none, none)
        return Law(noise, epochs * value, counts, rates, values)
    constant, blocks = 0.0, []
    for start in range(0, run.steps, length):
        values = weights[start : start + length]
        probabilities = chance[: values.size]
        missing = 1.0 - float(np.sum(probabilities))
        if values.size < length:
            values, probabilities = np.append(values, 0.0), np.append(probabilities, missing)
        distinct, index = np.unique(values, return_inverse=True)
        if distinct.size == 1:
            constant += float(distinct[0])
        else:
            blocks.append((distinct, np.bincount(index, weights=probabilities)))
    return Law(noise, constant, none, none, none, tuple(blocks))
