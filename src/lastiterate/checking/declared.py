"""The declared run in numbers: weights of the steps, variance of the noise, law of a canary's total weight."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lastiterate.common.types import FloatArray
from lastiterate.optimizer import SGD, is_adam
from lastiterate.privacy.mixtures.correlated_noise import filtered_noise
from lastiterate.privacy.mixtures.law import epoch_length
from lastiterate.run import DPSGD

_MOST_DRAWN = 200  # steps of different weights that are drawn one by one; more are a normal number (central limit)


@dataclass(frozen=True, eq=False)
class Declared:
    """A run, step by step. Weights are those of the sum of gradients: learning rates are included."""

    run: DPSGD

    def prefix(self, steps: int) -> Declared:
        """Return the run stopped after ``steps`` steps."""
        return self if steps == self.run.steps else Declared(self.run.prefix(steps))

    @cached_property
    def weights(self) -> FloatArray:
        """Minus the derivative of the released parameters by the sum of gradients of each step."""
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
        """Share of the last but one step that momentum repeats in the last."""
        sgd = self.run.optimizer
        if not isinstance(sgd, SGD):
            return 0.0
        rates = np.broadcast_to(np.asarray(sgd.learning_rate, np.float64), (self.run.steps,))
        return float(sgd.momentum * rates[-1] / rates[-2])

    @cached_property
    def step(self) -> float:
        """Effect of a canary of norm at least the clipping norm that is in the first batch only."""
        return float(self.weights[0]) * self.run.clip_norm

    @cached_property
    def memory(self) -> float:
        """Derivative of the released parameters by the initial ones: 1 without decay and averaging."""
        sgd = self.run.optimizer
        if is_adam(sgd):
            return sgd.memory(self.run.mechanism)
        return 1.0 if sgd is None or (not sgd.weight_decay and sgd.averaging is None) else _kept(sgd, self.run.steps)

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
        """True if the weights of a shorter run are known. They are not if weights are given without an optimizer."""
        return self.run.weights is None or np.ndim(self.run.weights) == 0

    def total_weights(
        self, rng: np.random.Generator, shape: tuple[int, ...], factor: float = 1.0, sampling: str | None = None
    ) -> FloatArray:
        """Draw the sum of weights of the canary's batches, for another rate or sampling if given."""
        sampling, rates = sampling or self.run.sampling, np.minimum(1.0, self.rates * factor)
        if np.all(rates == 1.0):
            return np.full(shape, float(self.weights.sum()))
        if sampling == "shuffled":
            return self._shuffled(rng, shape)
        if self.is_plain and not np.ptp(rates):
            return np.asarray(float(self.weights[0]) * rng.binomial(self.run.steps, rates[0], shape), np.float64)
        if self.run.steps > _MOST_DRAWN:
            deviation = float(np.sqrt(np.sum(self.weights**2 * rates * (1.0 - rates))))
            return float(self.weights @ rates) + deviation * rng.standard_normal(shape)
        total = np.zeros(shape)
        for weight, rate in zip(self.weights, rates, strict=True):
            total += weight * (rng.random(shape, np.float32) < rate)
        return total

    def _shuffled(self, rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
        """Draw one batch of every epoch. The last batch of an epoch may be smaller."""
        rate = float(self.rates[0])
        length = epoch_length(self.run) if self.run.sampling == "shuffled" else max(1, round(1.0 / rate))
        places = np.append(np.cumsum(np.full(length - 1, rate)), 1.0)
        total = np.zeros(shape)
        for begin in range(0, self.run.steps, length):
            weights = np.zeros(length)
            part = self.weights[begin : begin + length]
            weights[: len(part)] = part
            total += weights[np.searchsorted(places, rng.random(shape))]
        return total


def _kept(sgd: SGD, steps: int) -> float:
    """Return what is released from the initial value 1 after this number of steps if all gradients are zero."""
    value, buffer, mean, moving = 1.0, 0.0, 0.0, 1.0
    for step, rate in enumerate(np.broadcast_to(np.asarray(sgd.learning_rate, np.float64), (steps,)).tolist()):
        gradient = 0.0 if sgd.decoupled else sgd.weight_decay * value
        if sgd.decoupled:
            value *= 1.0 - rate * sgd.weight_decay
        if sgd.momentum:
            buffer = gradient if step == 0 else sgd.momentum * buffer + (1.0 - sgd.dampening) * gradient
            gradient = gradient + sgd.momentum * buffer if sgd.nesterov else buffer
        value -= rate * gradient
        mean += value / steps
        if isinstance(sgd.averaging, float):
            moving = sgd.averaging * moving + (1.0 - sgd.averaging) * value
    if sgd.averaging is None:
        return value
    return mean if sgd.averaging == "uniform" else moving
