"""Faulty trainers in NumPy: each is the correct one with one mistake, and says of which category.

To add one, derive from `Trainer`, override what it does wrong, and decorate it with `fault`: the tests will find it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from lastiterate.optimizer import SGD
from lastiterate.run import DPSGD
from tests.tools.zoo.models import Linear, Logistic, Network
from tests.tools.zoo.trainer import CANARY, Trainer

RATE = 2e-4  # of the sum of gradients; so small that losses are as good as linear
POISSON = DPSGD(40, 0.1, 2.0, optimizer=SGD(RATE))
SHUFFLED = POISSON.replace(sampling="shuffled")


@dataclass(frozen=True)
class Fault:
    """A trainer that is not what its declared run says."""

    name: str
    category: str  # noise, clipping, participation, normalisation, optimizer or seeds
    run: DPSGD
    train: object
    models: int = 32
    batch_size: float | None = None  # told to the check where only that tells more noise from that of sampling
    found: bool = True  # False: it may be told from a correct training by nothing, and must not pass all the same

    def __str__(self) -> str:
        return self.name


FAULTS: list[Fault] = []


def fault(category, *, run=POISSON, model=None, **options):
    """Register a trainer as one with a fault of this category, in a training that is declared to be ``run``."""

    def register(cls):
        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in cls.__name__).lstrip("_")
        FAULTS.append(Fault(name, category, run, cls(run, model or Logistic()), **options))
        return cls

    return register


# Noise


@fault("noise")
class HalfTheNoise(Trainer):
    def noise(self, rng, step):
        return 0.5 * super().noise(rng, step)


@fault("noise", model=Network())
class NoiseOfSevenTenths(Trainer):
    def noise(self, rng, step):
        return 0.7 * super().noise(rng, step)


@fault("noise")
class NoiseAtEveryOtherStep(Trainer):
    def noise(self, rng, step):
        return (step % 2 == 0) * super().noise(rng, step)


@fault("noise")
class NoiseAtTheFirstStepOnly(Trainer):
    def noise(self, rng, step):
        return (step == 0) * super().noise(rng, step)


@fault("noise")
class NoNoise(Trainer):
    def noise(self, rng, step):
        return 0.0 * super().noise(rng, step)


@fault("noise", model=Network())
class BiasesWithoutNoise(Trainer):
    def noise(self, rng, step):
        return np.where(self.where("bias"), 0.0, super().noise(rng, step))


@fault("noise", model=Network())
class OneLayerWithoutNoise(Trainer):
    def noise(self, rng, step):
        return np.where(self.where("1.weight"), 0.0, super().noise(rng, step))


@fault("noise")
class NoiseDividedByTheBatchSize(Trainer):
    """Added to the mean of gradients, as if the noise were that of the sum."""

    def noise(self, rng, step):
        return super().noise(rng, step) / (self.rate() * CANARY)


@fault("noise")
class NoiseTimesTheBatchSize(Trainer):
    """Added to the mean of gradients, which is then multiplied by the size."""

    def noise(self, rng, step):
        return super().noise(rng, step) * self.rate() * CANARY


@fault("noise")
class NoiseTimesTheLearningRate(Trainer):
    """The noise has been scaled by the learning rate before the optimizer scales it."""

    def noise(self, rng, step):
        return super().noise(rng, step) * RATE


@fault("noise")
class NoiseWithoutTheLearningRate(Trainer):
    def noise(self, rng, step):
        return super().noise(rng, step) / RATE


@fault("noise")
class VarianceTakenForTheDeviation(Trainer):
    """Noise multiplier 2 is passed on where a variance is asked for."""

    def noise(self, rng, step):
        return super().noise(rng, step) / np.sqrt(2.0)


@fault("noise", run=POISSON.replace(clip_norm=0.5), batch_size=40)
class NoiseWithoutTheClippingNorm(Trainer):
    def noise(self, rng, step):
        return super().noise(rng, step) / self.run.clip_norm


@fault("noise")
class NoiseOfEveryExample(Trainer):
    def noise(self, rng, step):
        return super().noise(rng, step) * np.sqrt(self.rate() * CANARY)


@fault("noise")
class SameNoiseInAllModels(Trainer):
    def noise(self, rng, step):
        return super().noise(np.random.default_rng(step), step)


@fault("noise")
class AntitheticNoise(Trainer):
    """Every other step takes back the noise of the step before."""

    def streams(self, seed, present):
        batches, _, start = super().streams(seed, present)
        return batches, seed, start

    def noise(self, seed, step):
        sign = -1.0 if step % 2 else 1.0
        return sign * super().noise(np.random.default_rng([seed, step // 2]), step)


@fault("noise")
class RepeatedNoise(Trainer):
    """A generator that is made anew, with the same seed, at every step."""

    def streams(self, seed, present):
        batches, _, start = super().streams(seed, present)
        return batches, seed, start

    def noise(self, seed, step):
        return super().noise(np.random.default_rng(seed), step)


@fault("noise")
class OneDrawForAWholeTensor(Trainer):
    """Every coordinate of a tensor gets the same number, whose variance is right."""

    def normal(self, rng):
        return np.concatenate([np.full(int(np.prod(s)), rng.normal()) for s in self.model.shapes.values()])


@fault("noise")
class OneDrawForARowOfAllTensors(Trainer):
    """A vector of noise as long as the last axis, broadcast over the others."""

    def normal(self, rng):
        return np.concatenate([np.broadcast_to(rng.normal(size=s[-1]), s).ravel() for s in self.model.shapes.values()])


@fault("noise")
class SomeParametersWithoutNoise(Trainer):
    """The weights of four pixels, as where noise is added only to rows of a table that a batch has touched."""

    def noise(self, rng, step):
        return np.where(np.arange(650) < 40, 0.0, super().noise(rng, step))


@fault("noise")
class UniformNoise(Trainer):
    def normal(self, rng):
        return rng.uniform(-1.0, 1.0, 650)


@fault("noise", run=POISSON.replace(steps=1, sample_rate=0.5))
class UniformNoiseOfTheDeclaredVariance(Trainer):
    """No privacy at all; only one step shows it."""

    def normal(self, rng):
        return rng.uniform(-np.sqrt(3.0), np.sqrt(3.0), 650)


@fault("noise")
class NoiseThatIsUsedTwice(Trainer):
    """A vector of noise that is half as long as the parameters."""

    def normal(self, rng):
        return np.tile(rng.normal(size=325), 2)


# Clipping


@fault("clipping")
class NoClipping(Trainer):
    def clip(self, rows):
        return rows


@fault("clipping")
class ClippingNormOfThreeHalves(Trainer):
    def clip(self, rows):
        return 1.5 * super().clip(rows / 1.5)


@fault("clipping", model=Network())
class ClippingNormOfEightTenths(Trainer):
    """Safe, but another training than declared."""

    def clip(self, rows):
        return 0.8 * super().clip(rows / 0.8)


@fault("clipping", model=Network())
class ClippingByLayer(Trainer):
    def clip(self, rows):
        marks = [self.where(name) for name in self.model.shapes]
        return sum(super(ClippingByLayer, self).clip(rows * mark) for mark in marks)


@fault("clipping")
class ClippingByColumn(Trainer):
    def clip(self, rows):
        clip = super().clip
        weight = rows[:, :640].reshape(len(rows), 64, 10)
        columns = [clip(weight[:, :, column]) for column in range(10)]
        return np.hstack([np.stack(columns, axis=2).reshape(len(rows), -1), clip(rows[:, 640:])])


@fault("clipping")
class ClippingByCoordinate(Trainer):
    def clip(self, rows):
        return np.clip(rows, -self.run.clip_norm, self.run.clip_norm)


@fault("clipping")
class ClippingOfMicroBatches(Trainer):
    """Means of four gradients are clipped, and counted four times."""

    def clip(self, rows):
        parts = [rows[begin : begin + 4] for begin in range(0, len(rows), 4)]
        means = np.array([part.mean(axis=0) for part in parts]).reshape(-1, rows.shape[1])
        return super().clip(means) * np.array([[len(part)] for part in parts]).reshape(-1, 1)


@fault("clipping")
class ClippingOfTheMean(Trainer):
    """Gradients are averaged, then clipped: one large one drowns the others."""

    def clip(self, rows):
        size = self.rate() * CANARY
        return size * super().clip(rows.sum(axis=0, keepdims=True) / size)


@fault("clipping")
class NormalisingInsteadOfClipping(Trainer):
    """Gradients below the clipping norm are scaled up to it."""

    def clip(self, rows):
        return self.run.clip_norm * rows / np.maximum(1e-12, np.linalg.norm(rows, axis=1, keepdims=True))


@fault("clipping")
class ClippingToTheSumOfSizes(Trainer):
    """The norm is L1, where L2 is meant: too much is cut off."""

    def clip(self, rows):
        return rows / np.maximum(1.0, np.abs(rows).sum(axis=1, keepdims=True) / self.run.clip_norm)


@fault("clipping")
class ClippingToTheLargestSize(Trainer):
    """The norm is that of the largest coordinate."""

    def clip(self, rows):
        return rows / np.maximum(1.0, np.abs(rows).max(axis=1, keepdims=True) / self.run.clip_norm)


@fault("clipping")
class ClippingToTheSquaredNorm(Trainer):
    """A square root is missing."""

    def clip(self, rows):
        return rows / np.maximum(1.0, np.sum(rows**2, axis=1, keepdims=True) / self.run.clip_norm)


@fault("clipping", model=Network())
class OneTensorUnclipped(Trainer):
    """A layer that was added later, and that nobody told the clipping about."""

    def clip(self, rows):
        mark = self.where("1.weight")
        return np.where(mark, rows, super().clip(rows * ~mark))


@fault("clipping")
class ClippingOfWeightsThatForgetsBiasesInTheNorm(Trainer):
    def clip(self, rows):
        norms = np.linalg.norm(rows * ~self.where("bias"), axis=1, keepdims=True)
        return rows / np.maximum(1.0, norms / self.run.clip_norm)


@fault("clipping")
class ClippingByTheLargestOfTheBatch(Trainer):
    """All gradients are scaled by one factor, that of the largest."""

    def clip(self, rows):
        return rows / max(1.0, float(np.linalg.norm(rows, axis=1).max(initial=0.0)) / self.run.clip_norm)


# Participation


@fault("participation")
class TwiceTheSampleRate(Trainer):
    def rate(self):
        return 2.0 * super().rate()


@fault("participation")
class TheCanaryInEveryBatch(Trainer):
    def times(self, drawn):
        return 1


@fault("participation")
class TheCanaryTwiceInABatch(Trainer):
    def times(self, drawn):
        return 2 * super().times(drawn)


@fault("participation")
class TheCanaryInNoBatch(Trainer):
    def times(self, drawn):
        return 0


@fault("participation")
class ShuffledWherePoissonIsDeclared(Trainer):
    def batches(self, rng, present):
        return self.shuffled(rng, present)


@fault("participation", run=SHUFFLED)
class PoissonWhereShuffledIsDeclared(Trainer):
    def batches(self, rng, present):
        for _ in range(self.run.steps):
            yield np.flatnonzero(rng.random(CANARY + 1) < self.rate())


@fault("participation", run=SHUFFLED)
class DrawnWithReplacementWhereShuffledIsDeclared(Trainer):
    def batches(self, rng, present):
        for _ in range(self.run.steps):
            yield rng.integers(0, CANARY + 1, round(self.rate() * (CANARY + 1)))


@fault("participation", run=SHUFFLED)
class TwiceAnEpoch(Trainer):
    """Data that was concatenated with itself, as some augmentations do."""

    def times(self, drawn):
        return 2 * super().times(drawn)


# Normalisation


@fault("normalisation")
class DivisionByTheRealisedBatchSize(Trainer):
    def total(self, rows, noise, present):
        return super().total(rows, noise, present) * self.rate() * CANARY / max(1, len(rows))


@fault("normalisation")
class DivisionByTheRealisedSizeOfLargeBatches(Trainer):
    def total(self, rows, noise, present):
        expected = self.rate() * CANARY
        return super().total(rows, noise, present) * expected / max(expected, len(rows))


@fault("normalisation")
class MeanOfGradientsPlusNoise(Trainer):
    """Gradients are divided by the realised size, the noise by the expected one."""

    def clip(self, rows):
        return super().clip(rows) * self.rate() * CANARY / max(1, len(rows))


@fault("normalisation")
class TheCanaryMakesOthersWeighLess(Trainer):
    """As where gradients are weighted by one over the size of a class, and the canary makes a class larger."""

    def total(self, rows, noise, present):
        others = self.clip(rows).sum(axis=0)
        return others * (0.95 if present else 1.0) + noise


@fault("normalisation", found=False)
class TheCanaryAddsAStep(Trainer):
    """One more example makes one more batch. Its noise is not told from that of worlds that share less."""

    def steps(self, present, asked):
        return asked + bool(present)


# Optimizer


def trained_by(name, sgd, declared=POISSON, **options):
    """A correct trainer of another optimizer than is declared."""

    class Trained(Trainer):
        def optimizer(self):
            return sgd

    FAULTS.append(Fault(name, "optimizer", declared, Trained(declared, Logistic()), **options))


_DECLARED_AVERAGE = POISSON.replace(optimizer=SGD(RATE, averaging=0.9))
_DECLARED_MOMENTUM = POISSON.replace(optimizer=SGD(RATE, momentum=0.9))
trained_by("momentum_that_is_not_declared", SGD(RATE, momentum=0.9))
trained_by("declared_momentum_that_is_not_there", SGD(RATE), _DECLARED_MOMENTUM)
trained_by("momentum_of_half_where_nine_tenths_are_declared", SGD(RATE, momentum=0.5), _DECLARED_MOMENTUM)
trained_by("a_schedule_that_is_not_declared", SGD(np.linspace(2.0 * RATE, 0.0, 40)), batch_size=40)
# A loss whose curvature is the same in all directions does to a model what these do.
trained_by("weight_decay_that_is_not_declared", SGD(RATE, weight_decay=200.0), found=False)
trained_by("averaging_that_is_not_declared", SGD(RATE, averaging="uniform"), found=False)
trained_by("declared_averaging_that_is_not_there", SGD(RATE), _DECLARED_AVERAGE, batch_size=40)
trained_by("twice_the_learning_rate", SGD(2.0 * RATE))
trained_by("learning_rate_of_the_mean_of_gradients", SGD(RATE / 40.0))


@fault("optimizer")
class HalfTheSteps(Trainer):
    def steps(self, present, asked):
        return asked // 2


# Seeds


@fault("seeds")
class SeedsThatAreIgnored(Trainer):
    def streams(self, seed, present):
        return super().streams(0, present)


@fault("seeds")
class SameBatchesForAllSeeds(Trainer):
    def streams(self, seed, present):
        return super().streams(0, present)[0], *super().streams(seed, present)[1:]


@fault("seeds")
class NoTwoTrainingsAlike(Trainer):
    """Random numbers that no seed governs; a counter stands for them, so that the tests can be repeated."""

    calls = count()

    def streams(self, seed, present):
        return super().streams(seed + next(self.calls), present)


# What gives no parameters that can be compared: a sentence each.


class NotANumber(Trainer):
    def released(self, optimizer):
        return np.where(self.where("bias"), np.nan, super().released(optimizer))


class NotANumberWithACanary(Trainer):
    """Overflow: a canary whose norm is not finite in the precision that is used."""

    def clip(self, rows):
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.where(norms > 100.0, np.nan, super().clip(rows))


class ShapesThatChange(Trainer):
    def __call__(self, seed, canary, steps=None):
        found = super().__call__(seed, canary, steps)
        return found | {"bias": found["bias"][: 5 + seed % 5]}


class TensorsThatChange(Trainer):
    def __call__(self, seed, canary, steps=None):
        found = super().__call__(seed, canary, steps)
        return found | {f"extra{seed}": np.zeros(3)}


def on_linear_losses(fault_):
    """The same fault in a training with nothing but linear losses."""
    model = Linear(650)
    return replace(fault_, name=f"{fault_.name}_on_linear_losses", train=replace(fault_.train, model=model))
