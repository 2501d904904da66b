"""A correct DP-SGD in plain NumPy, and eight ways in which people have got it wrong, each as small as in real code.

A network on handwritten digits. The canary is one more example, whose gradient is constant, ten times longer than the
clipping norm, and of the same length in each of the four tensors: bugs in clipping show with nothing less.
"""

from itertools import pairwise
from typing import Any

import numpy as np

from lastiterate import DPSGD, SGD
from lastiterate.data import digits

EXAMPLES, BATCH, HIDDEN = 40, 16, 8  # the batch's size is expected
RUN = DPSGD(
    steps=30,
    sample_rate=BATCH / EXAMPLES,
    noise_multiplier=1.5,
    clip_norm=4.0,
    optimizer=SGD(0.1 / BATCH),  # of sums of gradients, not of means
)
SHAPES = {"hidden.weight": (64, HIDDEN), "hidden.bias": (HIDDEN,), "out.weight": (HIDDEN, 10), "out.bias": (10,)}
ENDS = np.cumsum([0, *(int(np.prod(shape)) for shape in SHAPES.values())]).tolist()
TENSORS = {name: slice(*ends) for name, ends in zip(SHAPES, pairwise(ENDS), strict=True)}  # of the flat parameters

_DATA = digits()
_IMAGES = _DATA.x_train[:EXAMPLES].reshape(EXAMPLES, 64).astype(np.float64)
_TARGETS = np.eye(10)[_DATA.y_train[:EXAMPLES]]


def unflatten(flat: Any) -> dict[str, Any]:
    """Views of the tensors."""
    return {name: flat[TENSORS[name]].reshape(shape) for name, shape in SHAPES.items()}


def _canary() -> Any:
    flat = np.random.default_rng(1).standard_normal(ENDS[-1])
    for own in TENSORS.values():
        flat[own] /= np.linalg.norm(flat[own])
    return flat * 10.0 * RUN.clip_norm / np.linalg.norm(flat)


def _start() -> Any:
    flat = np.random.default_rng(2).standard_normal(ENDS[-1])
    for name, shape in SHAPES.items():
        flat[TENSORS[name]] *= len(shape) == 2 and shape[0] ** -0.5  # biases start at zero
    return flat


CANARY, START = _canary(), _start()


class Correct:
    """DP-SGD as it is described: a trainer ``(seed, canary) -> parameters``."""

    def __call__(self, seed: int, canary: bool) -> dict[str, Any]:
        generator = np.random.default_rng(seed)
        flat = START.copy()
        for _ in range(RUN.steps):
            rows = np.flatnonzero(generator.random(EXAMPLES) < RUN.sample_rate)
            copies = self.copies(generator) if canary else 0
            gradients = example_gradients(flat, rows, copies)
            flat -= RUN.optimizer.learning_rate * (self.clipped_sum(gradients) + self.noise(generator))
        return unflatten(flat)

    def copies(self, generator: np.random.Generator) -> int:
        """How often the canary is in the batch."""
        return int(generator.random() < RUN.sample_rate)

    def clipped_sum(self, gradients: Any) -> Any:
        return shrink(norms(gradients)) @ gradients

    def noise(self, generator: np.random.Generator) -> Any:
        return RUN.noise_multiplier * RUN.clip_norm * generator.standard_normal(ENDS[-1])


class NoNoiseOnSmallTensor(Correct):
    def noise(self, generator):
        noise = super().noise(generator)
        noise[TENSORS["out.bias"]] = 0.0
        return noise


class NoNoiseOnLargestTensor(Correct):
    def noise(self, generator):
        noise = super().noise(generator)
        noise[TENSORS["hidden.weight"]] = 0.0
        return noise


class NoiseDividedByBatch(Correct):
    def noise(self, generator):
        return super().noise(generator) / BATCH


class NoiseNotScaledByClipNorm(Correct):
    def noise(self, generator):
        return RUN.noise_multiplier * generator.standard_normal(ENDS[-1])


class ClippingAfterAveraging(Correct):
    def clipped_sum(self, gradients):
        mean = gradients.sum(axis=0) / BATCH
        return BATCH * shrink(np.linalg.norm(mean)) * mean


class ClippingPerLayer(Correct):
    def clipped_sum(self, gradients):
        layers = [gradients[:, own] for own in TENSORS.values()]
        return np.concatenate([shrink(norms(layer)) @ layer for layer in layers])


class CanaryInEveryBatch(Correct):
    def copies(self, generator):
        return 1


class CanaryCountedTwice(Correct):
    def copies(self, generator):
        return 2 * super().copies(generator)


BUGS = (
    NoNoiseOnSmallTensor,
    NoNoiseOnLargestTensor,
    NoiseDividedByBatch,
    NoiseNotScaledByClipNorm,
    ClippingAfterAveraging,
    ClippingPerLayer,
    CanaryInEveryBatch,
    CanaryCountedTwice,
)


def example_gradients(flat: Any, rows: Any, canaries: int) -> Any:
    """Gradients of the losses, an example a row, followed by so many canaries."""
    images, count = _IMAGES[rows], len(rows)
    hidden, chances = _forward(flat, images)
    out = chances - _TARGETS[rows]
    inner = (out @ unflatten(flat)["out.weight"].T) * (1.0 - hidden**2)
    natural = (images[:, :, None] * inner[:, None], inner, hidden[:, :, None] * out[:, None], out)
    gradients = np.empty((count + canaries, len(flat)))
    for own, gradient in zip(TENSORS.values(), natural, strict=True):
        gradients[:count, own] = gradient.reshape(count, own.stop - own.start)
    gradients[count:] = CANARY
    return gradients


def losses(flat: Any, rows: Any) -> Any:
    """The cross-entropy of each example."""
    return -np.log(np.sum(_forward(flat, _IMAGES[rows])[1] * _TARGETS[rows], axis=1))


def _forward(flat: Any, images: Any) -> tuple[Any, Any]:
    """The hidden layer, and the chances of each class."""
    weight, bias, out_weight, out_bias = unflatten(flat).values()
    hidden = np.tanh(images @ weight + bias)
    logits = hidden @ out_weight + out_bias
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    return hidden, chances / chances.sum(axis=1, keepdims=True)


def norms(gradients: Any) -> Any:
    """Of each example's gradient."""
    return np.sqrt(np.einsum("ij,ij->i", gradients, gradients))


def shrink(size: Any) -> Any:
    """The factors that bring gradients of these norms within the clipping norm."""
    return RUN.clip_norm / np.maximum(size, RUN.clip_norm)
