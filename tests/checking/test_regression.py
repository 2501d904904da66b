"""Linear regression of several outputs: two tensors that curvature pulls alike, by as much as it can."""

from dataclasses import dataclass

import numpy as np
import pytest

import lastiterate as li


@dataclass(frozen=True)
class Regression:
    """A correct training on standard normal features, whose Hessian is nearly a multiple of the identity."""

    run: li.DPSGD
    features: np.ndarray
    targets: np.ndarray

    def __call__(self, seed, canary, steps=None):
        run, count, outputs = self.run, self.features.shape[1], self.targets.shape[1]
        batches, noise = np.random.default_rng([seed, 1]), np.random.default_rng([seed, 2])
        theta, buffer, total = np.zeros(count * outputs + outputs), 0.0, 0.0
        rates = np.broadcast_to(run.optimizer.learning_rate, run.steps)
        stop = run.steps if steps is None else steps
        for step in range(stop):
            drawn = batches.random(len(self.features) + 1) < run.sample_rate
            x, y = self.features[drawn[:-1]], self.targets[drawn[:-1]]
            errors = x @ theta[: count * outputs].reshape(count, outputs) + theta[count * outputs :] - y
            rows = np.hstack([(x[:, :, None] * errors[:, None, :]).reshape(len(x), -1), errors])
            if canary is not False and drawn[-1]:
                rows = np.vstack([rows, np.concatenate([canary["weight"].ravel(), canary["bias"]])])
            rows = rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True) / run.clip_norm)
            drawn_noise = run.noise_multiplier * run.clip_norm * noise.normal(size=len(theta))
            buffer = run.optimizer.momentum * buffer + rows.sum(axis=0) + drawn_noise
            theta = theta - rates[step] * buffer
            total = total + theta
        released = total / max(stop, 1) if run.optimizer.averaging else theta
        return {"weight": released[: count * outputs].reshape(count, outputs), "bias": released[count * outputs :]}


def regression(number):
    """One of many, by its number, and how many models are trained."""
    rng = np.random.default_rng([22, number])
    features, outputs, examples = (int(rng.choice(some)) for some in ((10, 20, 60), (3, 5, 8), (100, 300, 2000)))
    steps, rate = int(rng.choice([5, 10, 20, 40])), float(rng.choice([0.1, 0.25, 0.5, 1.0]))
    momentum = float(rng.choice([0.0, 0.0, 0.5, 0.9]))
    learning = float(rng.choice([0.003, 0.01, 0.03, 0.1, 0.3])) / (rate * examples) * (1.0 - momentum)
    kind = str(rng.choice(["plain", "plain", "schedule", "average"]))
    rates = learning * np.linspace(1.0, 0.2, steps) if kind == "schedule" else learning
    sgd = li.SGD(rates, momentum=momentum, averaging="uniform" if kind == "average" else None)
    run = li.DPSGD(
        steps,
        rate,
        float(rng.choice([1.0, 2.0, 4.0])),
        sampling="full" if rate == 1.0 else "poisson",
        clip_norm=float(rng.choice([1.0, 30.0])),
        optimizer=sgd,
    )
    x, y = rng.normal(size=(examples, features)), rng.normal(size=(examples, outputs))
    return Regression(run, x, y), int(rng.choice([16, 32]))


@pytest.mark.parametrize("number", [0, 1, 3, 4, 5, 43])
def test_curvature_that_pulls_all_parameters_alike_is_no_fault(number):
    training, models = regression(number)
    assert not li.check(training.run, training, models=models, seed=number).faults
    assert not li.check(training.run, lambda seed, canary: training(seed, canary), models=models, seed=number).faults
