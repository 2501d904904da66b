"""Faulty trainers in NumPy, beside those of ``tests.tools.trainers``: one method is wrong, of a stated category.

``changed`` registers a trainer whose method returns ``change(trainer, right, *arguments)``, where ``right`` is what the
correct one returns; ``replaced`` one with other methods. The tests find what is registered.
"""

from dataclasses import dataclass

import numpy as np

from lastiterate.optimizer import SGD
from lastiterate.run import DPSGD
from tests.tools.zoo.models import Network
from tests.tools.zoo.trainer import CANARY, Trainer

RATE = 2e-4  # of the sum of gradients; so small that losses are as good as linear
POISSON = DPSGD(40, 0.1, 2.0, optimizer=SGD(RATE))
SHUFFLED = POISSON.replace(sampling="shuffled")
FEW_STEPS = DPSGD(15, 0.1, 2.0, optimizer=SGD(RATE))
EXPECTED = 0.1 * CANARY  # the size of a batch
NETWORK = Network()


@dataclass(frozen=True)
class Fault:
    """A trainer that is not what its declared run says."""

    name: str
    category: str  # noise, clipping, participation, normalisation, optimizer or seeds
    run: DPSGD
    train: object
    batch_size: float | None = None  # told to the check where only that tells more noise from that of sampling

    def __str__(self) -> str:
        return self.name


FAULTS: list[Fault] = []


def replaced(category, name, *, run=POISSON, model=None, batch_size=None, **methods):
    trainer = type(name, (Trainer,), methods)
    FAULTS.append(Fault(name, category, run, trainer(run, *([model] if model else [])), batch_size))


def changed(category, name, method, change, **options):
    def wrong(self, *arguments):
        return change(self, getattr(Trainer, method)(self, *arguments), *arguments)

    replaced(category, name, **{method: wrong}, **options)


def noisy(name, change, **options):
    """Register noise ``change(noise, step)``."""
    changed("noise", name, "noise", lambda self, right, rng, step: change(right, step), **options)


# Noise
noisy("half_the_noise", lambda noise, _: 0.5 * noise)
noisy("noise_at_the_first_step_only", lambda noise, step: (step == 0) * noise)
noisy("no_noise", lambda noise, _: 0.0 * noise)
# Added to the mean of gradients, as if the noise were that of the sum; and to the mean, which is then multiplied.
noisy("noise_divided_by_the_batch_size", lambda noise, _: noise / EXPECTED)
noisy("noise_times_the_batch_size", lambda noise, _: noise * EXPECTED)
# Scaled by the learning rate before the optimizer scales it.
noisy("noise_times_the_learning_rate", lambda noise, _: noise * RATE)
noisy("noise_without_the_learning_rate", lambda noise, _: noise / RATE)
noisy("variance_taken_for_the_deviation", lambda noise, _: noise / np.sqrt(2.0))
noisy("noise_of_every_example", lambda noise, _: noise * np.sqrt(EXPECTED))
noisy(
    "noise_without_the_clipping_norm", lambda noise, _: noise / 0.5, run=POISSON.replace(clip_norm=0.5), batch_size=40
)
# The weights of four pixels, as where noise is added only to rows of a table that a batch has touched.
noisy("some_parameters_without_noise", lambda noise, _: np.where(np.arange(650) < 40, 0.0, noise))


def without_noise_on(name, tensor):
    mark = Trainer(POISSON, NETWORK).where(tensor)
    noisy(name, lambda noise, _: np.where(mark, 0.0, noise), model=NETWORK)


without_noise_on("biases_without_noise", "bias")
without_noise_on("one_layer_without_noise", "1.weight")


def seeded(name, generator):
    """Register noise of a generator that is made anew at every step; ``streams`` hands it the seed."""

    def streams(self, seed, present):
        batches, _, start = Trainer.streams(self, seed, present)
        return batches, seed, start

    def noise(self, seed, step):
        return Trainer.noise(self, np.random.default_rng(generator(seed, step)), step)

    replaced("noise", name, streams=streams, noise=noise)


seeded("same_noise_in_all_models", lambda seed, step: step)
seeded("repeated_noise", lambda seed, step: seed)


def drawn(name, draw, run=POISSON):
    """Register normal numbers ``draw(rng)`` that are not."""
    replaced("noise", name, run=run, normal=lambda self, rng: draw(rng))


SHAPES = [(64, 10), (10,)]
# Every coordinate of a tensor, or of a row of all tensors, gets the same number, whose variance is right.
drawn(
    "one_draw_for_a_whole_tensor", lambda rng: np.concatenate([np.full(int(np.prod(s)), rng.normal()) for s in SHAPES])
)
drawn(
    "one_draw_for_a_row_of_all_tensors",
    lambda rng: np.concatenate([np.broadcast_to(rng.normal(size=s[-1]), s).ravel() for s in SHAPES]),
)
drawn("uniform_noise", lambda rng: rng.uniform(-1.0, 1.0, 650))
drawn(  # no privacy at all; only one step shows it
    "uniform_noise_of_the_declared_variance",
    lambda rng: rng.uniform(-np.sqrt(3.0), np.sqrt(3.0), 650),
    POISSON.replace(steps=1, sample_rate=0.5),
)
drawn("noise_that_is_used_twice", lambda rng: np.tile(rng.normal(size=325), 2))
drawn("one_draw_for_two_neighbours", lambda rng: np.repeat(rng.normal(size=325), 2))


def _smooth(rng):
    normal = rng.normal(size=650)
    return (normal + np.roll(normal, 1)) / np.sqrt(2.0)


drawn("smooth_noise", _smooth)


# Clipping
def clipped(name, clip, **options):
    """Register clipping ``clip(trainer, rows)``."""
    replaced("clipping", name, clip=clip, **options)


def by_norm(name, norm, **options):
    """Register a clipping by something else than the norm: ``norm(rows)``, a column."""
    clipped(name, lambda self, rows: rows / np.maximum(1.0, norm(rows) / self.run.clip_norm), **options)


def from_norm(name, is_clipped, **options):
    """Register a clipping to the norm of those gradients of which the norm and the clipping norm say so."""

    def clip(self, rows):
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.where(is_clipped(norms, self.run.clip_norm), rows / norms * self.run.clip_norm, rows)

    clipped(name, clip, **options)


def _by_layer(self, rows):
    return sum(Trainer.clip(self, rows * self.where(name)) for name in self.model.shapes)


def _normalised(self, rows):
    return self.run.clip_norm * rows / np.maximum(1e-12, np.linalg.norm(rows, axis=1, keepdims=True))


clipped("no_clipping", lambda self, rows: rows)
clipped("clipping_norm_of_three_halves", lambda self, rows: 1.5 * Trainer.clip(self, rows / 1.5))
# Safe, but another training than declared.
clipped("clipping_norm_of_eight_tenths", lambda self, rows: 0.8 * Trainer.clip(self, rows / 0.8), model=NETWORK)
clipped("clipping_by_layer", _by_layer, model=NETWORK)
clipped("normalising_instead_of_clipping", _normalised)
by_norm("clipping_to_the_largest_size", lambda rows: np.abs(rows).max(axis=1, keepdims=True))
by_norm("clipping_to_the_squared_norm", lambda rows: np.sum(rows**2, axis=1, keepdims=True))
# All gradients are scaled by one factor, that of the largest.
by_norm("clipping_by_the_largest_of_the_batch", lambda rows: float(np.linalg.norm(rows, axis=1).max(initial=0.0)))
from_norm("clipped_from_twice_the_norm", lambda norms, most: norms > 2.0 * most)
from_norm("small_norms_mistaken_for_squares", lambda norms, most: norms**2 > most, run=POISSON.replace(clip_norm=0.5))
from_norm("large_norms_mistaken_for_squares", lambda norms, most: norms**2 > most, run=POISSON.replace(clip_norm=2.0))


# Participation
def _with_replacement(self, rng, present):
    for _ in range(self.run.steps):
        yield rng.integers(0, CANARY + 1, round(self.rate() * (CANARY + 1)))


changed("participation", "twice_the_sample_rate", "rate", lambda self, right: 2.0 * right)
replaced("participation", "the_canary_in_every_batch", times=lambda self, drawn: 1)
replaced("participation", "the_canary_in_no_batch", times=lambda self, drawn: 0)
changed("participation", "twice_an_epoch", "times", lambda self, right, drawn: 2 * right, run=SHUFFLED)
replaced("participation", "shuffled_where_poisson_is_declared", batches=Trainer.shuffled)
replaced("participation", "drawn_with_replacement_where_shuffled_is_declared", batches=_with_replacement, run=SHUFFLED)


# Normalisation
def normalised(name, change):
    """Register a sum ``change(sum, rows, expected size)``."""
    changed("normalisation", name, "total", lambda self, right, rows, noise, present: change(right, len(rows)))


normalised("division_by_the_realised_size_of_large_batches", lambda total, size: total * EXPECTED / max(EXPECTED, size))
# Gradients are divided by the realised size, the noise by the expected one.
changed(
    "normalisation",
    "mean_of_gradients_plus_noise",
    "clip",
    lambda self, right, rows: right * EXPECTED / max(1, len(rows)),
)
# As where gradients are weighted by one over the size of a class, and the canary makes a class larger.
replaced(
    "normalisation",
    "the_canary_makes_others_weigh_less",
    total=lambda self, rows, noise, here: self.clip(rows).sum(axis=0) * (0.95 if here else 1.0) + noise,
)
# One more example makes one more batch. Its noise is not told from that of worlds that share less.
replaced("normalisation", "the_canary_adds_a_step", steps=lambda self, present, asked: asked + bool(present))


# Optimizer
def trained_by(name, sgd, run=POISSON, **options):
    """Register a correct trainer of another optimizer than is declared."""
    replaced("optimizer", name, run=run, optimizer=lambda self: sgd, **options)


_AVERAGE, _MOMENTUM = (
    POISSON.replace(optimizer=SGD(RATE, **options)) for options in ({"averaging": 0.9}, {"momentum": 0.9})
)
_COSINE = 0.5 * RATE * (1.0 + np.cos(np.pi * np.arange(15) / 15))
trained_by("momentum_that_is_not_declared", SGD(RATE, momentum=0.9))
trained_by("momentum_of_half_where_nine_tenths_are_declared", SGD(RATE, momentum=0.5), _MOMENTUM)
trained_by("a_schedule_that_is_not_declared", SGD(np.linspace(2.0 * RATE, 0.0, 40)), batch_size=40)
# A loss whose curvature is the same in all directions does to a model what these two do.
trained_by("weight_decay_that_is_not_declared", SGD(RATE, weight_decay=200.0))
trained_by("averaging_that_is_not_declared", SGD(RATE, averaging="uniform"))
trained_by("declared_averaging_that_is_not_there", SGD(RATE), _AVERAGE, batch_size=40)
trained_by("twice_the_learning_rate", SGD(2.0 * RATE))
trained_by("undeclared_cosine_schedule", SGD(_COSINE), FEW_STEPS, model=NETWORK)
trained_by("undeclared_average", SGD(RATE, averaging="uniform"), FEW_STEPS, model=NETWORK)
replaced("optimizer", "half_the_steps", steps=lambda self, present, asked: asked // 2)
changed("optimizer", "gradient_ascent", "total", lambda self, right, *_: -right, run=FEW_STEPS)

# Seeds
replaced("seeds", "seeds_that_are_ignored", streams=lambda self, seed, here: Trainer.streams(self, 0, here))
replaced(
    "seeds",
    "same_batches_for_all_seeds",
    streams=lambda self, seed, here: (Trainer.streams(self, 0, here)[0], *Trainer.streams(self, seed, here)[1:]),
)


# What gives no parameters that can be compared: a sentence each.
class NotANumber(Trainer):
    def released(self, optimizer):
        return np.where(self.where("bias"), np.nan, super().released(optimizer))


class NotANumberWithACanary(Trainer):
    """Overflow: a canary whose norm is not finite in the precision that is used."""

    def clip(self, rows):
        return np.where(np.linalg.norm(rows, axis=1, keepdims=True) > 100.0, np.nan, super().clip(rows))


class ShapesThatChange(Trainer):
    def __call__(self, seed, canary, steps=None):
        found = super().__call__(seed, canary, steps)
        return found | {"bias": found["bias"][: 5 + seed % 5]}


class TensorsThatChange(Trainer):
    def __call__(self, seed, canary, steps=None):
        return super().__call__(seed, canary, steps) | {f"extra{seed}": np.zeros(3)}
