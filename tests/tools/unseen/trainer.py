"""One DP-SGD trainer for each framework, of which a fault changes one method; here is what they share.

A subclass with ``@training(...)`` becomes ``train(seed, canary, steps=None)``, which returns the final parameters.
``canary`` is True or False, or a gradient in the form of the parameters, which then stands for the gradient of the
canary before clipping. Learning rates are those for the *sum* of clipped gradients plus noise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import lastiterate as li

from .data import Problem


@dataclass(frozen=True)
class Training:
    """A training and the run that it declares; ``kind`` is "correct" or the kind of fault."""

    name: str
    kind: str
    run: li.DPSGD
    train: Callable[..., Any]


def declared(steps: int, rate: float, noise: float, clip: float, learning_rate: float, **more: Any) -> li.DPSGD:
    """Return a run; of ``more``, ``sampling`` belongs to the run and the rest to the optimizer."""
    sampling, made = more.pop("sampling", "poisson"), li.Adam if "beta1" in more else li.SGD
    optimizer = made(learning_rate, **more)
    return li.DPSGD(steps, rate, noise, clip_norm=clip, sampling=sampling, optimizer=optimizer)


class Trainer:
    """A training under way. Subclasses have ``problem``, and ``train``, which returns the released parameters."""

    problem: ClassVar[Problem]
    run: ClassVar[li.DPSGD]

    def __init__(self, seed: int, canary: bool, planted: dict[str, np.ndarray] | None, steps: int) -> None:
        self.seed, self.canary, self.planted, self.steps = seed, canary, planted, steps
        self.learning_rate: Any = self.run.optimizer.learning_rate
        self.place, self.slots, self.step = self.problem.place, self.problem.slots(), 0
        self.prepare()

    def train(self) -> Any:
        raise NotImplementedError

    def prepare(self) -> None:
        """Set up data and generators."""

    @property
    def deviation(self) -> float:
        return self.run.noise_multiplier * self.run.clip_norm

    def fits(self, shapes: dict[str, Any]) -> None:
        """Raise an error if the planted gradient has not the names and shapes of the parameters."""
        found = {name: g.shape for name, g in self.planted.items()}
        if found != {name: tuple(shape) for name, shape in shapes.items()}:
            raise ValueError(f"the canary's gradient has shapes {found}, the parameters have {shapes}")


FOUND: list[Training] = []


def training(kind: str, framework: str, run: li.DPSGD) -> Callable[[type[Trainer]], type[Trainer]]:
    """Add a trainer to ``FOUND``, named by kind, model and framework; what is wrong is in its docstring."""

    def add(trainer: type[Trainer]) -> type[Trainer]:
        trainer.run = run

        def train(seed: int, canary: Any, steps: int | None = None) -> Any:
            planted = None if isinstance(canary, bool | np.bool_) else _host(canary)
            return trainer(
                seed, planted is not None or bool(canary), planted, run.steps if steps is None else steps
            ).train()

        model = "logistic" if trainer.problem.classes == 2 else "mlp"
        FOUND.append(
            Training(
                f"{kind}_{model}_{framework}",
                kind.split("_")[0] if kind.startswith("correct") else kind,
                run,
                train,
            )
        )
        return trainer

    return add


def _host(gradient: Any) -> dict[str, np.ndarray]:
    """Return the arrays or tensors of a gradient as NumPy arrays."""
    if not isinstance(gradient, dict) or not gradient:
        raise TypeError("canary must be a bool, or a gradient in the form of the parameters: a dict of arrays")
    return {name: np.asarray(g.detach() if hasattr(g, "detach") else g) for name, g in gradient.items()}
