"""Small synthetic data sets, each with one canary: an example with large features and the wrong label."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """A data set of ``len(x)`` examples, and a canary that may be added at its end."""

    x: Array
    y: NDArray[np.int64]
    canary_x: Array
    canary_y: int
    classes: int

    def rows(self, canary: bool) -> tuple[Array, NDArray[np.int64]]:
        """Return features and labels, with the canary as the last row or without it."""
        if not canary:
            return self.x, self.y
        return np.vstack([self.x, self.canary_x]), np.append(self.y, self.canary_y)

    @property
    def place(self) -> int:
        """The row of the canary."""
        return len(self.x)

    def slots(self) -> int:
        """Return the number of rows with the canary. Batches are drawn for all slots in both worlds."""
        return len(self.x) + 1


def make(
    count: int,
    features: int,
    classes: int,
    seed: int,
    radius: float = 10.0,
    rare_feature: bool = False,
    rare_class: int | None = None,
) -> Problem:
    """Return clusters around one centre for each class, and a canary.

    The canary lies far out, beside the centre of class 0, but has another label. The other examples keep the model
    from learning that label, so that the canary's gradient stays large.

    Args:
        rare_feature: the last feature is zero in all examples but the canary.
        rare_class: number of examples of the last class, which is also the canary's label.
    """
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, features))
    centres -= centres.mean(axis=0)
    centres *= 1.5 / np.linalg.norm(centres, axis=1, keepdims=True)
    if rare_class is None:
        y = np.arange(count) % classes
    else:
        y = np.arange(count) % (classes - 1)
        y[:rare_class] = classes - 1
    rng.shuffle(y)
    x = centres[y] + rng.normal(size=(count, features))
    signal = centres[0] / np.linalg.norm(centres[0])
    other = rng.normal(size=features)
    if rare_feature:
        x[:, -1] = 0.0
        other[:] = 0.0
        other[-1] = 1.0
        signal[-1] = 0.0
    other -= other @ signal * signal / (signal @ signal)
    other /= np.linalg.norm(other)
    canary_x = radius * (0.6 * signal + 0.8 * other)
    canary_y = 1 if rare_class is None else classes - 1
    return Problem(x, y.astype(np.int64), canary_x, canary_y, classes)
