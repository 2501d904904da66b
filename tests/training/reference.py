"""Algorithm 1 once more, plainly: one model, loops over steps and examples, NumPy in float64, gradients by hand."""

from collections.abc import Callable

import numpy as np

from lastiterate import DPSGD

Gradient = Callable[[np.ndarray, tuple[np.ndarray, int]], np.ndarray]


def clip(gradient: np.ndarray, bound: float) -> np.ndarray:
    return gradient / max(1.0, float(np.linalg.norm(gradient)) / bound)


def dp_sgd(
    run: DPSGD,
    initial: np.ndarray,
    gradient: Gradient,
    examples: list[tuple[np.ndarray, int]],
    batches: list[list[int]],
    noise: np.ndarray,
    regulariser_gradient: Callable[[np.ndarray], np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray, int]:
    """What is released, all iterates, and how many gradients were clipped. ``noise`` is standard, [steps, d]."""
    sgd = run.optimizer
    theta, buffer = initial.copy(), np.zeros_like(initial)
    average = initial.copy()
    iterates, clipped = [theta.copy()], 0
    for step in range(run.steps):
        total = np.zeros_like(theta)
        for index in batches[step]:
            one = gradient(theta, examples[index])
            clipped += bool(np.linalg.norm(one) > run.clip_norm)
            total += clip(one, run.clip_norm)
        if regulariser_gradient is not None:
            total += regulariser_gradient(theta)
        for ago, coefficient in enumerate((run.noise_filter or (1.0,))[: step + 1]):
            scale = coefficient * np.broadcast_to(run.noise_multiplier, run.steps)[step - ago] * run.clip_norm
            total += scale * noise[step - ago]
        rate = np.broadcast_to(sgd.learning_rate, run.steps)[step]
        if not sgd.decoupled:
            total += sgd.weight_decay * theta
        direction = total
        if sgd.momentum:
            buffer = total if step == 0 else sgd.momentum * buffer + (1 - sgd.dampening) * total
            direction = total + sgd.momentum * buffer if sgd.nesterov else buffer
        shrink = 1 - rate * sgd.weight_decay if sgd.decoupled else 1.0
        theta = shrink * theta - rate * direction
        iterates.append(theta.copy())
        if sgd.averaging == "uniform":
            average = np.mean(iterates[1:], axis=0)
        elif sgd.averaging is not None:
            average = sgd.averaging * average + (1 - sgd.averaging) * theta
    released = theta if sgd.averaging is None else average
    return released, np.array(iterates), clipped


def linear_gradient(theta: np.ndarray, example: tuple[np.ndarray, int]) -> np.ndarray:
    return example[0]


def softmax_gradient(logits: np.ndarray, label: int) -> np.ndarray:
    exponentials = np.exp(logits - logits.max())
    result = exponentials / exponentials.sum()
    result[label] -= 1
    return result


def logistic_gradient(inputs: int, classes: int) -> Gradient:
    """Of multinomial logistic regression; parameters are biases, then weights [inputs, classes]."""

    def gradient(theta: np.ndarray, example: tuple[np.ndarray, int]) -> np.ndarray:
        x, label = example
        bias, weights = theta[:classes], theta[classes:].reshape(inputs, classes)
        at_output = softmax_gradient(x @ weights + bias, label)
        return np.concatenate([at_output, np.outer(x, at_output).ravel()])

    return gradient


def mlp_gradient(inputs: int, hidden: int, classes: int) -> Gradient:
    """Of the tanh network; parameters are b1, b2, W1 [inputs, hidden], W2 [hidden, classes]."""

    def gradient(theta: np.ndarray, example: tuple[np.ndarray, int]) -> np.ndarray:
        x, label = example
        b1, b2, w1, w2 = np.split(theta, np.cumsum([hidden, classes, inputs * hidden]))
        w1, w2 = w1.reshape(inputs, hidden), w2.reshape(hidden, classes)
        activation = np.tanh(x @ w1 + b1)
        at_output = softmax_gradient(activation @ w2 + b2, label)
        at_hidden = (w2 @ at_output) * (1 - activation**2)
        parts = at_hidden, at_output, np.outer(x, at_hidden), np.outer(activation, at_output)
        return np.concatenate([part.ravel() for part in parts])

    return gradient
