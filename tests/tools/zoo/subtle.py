"""Faulty trainers whose mistakes show in few numbers, or look like curvature at first sight."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lastiterate.optimizer import SGD
from lastiterate.run import DPSGD
from tests.tools.zoo.faults import POISSON, RATE, fault
from tests.tools.zoo.models import Network
from tests.tools.zoo.trainer import Trainer

FEW_STEPS = DPSGD(15, 0.1, 2.0, optimizer=SGD(RATE))


@fault("noise")
class OneDrawForTwoNeighbours(Trainer):
    def normal(self, rng):
        size = len(super().normal(rng))
        return np.repeat(rng.normal(size=(size + 1) // 2), 2)[:size]


@fault("noise")
class SmoothNoise(Trainer):
    def normal(self, rng):
        drawn = super().normal(rng)
        return (drawn + np.roll(drawn, 1)) / np.sqrt(2.0)


@fault("noise", run=FEW_STEPS.replace(optimizer=SGD(RATE, momentum=0.5)))
class SevenTenthsOfTheNoiseWithMomentum(Trainer):
    """In single precision, as most models have it."""

    def noise(self, rng, step):
        return 0.7 * super().noise(rng, step)

    def __call__(self, seed, canary, steps=None):
        return {name: value.astype(np.float32) for name, value in super().__call__(seed, canary, steps).items()}


@fault("clipping")
class ClippedFromTwiceTheNorm(Trainer):
    def clip(self, rows):
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.where(norms > 2.0 * self.run.clip_norm, rows / norms * self.run.clip_norm, rows)


class ClippedByTheSquareOfTheNorm(Trainer):
    def clip(self, rows):
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.where(norms**2 > self.run.clip_norm, rows / norms * self.run.clip_norm, rows)


@fault("clipping", run=POISSON.replace(clip_norm=0.5))
class SmallNormsMistakenForSquares(ClippedByTheSquareOfTheNorm):
    pass


@fault("clipping", run=POISSON.replace(clip_norm=2.0))
class LargeNormsMistakenForSquares(ClippedByTheSquareOfTheNorm):
    pass


@fault("optimizer", run=FEW_STEPS)
class GradientAscent(Trainer):
    def total(self, rows, noise, present):
        return -super().total(rows, noise, present)


class ScheduledTrainer(Trainer):
    def optimizer(self):
        falling = 0.5 * (1.0 + np.cos(np.pi * np.arange(self.run.steps) / self.run.steps))
        return replace(self.run.optimizer, learning_rate=self.run.optimizer.learning_rate * falling)


@fault("optimizer", run=FEW_STEPS, model=Network())
class UndeclaredCosineSchedule(ScheduledTrainer):
    pass


@fault("optimizer", run=FEW_STEPS, model=Network())
class UndeclaredAverage(Trainer):
    def optimizer(self):
        return replace(self.run.optimizer, averaging="uniform")
