"""Correct trainers of many kinds: optimizers, sampling, models, with and without random numbers that worlds share."""

from dataclasses import dataclass

import numpy as np

from lastiterate.optimizer import SGD
from lastiterate.run import DPSGD
from tests.tools.zoo.models import Linear, Logistic, Network
from tests.tools.zoo.trainer import Trainer

RATE = 2e-4


@dataclass(frozen=True)
class Correct:
    """A run and a trainer that does what it says; ``initial``: its initial parameters, if they follow the seed."""

    run: DPSGD
    train: Trainer

    @property
    def initial(self):
        return self.train.initial if self.train.draws_start else None

    def __str__(self) -> str:
        return f"{self.run}, {self.train.model}, {self.train.pairing} worlds"


def correct(number: int) -> Correct:
    """One of endlessly many correct trainings, drawn by its number."""
    rng = np.random.default_rng([18, number])
    steps = int(rng.choice([10, 20, 40]))
    sampling = str(rng.choice(["poisson", "poisson", "shuffled", "fixed", "full"]))
    rate = 1.0 if sampling == "full" else float(rng.choice([0.05, 0.1, 0.25]))
    run = DPSGD(
        steps,
        rate,
        float(rng.choice([0.7, 1.0, 2.0, 4.0])),
        sampling=sampling,
        clip_norm=float(rng.choice([0.3, 1.0, 2.0])),
        optimizer=_optimizer(rng, steps),
    )
    model = (Linear(), Logistic(), Network())[int(rng.integers(3))]
    pairing = str(rng.choice(["shared", "shared", "noise", "independent", "entangled"]))
    draws_start = bool(rng.integers(2)) and isinstance(model, Network)
    return Correct(run, Trainer(run, model, pairing, draws_start))


def _optimizer(rng, steps):
    rate = RATE * float(rng.choice([0.1, 0.5, 1.0]))
    match int(rng.integers(8)):
        case 0:
            return SGD(rate, momentum=0.9, nesterov=bool(rng.integers(2)))
        case 1:
            return SGD(rate, momentum=0.9, dampening=0.9)
        case 2:
            return SGD(rate, weight_decay=100.0, decoupled=bool(rng.integers(2)))
        case 3:
            return SGD(np.linspace(2.0 * rate, 0.1 * rate, steps))
        case 4:
            return SGD(rate, averaging="uniform")
        case 5:
            return SGD(rate, momentum=0.5, averaging=0.9)
        case _:
            return SGD(rate)
