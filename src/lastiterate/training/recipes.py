"""Tested configurations: a data set, a model, and a run with a known epsilon by composition."""

from dataclasses import dataclass

import numpy as np

from lastiterate.common.types import FloatArray, Int32Array, NumberArray
from lastiterate.common.validation import instance, one_of
from lastiterate.data import Dataset, digits
from lastiterate.optimizer import SGD
from lastiterate.privacy.analyses.calibrate import calibrate
from lastiterate.privacy.analyses.composition import composition
from lastiterate.run import DPSGD, require_run
from lastiterate.training import problems
from lastiterate.training.models import accuracy
from lastiterate.training.problem import Problem
from lastiterate.training.train import Trained


@dataclass(frozen=True, eq=False)
class Recipe:
    """A data set, a problem and a run to train together."""

    dataset: Dataset
    problem: Problem
    run: DPSGD

    def __post_init__(self) -> None:
        instance("dataset", self.dataset, Dataset, "a lastiterate.data.Dataset")
        instance("problem", self.problem, Problem, "a training.Problem")
        require_run(self.run)

    @property
    def test(self) -> tuple[NumberArray, Int32Array]:
        """Test examples, in the shape that the model takes, and their labels."""
        shape = np.shape(self.problem.examples[0])[1:]
        return self.dataset.x_test.reshape(-1, *shape), self.dataset.y_test

    def accuracies(self, trained: Trained) -> FloatArray:
        """Return the test accuracy of each model."""
        instance("trained", trained, Trained, "what training.train returned")
        return np.array([accuracy(trained.model(i), *self.test) for i in range(len(trained.models))])


MODELS = ("mlp", "logistic", "ridge", "cnn", "wide-resnet")
_ON_VECTORS = {"mlp": problems.mlp, "logistic": problems.logistic, "ridge": problems.least_squares}


def recipe(dataset: Dataset, model: str = "mlp") -> Recipe:
    """Return the default recipe for a data set: epsilon 8 by composition, except for the paper's image model."""
    if one_of("model", model, MODELS) in _ON_VECTORS:
        return Recipe(dataset, _ON_VECTORS[model](dataset), _run(dataset, 256, 40, 8.0, 1e-5))
    return small_cnn(dataset) if model == "cnn" else wide_resnet(dataset)


def digits_mlp(epsilon: float = 8.0, delta: float = 1e-5) -> Recipe:
    """Return a tanh network on the embedded digits: 40 epochs, batch size 256, test accuracy 95% at epsilon 8."""
    dataset = digits()
    return Recipe(dataset, problems.mlp(dataset), _run(dataset, 256, 40, epsilon, delta))


def small_cnn(dataset: Dataset, epsilon: float = 8.0, delta: float = 1e-5) -> Recipe:
    """Return a small CNN: 8 epochs, batch size 1,024, test accuracy 85% on Fashion-MNIST."""
    return Recipe(dataset, problems.cnn(dataset), _run(dataset, 1024, 8, epsilon, delta))


def wide_resnet(dataset: Dataset) -> Recipe:
    """Return the paper's image model: WideResNet-16-4 as De et al. (2022) train it on CIFAR-10. Needs a GPU.

    The paper's table row for batch size 4,096 is consistent with 2,468 steps at noise multiplier 3. De et al. increase
    the decay of their parameter average up to 0.9999. Here the decay is constant.
    """
    size = len(instance("dataset", dataset, Dataset, "a lastiterate.data.Dataset").x_train)
    batch = min(4096, size)
    optimizer = SGD(4.0 / batch, averaging=0.998)
    run = DPSGD(steps=2468, sample_rate=batch / size, noise_multiplier=3.0, optimizer=optimizer)
    return Recipe(dataset, problems.wide_resnet(dataset), run)


def _run(dataset: Dataset, most: int, epochs: int, epsilon: float, delta: float) -> DPSGD:
    batch_size = min(most, len(dataset.x_train))
    # Gradients are summed and not averaged over the batch, so the learning rate is divided by the batch size.
    optimizer = SGD(0.5 / batch_size, momentum=0.9)
    run = DPSGD.from_batches(len(dataset.x_train), batch_size, epochs, noise_multiplier=1.0, optimizer=optimizer)
    return calibrate(run, epsilon=epsilon, delta=delta, analysis=composition)
