"""DP-SGD in NumPy, correct, in small methods: a faulty trainer is this one with one of them wrong."""

from dataclasses import dataclass, field
from itertools import count, islice

import numpy as np

from lastiterate.optimizer import SGD
from lastiterate.run import DPSGD
from tests.tools.zoo.models import EXAMPLES, Logistic, tensors, vector

CANARY = EXAMPLES  # its index: behind those of the examples


@dataclass(frozen=True)
class Trainer:
    """Algorithm 1 of the paper for one model.

    ``pairing`` says what both worlds of a seed have in common: ``"shared"`` batches and noise; ``"noise"`` alone;
    nothing (``"independent"``); or one stream of random numbers from which the canary takes its own (``"entangled"``).
    """

    run: DPSGD
    model: object = field(default_factory=Logistic)
    pairing: str = "shared"
    draws_start: bool = False  # whether initial parameters differ from seed to seed

    def __call__(self, seed, canary, steps=None):
        gradient = None if canary is False else vector(canary)
        batches, noise, start = self.streams(seed, gradient is not None)
        theta = self.model.start(start)
        optimizer = Optimizer(self.optimizer(), theta)
        asked = self.run.steps if steps is None else steps
        stop = self.steps(gradient is not None, asked)
        for step, drawn in enumerate(islice(self.batches(batches, gradient is not None), stop)):
            rows = self.model.gradients(optimizer.theta, drawn[drawn < CANARY])
            if gradient is not None:
                rows = np.vstack([rows, *[gradient] * self.times(drawn)])
            total = self.total(rows, self.noise(noise, step), gradient is not None)
            optimizer.step(total, step)
        return tensors(self.released(optimizer), self.model.shapes)

    def initial(self, seed):
        """The parameters before training."""
        return tensors(self.model.start(self.streams(seed, False)[2]), self.model.shapes)

    def streams(self, seed, present):
        """Random numbers for batches, for noise and for initial parameters."""
        start = np.random.default_rng([seed, 2] if self.draws_start else 2)
        if self.pairing == "entangled":
            one = np.random.default_rng(seed)
            return one, one, start
        batches, noise = (
            int(present and self.pairing in apart) for apart in (("independent", "noise"), ("independent",))
        )
        return np.random.default_rng([seed, 0, batches]), np.random.default_rng([seed, 1, noise]), start

    def optimizer(self) -> SGD:
        """What the trainer does, whatever is declared."""
        return self.run.optimizer

    def steps(self, present, asked):
        return asked

    def rate(self):
        return float(self.run.sample_rate)

    def batches(self, rng, present):
        """Indices of each batch; that of the canary is drawn in both worlds, so that they share the others."""
        if self.run.sampling == "shuffled":
            yield from self.shuffled(rng, present)
            return
        slots = CANARY + (present if self.pairing == "entangled" else 1)
        while True:
            if self.run.sampling == "fixed":
                yield rng.choice(CANARY + 1, round(self.rate() * (CANARY + 1)), replace=False)
            else:
                yield np.flatnonzero(rng.random(slots) < self.rate())

    def shuffled(self, rng, present):
        length = round(1.0 / self.rate())
        for step in count():
            if step % length == 0:
                parts = np.array_split(rng.permutation(CANARY + 1), length)
            yield parts[step % length]

    def times(self, drawn):
        """How often the canary is in the batch."""
        return int(np.count_nonzero(drawn == CANARY))

    def total(self, rows, noise, present):
        """What the optimizer is given, in terms of the sum of gradients."""
        return self.clip(rows).sum(axis=0) + noise

    def clip(self, rows):
        return rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True) / self.run.clip_norm)

    def noise(self, rng, step):
        return self.run.clip_norm * float(self.run.noise_multiplier) * self.normal(rng)

    def normal(self, rng):
        return rng.normal(size=sum(int(np.prod(shape)) for shape in self.model.shapes.values()))

    def released(self, optimizer):
        return optimizer.theta if optimizer.average is None else optimizer.average

    def where(self, name):
        """Which coordinates are of the tensors with this word in their names."""
        marks = [np.full(shape, name in each).ravel() for each, shape in self.model.shapes.items()]
        return np.concatenate(marks)


class Optimizer:
    """SGD as ``lastiterate.SGD`` declares it, written once more."""

    def __init__(self, sgd, theta):
        self.sgd, self.theta, self.buffer = sgd, theta.copy(), np.zeros_like(theta)
        self.average = None if sgd.averaging is None else theta.copy()

    def step(self, total, step):
        sgd = self.sgd
        rate = float(sgd.learning_rate if np.ndim(sgd.learning_rate) == 0 else sgd.learning_rate[step])
        if not sgd.decoupled:
            total = total + sgd.weight_decay * self.theta
        self.buffer = sgd.momentum * self.buffer + (1.0 if step == 0 else 1.0 - sgd.dampening) * total
        direction = total if not sgd.momentum else self.buffer
        if sgd.nesterov:
            direction = total + sgd.momentum * self.buffer
        if sgd.decoupled:
            self.theta = self.theta * (1.0 - rate * sgd.weight_decay)
        self.theta = self.theta - rate * direction
        if sgd.averaging == "uniform":
            self.average = self.average + (self.theta - self.average) / (step + 1)
        elif sgd.averaging is not None:
            self.average = sgd.averaging * self.average + (1.0 - sgd.averaging) * self.theta
