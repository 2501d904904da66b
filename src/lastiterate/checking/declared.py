"""Numbers of the declared run: weights of the steps, variance of the noise, law of a canary's total weight."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lastiterate.common.types import FloatArray
from lastiterate.mechanism import SAMPLINGS
from lastiterate.optimizer import is_sgd
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

    @property
    def last_momentum(self) -> float:
        """Share of the second to last step that momentum repeats in the last step."""
        sgd = self.run.optimizer
        if not is_sgd(sgd):
            return 0.0
        rates = np.broadcast_to(np.asarray(sgd.learning_rate, np.float64), (self.run.steps,))
        return float(sgd.momentum * rates[-1] / rates[-2])

    @property
    def step(self) -> float:
        """Effect of a clipped canary that is only in the first batch."""
        return float(self.weights[0]) * self.run.clip_norm

    @cached_property
    def memory(self) -> float:
        """Derivative of the released parameters with respect to the initial ones: 1 without decay and averaging."""
        return 1.0 if self.run.optimizer is None else self.run.optimizer.memory(self.run.mechanism)

    @property
    def is_plain(self) -> bool:
        """True if every step has the same weight."""
        return bool(np.allclose(self.weights, self.weights[0], rtol=1e-9, atol=0.0))

    @property
    def is_certain(self) -> bool:
        """True if the canary is in every batch."""
        return bool(np.all(self.rates == 1.0))

    @property
    def can_stop(self) -> bool:
        """True if the weights of a shorter run are known. They are unknown if weights are given, not an optimizer."""
        return self.run.weights is None or np.ndim(self.run.weights) == 0

    @property
    def words(self) -> str:
        """The sampling, in words."""
        return SAMPLINGS[self.run.sampling].words

    @property
    def epoch(self) -> int:
        """Number of steps in which an example is expected to be used once."""
        return self.run.batches_per_epoch or max(1, round(1.0 / max(float(self.rates[0]), 1e-9)))

    @property
    def presence(self) -> float:
        """Probability that an example is in some batch. Batches are independent, or contain it once per epoch."""
        if self.run.batches_per_epoch is not None:
            whole = self.run.steps >= self.run.batches_per_epoch
            return 1.0 if whole else float(self.rates.sum())
        return float(-np.expm1(np.sum(np.log1p(-np.minimum(self.rates, 1.0 - 1e-16)))))

    @property
    def other(self) -> str:
        """The sampling that is most easily confused with the declared sampling, in words."""
        return "shuffled batches" if self.run.batches_per_epoch is None else "independent batches"

    def other_sampling(self) -> Declared:
        """Return the run with ``other`` batches. The last shuffled batch of an epoch may be smaller."""
        if self.run.batches_per_epoch is not None:
            return Declared(self.run.replace(sampling="poisson", min_separation=1))
        rate = float(self.rates[0])
        batches = int(np.ceil(1.0 / rate - 1e-9))
        return Declared(self.run.replace(sampling="shuffled", sample_rate=rate, batches_per_epoch=batches))

    def with_rate(self, factor: float) -> Declared:
        """Return the run with a multiple of the sample rate, at most 1. One use per epoch stays one use."""
        if self.run.batches_per_epoch is not None or factor == 1.0:
            return self
        sampling = "poisson" if self.run.sampling == "full" else self.run.sampling
        rates = np.minimum(1.0, np.asarray(self.run.sample_rate) * factor)
        return Declared(self.run.replace(sampling=sampling, sample_rate=rates))

    def total_weights(self, rng: np.random.Generator, draws: int, trainings: int = 1) -> FloatArray:
        """Draw the sum of the weights of the canary's batches, over several trainings."""
        run = self.run.replace(group_size=1, releases=None, neighbours=None, noise_filter=None, min_separation=1)
        law, scale = law_of(run), float(np.abs(self.weights).max())
        law = replace(
            law, constant=trainings * law.constant, counts=trainings * law.counts, blocks=trainings * law.blocks
        )
        if draws * (len(law.counts) + len(law.blocks)) > _MOST_DRAWN:
            return np.asarray(scale * (law.mean + np.sqrt(law.variance) * rng.standard_normal(draws)))
        return np.asarray(scale * law.sample(draws, rng))
