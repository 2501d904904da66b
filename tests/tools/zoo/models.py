"""Models small enough to train hundreds of them in NumPy: shapes of tensors, and gradients of examples as rows."""

from dataclasses import dataclass
from functools import cache

import numpy as np

EXAMPLES = 399  # and the canary's place: 400, which batches of a tenth divide


@dataclass(frozen=True)
class Linear:
    """Losses that are linear: every example has the same gradient at all parameters."""

    size: int = 300
    norm: float = 0.5

    @property
    def shapes(self):
        return {"parameters": (self.size,)}

    def start(self, rng):
        return np.zeros(self.size)

    def gradients(self, theta, batch):
        return constant_gradients(self.size, self.norm)[batch]


@dataclass(frozen=True)
class Logistic:
    """Digits by multinomial logistic regression."""

    shapes = {"weight": (64, 10), "bias": (10,)}  # noqa: RUF012

    def start(self, rng):
        return np.zeros(650)

    def gradients(self, theta, batch):
        images, labels = digits()
        x, y = images[batch], labels[batch]
        errors = softmax(x @ theta[:640].reshape(64, 10) + theta[640:]) - np.eye(10)[y]
        return np.hstack([outer(x, errors), errors])


@dataclass(frozen=True)
class Network:
    """Digits by a network of two layers."""

    hidden: int = 12

    @property
    def shapes(self):
        return {"0.weight": (64, self.hidden), "0.bias": (self.hidden,), "1.weight": (self.hidden, 10), "1.bias": (10,)}

    def start(self, rng):
        return np.concatenate([(rng.normal(size=s) / np.sqrt(s[0])).ravel() for s in self.shapes.values()])

    def gradients(self, theta, batch):
        images, labels = digits()
        x, y = images[batch], labels[batch]
        w0, b0, w1, b1 = tensors(theta, self.shapes).values()
        h = np.tanh(x @ w0 + b0)
        errors = softmax(h @ w1 + b1) - np.eye(10)[y]
        back = (errors @ w1.T) * (1.0 - h**2)
        return np.hstack([outer(x, back), back, outer(h, errors), errors])


def tensors(theta, shapes):
    """A vector as tensors by name."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    parts = np.split(theta, ends[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def vector(tree):
    """Tensors by name as one vector."""
    return np.concatenate([np.ravel(leaf) for leaf in tree.values()])


def softmax(logits):
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def outer(first, second):
    return (first[:, :, None] * second[:, None, :]).reshape(len(first), first.shape[1] * second.shape[1])


@cache
def constant_gradients(size, norm):
    rows = np.random.default_rng(0).normal(size=(EXAMPLES, size))
    return norm * rows / np.linalg.norm(rows, axis=1, keepdims=True)


@cache
def digits():
    from lastiterate.data import digits as shipped

    data = shipped()
    return data.x_train[:EXAMPLES].reshape(EXAMPLES, -1).astype(np.float64), data.y_train[:EXAMPLES]
