"""The gradient of a step, recovered from the iterates around it."""

from __future__ import annotations

from lastiterate.arrays import FloatArray
from lastiterate.optimizer import SGD


def recovered_gradient(
    sgd: SGD, before: FloatArray, after: FloatArray, buffer: FloatArray, rate: float, step: int
) -> tuple[FloatArray, FloatArray]:
    """The gradient that moved a parameter from ``before`` to ``after``, and the momentum buffer then."""
    if rate == 0.0:
        raise ValueError("learning_rate must not be 0 at any step for the likelihood ratio: that step shows nothing")
    kept = 1.0 - rate * sgd.weight_decay if sgd.decoupled else 1.0
    direction = (kept * before - after) / rate
    gradient = direction
    if sgd.momentum:
        entering = 1.0 if step == 0 else 1.0 - sgd.dampening
        if sgd.nesterov:
            gradient = (direction - sgd.momentum**2 * buffer) / (1.0 + sgd.momentum * entering)
        else:
            gradient = (direction - sgd.momentum * buffer) / entering
        buffer = sgd.momentum * buffer + entering * gradient
    if sgd.weight_decay and not sgd.decoupled:
        gradient = gradient - sgd.weight_decay * before
    return gradient, buffer
