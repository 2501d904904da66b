"""Correct trainings of many kinds, at random: none of them may be called faulty more often than is stated.

python -m tests.tools.correct --trainings 1000
"""

import argparse
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import lastiterate as li
from lastiterate.checking.check import check
from lastiterate.checking.check_result import CheckResult
from tests.tools.trainers import Numpy


@dataclass(frozen=True)
class Training:
    """A correct training, and how it is checked."""

    train: Numpy
    options: dict[str, Any]

    def check(self, with_steps: bool = True) -> CheckResult:
        train = self.train if with_steps else lambda seed, canary: self.train(seed, canary)
        return check(self.train.run, train, **self.options)


FILTERS = ((1.0, -0.5, -0.125), (1.0, -0.95), (1.0, 0.8, 0.3), (1.0, -0.4, 0.2, -0.3), (2.0, -1.0, -0.5, -0.2, -0.1))


def random_correlated_training(seed: int) -> Training:
    """The same with correlated noise."""
    plain = random_training(seed)
    run = plain.train.run.replace(noise_filter=FILTERS[seed % len(FILTERS)])
    return replace(plain, train=replace(plain.train, run=run, calls=[]))


def random_training(seed: int) -> Training:
    """One of many kinds, by its number."""
    rng = np.random.default_rng([18, seed])
    steps = int(rng.choice([1, 2, 4, 8, 15, 30, 60]))
    sampling = str(rng.choice(["poisson", "poisson", "fixed", "shuffled", "full"]))
    model = str(rng.choice(["softmax", "softmax", "mlp", "mean", "linear"]))
    examples = int(rng.choice([30, 100, 300]))
    rate = 1.0 if sampling == "full" else float(rng.choice([0.05, 0.1, 0.25, 0.5]))
    batch = rate * examples
    if sampling in ("fixed", "shuffled"):  # whole batches of equal size
        rate = max(1, round(rate * (examples + 1))) / (examples + 1)
    momentum = float(rng.choice([0.0, 0.0, 0.5, 0.9]))
    learning = float(rng.choice([0.01, 0.1, 0.5])) / max(batch, 1.0)
    if (
        model == "mean"
    ):  # curvature that is the same in all directions cannot be told from less noise: see docs/check.md
        learning = min(learning, 0.3 * (1.0 - momentum) / max(batch, 1.0) / steps)
    rates: Any = learning
    if rng.random() < 0.2:
        rates = learning * np.linspace(1.5, 0.5, steps)
    decay = float(rng.choice([0.0, 0.0, 0.5]))
    averaging: Any = [None, None, None, "uniform", 0.7][int(rng.integers(5))]
    sgd = li.SGD(
        rates,
        momentum=momentum,
        nesterov=bool(momentum and rng.random() < 0.3),
        weight_decay=decay,
        decoupled=bool(rng.random() < 0.5),
        averaging=averaging,
    )
    run = li.DPSGD(
        steps,
        rate,
        float(rng.choice([0.5, 1.0, 2.0, 5.0])),
        sampling=sampling,  # type: ignore[arg-type]
        batches_per_epoch=math.ceil(1.0 / rate) if sampling == "shuffled" else None,
        clip_norm=float(rng.choice([0.1, 1.0, 5.0])),
        optimizer=sgd,
    )
    train = Numpy(
        run,
        model=model,
        examples=examples,
        features=int(rng.choice([8, 20, 60])),
        classes=int(rng.choice([3, 10])),
        shared=bool(rng.random() < 0.85),
        dtype=[np.float64, np.float32][int(rng.integers(2))],
        data_seed=seed,
    )
    options: dict[str, Any] = dict(models=int(rng.choice([8, 16, 32, 32])), seed=seed)
    if rng.random() < 0.1:
        options["canary"] = "example"
    if rng.random() < 0.3:
        options["batch_size"] = batch
    return Training(train, options)


def count(
    trainings: int,
    first: int = 0,
    show: bool = False,
    kind: Callable[[int], Training] = random_training,
    with_steps: bool = True,
) -> Counter[str]:
    """How many trainings ended how."""
    found: Counter[str] = Counter()
    for seed in range(first, first + trainings):
        training = kind(seed)
        result = training.check(with_steps)
        found[result.verdict] += 1
        if show and result.verdict == "fault":
            train = training.train
            print(seed, train.model, train.examples, train.features, train.classes, train.shared, training.options)
            print(train.run)
            print(*result.faults, sep="\n")
        if show and result.verdict == "cannot tell":
            for row in result.rows:
                if row.status == "cannot tell":
                    found[f"  {row.name}, shared {training.train.shared}, {training.train.model}"] += 1
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--trainings", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--correlated", action="store_true")
    parser.add_argument("--long", action="store_true", help="trainers that take no number of steps")
    asked = parser.parse_args()
    kind = random_correlated_training if asked.correlated else random_training
    for ending, times in sorted(count(asked.trainings, asked.first, True, kind, not asked.long).items()):
        print(f"{times:6} {ending}")
