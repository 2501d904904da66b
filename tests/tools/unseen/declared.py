"""What each training declares. Light to import: no framework is needed.

``run(module, function)`` returns the keyword arguments of the declared run. Learning rates are those for the *sum* of
clipped gradients plus noise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


def _run(
    steps: int,
    rate: float,
    noise: float,
    clip: float,
    learning_rate: float,
    sampling: str = "poisson",
    **optimizer: Any,
) -> dict[str, Any]:
    return {
        "steps": steps,
        "sample_rate": rate,
        "noise_multiplier": noise,
        "clip_norm": clip,
        "sampling": sampling,
        "optimizer": {"name": "SGD", "learning_rate": learning_rate, **optimizer},
    }


# The run of each module and model, and after that what single trainings declare otherwise.
BASES: dict[tuple[str, str], dict[str, Any]] = {
    ("numpy", "logistic"): _run(60, 0.2, 1.0, 1.0, 0.15 / 40),
    ("numpy", "mlp"): _run(50, 0.2, 0.8, 1.0, 0.12 / 40),
    ("torch", "logistic"): _run(40, 0.25, 1.0, 1.0, 0.15 / 40),
    ("torch", "mlp"): _run(30, 0.25, 1.0, 1.0, 0.15 / 50),
    ("opacus", "logistic"): _run(30, 0.2, 1.5, 1.0, 0.2 / 40),
    ("opacus", "mlp"): _run(25, 0.2, 0.7, 1.0, 0.15 / 40),
    ("jax", "logistic"): _run(100, 0.1, 1.0, 1.0, 0.1 / 25),
    ("jax", "mlp"): _run(40, 0.3, 0.7, 0.5, 0.2 / 60),
}
OTHERWISE: dict[tuple[str, str], dict[str, Any]] = {
    # Correct.
    ("torch", "correct_momentum_mlp"): _run(30, 0.25, 1.0, 1.0, 0.03 / 50, momentum=0.8),
    ("jax", "correct_adam_logistic"): _run(40, 0.2, 1.0, 1.0, 0.01, name="Adam", beta1=0.9, beta2=0.999, eps=1e-8),
    ("numpy", "correct_fixed_size_logistic"): _run(60, 0.2, 1.0, 1.0, 0.15 / 40, sampling="fixed"),
    ("opacus", "correct_shuffled_mlp"): _run(25, 0.2, 0.7, 1.0, 0.15 / 40, sampling="shuffled"),
    # Faults.
    ("numpy", "noise_without_clip_norm_logistic"): _run(60, 0.2, 1.0, 2.0, 0.08 / 40),
    ("opacus", "noise_without_clip_norm_mlp"): _run(25, 0.2, 0.7, 1.5, 0.1 / 40),
    ("torch", "noise_variance_as_deviation_logistic"): _run(40, 0.25, 1.5, 1.0, 0.15 / 40),
    ("numpy", "noise_variance_as_deviation_mlp"): _run(50, 0.2, 1.5, 1.0, 0.12 / 40),
    ("torch", "clip_per_tensor_logistic"): _run(40, 0.25, 1.0, 0.4, 0.3 / 40),
    ("opacus", "clip_per_tensor_mlp"): _run(25, 0.2, 0.7, 0.3, 0.3 / 40),
    ("numpy", "clip_norm_from_batch_logistic"): _run(60, 0.2, 1.0, 1.0, 0.04 / 40),
    ("torch", "noise_chosen_by_loss_logistic"): _run(40, 0.25, 2.0, 1.0, 0.8 / 40),
    ("numpy", "real_batch_size_logistic"): _run(60, 0.1, 1.0, 1.0, 0.15 / 12),
    ("torch", "real_batch_size_mlp"): _run(30, 0.1, 1.0, 1.0, 0.1 / 12),
    ("opacus", "momentum_not_declared_logistic"): _run(30, 0.2, 1.0, 1.0, 0.05 / 40),
    ("torch", "gradients_not_zeroed_logistic"): _run(40, 0.25, 1.0, 1.0, 0.02 / 40),
    ("opacus", "gradients_not_zeroed_mlp"): _run(25, 0.2, 0.7, 1.0, 0.02 / 40),
    ("jax", "adam_second_moment_without_noise_logistic"): _run(
        40, 0.2, 2.0, 1.0, 0.01, name="Adam", beta1=0.9, beta2=0.999, eps=0.4
    ),
    ("torch", "adam_second_moment_without_noise_mlp"): _run(
        30, 0.25, 1.0, 1.0, 0.005, name="Adam", beta1=0.9, beta2=0.99, eps=0.5
    ),
}


@dataclass(frozen=True)
class Run:
    """A declared run as trainings use it; ``steps`` may be fewer than ``declared_steps``.

    ``planted`` is the gradient that stands for the canary's own in every batch in which the canary is, before
    clipping, with an array for each parameter; None if the canary has the gradient of its features.
    """

    steps: int
    declared_steps: int
    rate: float
    noise: float
    clip: float
    learning_rate: float
    optimizer: dict[str, Any]
    planted: dict[str, np.ndarray] | None = None


def run(module: str, function: str) -> dict[str, Any]:
    """Return the declared run of a function, such as ``run("numpy", "correct_logistic")``."""
    found = OTHERWISE.get((module, function)) or BASES[module, function.rsplit("_", 1)[1]]
    return {**found, "optimizer": dict(found["optimizer"])}


Train = Callable[..., Any]


def _host(gradient: Any) -> dict[str, np.ndarray]:
    """Return the arrays or tensors of a gradient as NumPy arrays."""
    if not isinstance(gradient, dict) or not gradient:
        raise TypeError("canary must be a bool, or a gradient in the form of the parameters: a dict of arrays")
    return {name: np.asarray(g.detach() if hasattr(g, "detach") else g) for name, g in gradient.items()}


def fits(planted: dict[str, np.ndarray], shapes: dict[str, tuple[int, ...]]) -> None:
    """Raise an error if a planted gradient has not the names and shapes of the parameters."""
    found = {name: g.shape for name, g in planted.items()}
    if found != {name: tuple(shape) for name, shape in shapes.items()}:
        raise ValueError(f"the canary's gradient has shapes {found}, the parameters have {shapes}")


def training(module: str) -> Callable[[Callable[[Run, int, bool], Any]], Train]:
    """Make ``train(seed, canary, steps=None)`` of a function that takes its declared run, the seed, and the canary.

    ``canary`` is False, True, or a gradient in the form of the parameters. With a gradient the data are those with
    the canary, and only the gradient of the canary in noisy steps is another: that is in ``Run.planted``.
    """

    def decorate(body: Callable[[Run, int, bool], Any]) -> Train:
        declared = run(module, body.__name__)

        @functools.wraps(body)
        def train(seed: int, canary: Any, steps: int | None = None) -> Any:
            planted = None if isinstance(canary, bool | np.bool_) else _host(canary)
            return body(
                Run(
                    declared["steps"] if steps is None else steps,
                    declared["steps"],
                    declared["sample_rate"],
                    declared["noise_multiplier"],
                    declared["clip_norm"],
                    declared["optimizer"]["learning_rate"],
                    declared["optimizer"],
                    planted,
                ),
                seed,
                planted is not None or bool(canary),
            )

        del train.__wrapped__  # type: ignore[attr-defined]  # The signature is that of train.
        train.run = declared  # type: ignore[attr-defined]
        return train

    return decorate
