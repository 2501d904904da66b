"""What a run says about the parameters of one training: how much of each step is in them, and how much noise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import comb

import numpy as np

from lastiterate.common.types import FloatArray
from lastiterate.optimizer import SGD, is_adam
from lastiterate.privacy.mixtures.correlated_noise import filtered_noise
from lastiterate.privacy.mixtures.law import epoch_length
from lastiterate.run import DPSGD, noise_root

_MOST_SUMS = 2**17


@dataclass(frozen=True, eq=False)
class Declared:
    """A run, step by step. Weights are those of the sum of gradients: learning rates included."""

    run: DPSGD

    @cached_property
    def weights(self) -> FloatArray:
        """Minus the derivative of the released parameters by each step's sum of gradients."""
        return np.broadcast_to(np.asarray(self.run.effective_weights(), np.float64), (self.run.steps,))

    @cached_property
    def rates(self) -> FloatArray:
        """Probability that an example is in each batch."""
        return np.broadcast_to(np.asarray(self.run.sample_rate, np.float64), (self.run.steps,))

    @cached_property
    def variance(self) -> float:
        """Variance of the noise in each released parameter."""
        if self.run.noise_filter is not None:
            return (filtered_noise(self.run, self.weights) * self.run.clip_norm) ** 2
        sigma = np.broadcast_to(np.asarray(self.run.noise_multiplier, np.float64), (self.run.steps,))
        return float(np.sum((self.weights * sigma * self.run.clip_norm) ** 2))

    @cached_property
    def last(self) -> float:
        """The share of the last step in the variance of the noise, which nothing after it can take away."""
        sigma = np.broadcast_to(np.asarray(self.run.noise_multiplier, np.float64), (self.run.steps,))
        own = 1.0 if self.run.noise_filter is None else self.run.noise_filter[0]
        return float((self.weights[-1] * own * sigma[-1] * self.run.clip_norm) ** 2) / self.variance

    @property
    def is_correlated(self) -> bool:
        """Whether later noise takes back or adds to earlier noise, which curvature then brings out of balance."""
        return self.run.noise_filter is not None and any(self.run.noise_filter[1 : self.run.steps])

    @cached_property
    def squares(self) -> float:
        """Sum of the squared weights, by which sampling is bounded."""
        return float(np.sum(self.weights**2))

    @cached_property
    def most(self) -> float:
        """The most that one example can weigh: it is in every batch."""
        return float(np.sum(np.abs(self.weights)))

    def reach(self, models: int, error: float) -> float:
        """How far the sum of an example's weights, over models, may be from its mean, by Bernstein's inequality."""
        doubt = float(np.log(2.0 / error))
        if self.run.min_separation > 1:  # its batches depend on each other: Hoeffding's inequality
            return self.most * float(np.sqrt(0.5 * models * doubt))
        variance = models * float(np.sum(self.weights**2 * self.rates * (1.0 - self.rates)))
        largest = float(np.abs(self.weights).max()) / 3.0
        return largest * doubt + float(np.sqrt((largest * doubt) ** 2 + 2.0 * variance * doubt))

    @cached_property
    def repeated(self) -> float:
        """By which factor the variance of the noise grows if every step adds the same noise."""
        if self.is_correlated:
            return 1.0  # nobody knows what would be the same
        return float(np.sum(self.weights)) ** 2 / self.squares

    @cached_property
    def memory(self) -> float:
        """How much of the initial parameters is in the released ones: what weight decay leaves."""
        sgd = self.run.optimizer
        if is_adam(sgd):
            return sgd.memory(self.run.steps, noise_root(self.run))
        return 1.0 if sgd is None or (not sgd.weight_decay and sgd.averaging is None) else _kept(sgd, self.run.steps)

    @property
    def is_plain(self) -> bool:
        """Whether every step counts alike, so that the effect of a canary counts its batches."""
        return bool(np.allclose(self.weights, self.weights[0], rtol=1e-9, atol=0.0))

    @property
    def is_certain(self) -> bool:
        """Whether the canary is in every batch."""
        return bool(np.all(self.rates == 1.0))

    @cached_property
    def epochs(self) -> list[slice]:
        """The steps of each epoch of shuffled batches."""
        length = epoch_length(self.run)
        return [slice(begin, min(begin + length, self.run.steps)) for begin in range(0, self.run.steps, length)]

    @cached_property
    def sums(self) -> FloatArray | None:
        """All that one example can weigh, sorted, by which batches it is in; None: too many sums to list."""
        if self.is_certain:
            return np.array([self.weights.sum()])
        return self._shuffled_sums() if self.run.sampling == "shuffled" else self.free_sums

    @cached_property
    def free_sums(self) -> FloatArray | None:
        """The same, whatever the sampling, if an example is sometimes in and sometimes not."""
        steps, weights = self.run.steps, self.weights
        if self.is_plain:
            return np.arange(steps + 1) * weights[0] if steps <= _MOST_SUMS else None
        if self.is_certain:
            return np.array([weights.sum()])
        free = np.flatnonzero((self.rates < 1.0) & (self.rates > 0.0))
        if 2 ** min(len(free), 64) > _MOST_SUMS:
            return None
        sums = np.array([float(weights[self.rates == 1.0].sum())])
        for step in free:
            sums = np.concatenate([sums, sums + weights[step]])
        return np.unique(sums)

    def sums_of_few(self, most: int) -> FloatArray:
        """What an example can weigh that is in at most so many batches, and in one at least; sorted."""
        steps = np.flatnonzero(self.rates > 0.0)
        least, counts = [np.zeros(1)], 0
        for count in range(1, most + 1):
            counts += comb(len(steps), count)
            if counts > _MOST_SUMS:
                break
            least.append(_sums_of(self.weights[steps], count))
        return np.unique(np.concatenate(least[1:])) if len(least) > 1 else np.zeros(0)

    def _shuffled_sums(self) -> FloatArray | None:
        """Each example once in a whole epoch, and once or never in a last part of one."""
        whole = max(len(range(*self.epochs[0].indices(self.run.steps))), epoch_length(self.run))
        sums = np.zeros(1)
        for epoch in self.epochs:
            weights = np.unique(self.weights[epoch])
            if epoch.stop - epoch.start < whole:
                weights = np.append(weights, 0.0)
            sums = np.unique(np.round(np.add.outer(sums, weights).ravel(), 15))
            if len(sums) > _MOST_SUMS:
                return None
        return sums


def _sums_of(weights: FloatArray, count: int) -> FloatArray:
    """The sums of each ``count`` of these weights."""
    chosen = np.array(list(combinations(range(len(weights)), count)))
    return np.asarray(weights[chosen].sum(axis=1), np.float64)


def _kept(sgd: SGD, steps: int) -> float:
    """What is released after so many steps from 1 where all gradients are zero, which decay and averaging change."""
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
