"""Numbers of the declared run: weights of the steps, variance of the noise, law of a canary's total weight."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lastiterate.common.types import FloatArray
from lastiterate.privacy.mixtures.correlated_noise import filtered_noise
from lastiterate.privacy.mixtures.law import law_of
from lastiterate.run import DPSGD

_MOST_DRAWN = 10**8  # numbers that are drawn one by one; the sum of more terms is a normal number (central limit)


@dataclass(frozen=True, eq=False)
class Declared:
    """A run, step by step. Weights are for the sum of gradients, and include learning rates."""

    run: DPSGD

    def prefix(self, steps: int) -> Declared:
        """Return the run stopped after ``steps`` steps."""
        return self if steps == self.run.steps else Declared(self.run.prefix(steps))

    @cached_property
    def weights(self) -> FloatArray:
        """Minus the derivative of the released parameters with respect to each step's sum of gradients."""
        return np.broadcast_to(np.asarray(self.run.effective_weights(), np.float64), (self.run.steps,))

    @cached_property
    def rates(self) -> FloatArray:
        """Probability that an example is in each batch."""
        return np.broadcast_to(np.asarray(self.run.sample_rate, np.float64), (self.run.steps,))

    @cached_property
    def noise(self) -> FloatArray:
        """Standard deviation of the noise of each step."""
        sigma = np.broadcast_to(np.asarray(self.run.noise_multiplier, np.float64), (self.run.steps,))
        return sigma * self.run.clip_norm

    @cached_property
    def variance(self) -> float:
        """Variance of the noise in each released parameter."""
        if self.run.noise_filter is not None:
            return (filtered_noise(self.run, self.weights) * self.run.clip_norm) ** 2
        return float(np.sum((self.weights * self.noise) ** 2))

    @property
    def last_variance(self) -> float:
        """Variance of the last step's own noise in each released parameter."""
        own = 1.0 if self.run.noise_filter is None else self.run.noise_filter[0]
        return float(self.weights[-1] * own * self.noise[-1]) ** 2

    @cached_property
    def memory(self) -> float:
        """Derivative of the released parameters with respect to the initial ones: 1 without decay and averaging."""
        return 1.0 if self.run.optimizer is None else self.run.optimizer.memory(self.run.mechanism)

    @property
    def is_plain(self) -> bool:
        """True if every step has the same weight."""
        return bool(np.allclose(self.weights, self.weights[0], rtol=1e-9, atol=0.0))

    @property
    def is_once(self) -> bool:
        """True if each epoch uses each example once."""
        return self.run.batches_per_epoch is not None

    @property
    def is_independent(self) -> bool:
        """True if batches are independent and random."""
        return not self.is_once and self.run.min_separation == 1 and bool(np.any(self.rates < 1.0))

    @property
    def epoch(self) -> int:
        """Number of steps in which an example is expected to be used once."""
        return self.run.batches_per_epoch or max(1, round(1.0 / max(float(self.rates[0]), 1e-9)))

    @property
    def presence(self) -> float:
        """Probability that an example is in some batch."""
        if self.is_once:
            return 1.0 if self.run.steps >= self.epoch else float(self.rates.sum())
        return self.chance()

    def chance(self, factor: float = 1.0) -> float:
        """Return the probability that an example is in some of independent batches, at a multiple of the rate."""
        return float(-np.expm1(np.sum(np.log1p(-np.minimum(factor * self.rates, 1.0 - 1e-16)))))

    def total_weights(self, rng: np.random.Generator, draws: int, times: int = 1, factor: float = 1.0) -> FloatArray:
        """Draw the sum of weights of the canary's batches over some trainings, at a multiple of the rate."""
        run = self.run.replace(group_size=1, releases=None, neighbours=None, noise_filter=None, min_separation=1)
        if factor != 1.0 and not self.is_once:  # otherwise one use per epoch stays one use
            rates = np.minimum(1.0, np.asarray(run.sample_rate) * factor)
            run = run.replace(sampling="poisson" if run.sampling == "full" else run.sampling, sample_rate=rates)
        law, scale = law_of(run), float(np.abs(self.weights).max())
        law = replace(law, constant=times * law.constant, counts=times * law.counts, blocks=times * law.blocks)
        if draws * (len(law.counts) + len(law.blocks)) > _MOST_DRAWN:
            return np.asarray(scale * (law.mean + np.sqrt(law.variance) * rng.standard_normal(draws)))
        return np.asarray(scale * law.sample(draws, rng))
