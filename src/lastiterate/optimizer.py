"""SGD as a linear map: how much the gradient of each step counts in the model that is released."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from lastiterate.arrays import FloatArray
from lastiterate.values import PerStep, PerStepGiven, boolean, cut, integer, key, number, per_step, same, shape

MOST_STEPS_WITH_MEMORY = 10**6


@dataclass(frozen=True, eq=False)
class SGD:
    """Stochastic gradient descent in PyTorch's convention.

    Args:
        learning_rate: one number, or a schedule of one number a step.
        momentum: heavy-ball factor. As in PyTorch the first step's gradient enters the buffer undampened.
        dampening: the buffer takes (1 - dampening) of each later gradient.
        nesterov: use Nesterov's look-ahead.
        weight_decay: factor of the parameters that is added to the gradient (L2), or, with ``decoupled``,
            taken from the parameters directly (times the learning rate, as in AdamW and SGDW).
        decoupled: see ``weight_decay``.
        averaging: what is released: None, the last iterate; ``"uniform"``, the mean of all iterates after a step;
            a number in (0, 1), their exponential moving average with that decay, begun at the initial parameters.
    """

    learning_rate: PerStep = 1.0
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    decoupled: bool = False
    averaging: Literal["uniform"] | float | None = None

    if TYPE_CHECKING:  # lists may be given, and arrays are kept

        def __init__(
            self,
            learning_rate: PerStepGiven = 1.0,
            momentum: float = 0.0,
            dampening: float = 0.0,
            nesterov: bool = False,
            weight_decay: float = 0.0,
            decoupled: bool = False,
            averaging: Literal["uniform"] | float | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        def fix(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        steps = math.prod(shape("learning_rate", self.learning_rate))
        fix("learning_rate", per_step("learning_rate", self.learning_rate, steps, low=0.0))
        if not np.any(self.learning_rate):
            raise ValueError("learning_rate must not be zero at every step: such a run learns nothing")
        fix("momentum", number("momentum", self.momentum, 0.0, 1.0, open_high=True))
        fix("dampening", number("dampening", self.dampening, 0.0, 1.0, open_high=True))
        fix("weight_decay", number("weight_decay", self.weight_decay, 0.0))
        for name in ("nesterov", "decoupled"):
            fix(name, boolean(name, getattr(self, name)))
        if self.nesterov and (self.momentum == 0.0 or self.dampening != 0.0):
            raise ValueError(
                f"nesterov needs momentum > 0 and dampening = 0, got momentum {self.momentum} "
                f"and dampening {self.dampening}"
            )
        if self.averaging is not None and not (isinstance(self.averaging, str) and self.averaging == "uniform"):
            if isinstance(self.averaging, str) or np.ndim(self.averaging) != 0:
                raise ValueError(f"averaging must be None, 'uniform' or a decay in (0, 1), got {self.averaging!r}")
            fix("averaging", number("averaging", self.averaging, 0.0, 1.0, open_low=True, open_high=True))

    @property
    def is_memoryless(self) -> bool:
        """Whether the released model is the plain sum of learning rate times gradient."""
        return self.momentum == 0.0 and self.weight_decay == 0.0 and self.averaging is None

    def weights(self, steps: int) -> PerStep:
        """Minus the derivative of the released parameters by each step's gradient: one number where all are equal."""
        rate = per_step("learning_rate", self.learning_rate, integer("steps", steps))
        if self.is_memoryless:
            return rate
        if steps > MOST_STEPS_WITH_MEMORY:
            raise ValueError(
                f"steps must be at most {MOST_STEPS_WITH_MEMORY} with momentum, weight decay or averaging, got {steps}"
                ": each step then has a weight of its own"
            )
        result = self._adjoint(np.broadcast_to(rate, (steps,)).tolist())
        if not np.isfinite(result).all():
            raise ValueError(
                f"learning_rate and weight_decay must not make the optimizer diverge: the weights of {steps} steps "
                "are not finite"
            )
        return result

    def prefix(self, steps: int) -> SGD:
        """The optimizer of a run that stops after ``steps`` steps."""
        return replace(self, learning_rate=cut(self.learning_rate, integer("steps", steps)))

    def _adjoint(self, rates: list[float]) -> FloatArray:
        """Run the update backwards, carrying how the output depends on the parameters and on the momentum buffer."""
        steps, momentum, decay = len(rates), self.momentum, self.weight_decay
        on_output = self._output_coefficients(steps)
        result = [0.0] * steps
        on_parameters = on_buffer = 0.0
        for t in range(steps - 1, -1, -1):
            rate = rates[t]
            on_parameters += on_output[t]
            if momentum:
                entering = 1.0 if t == 0 else 1.0 - self.dampening
                buffer = on_buffer + rate * on_parameters * (momentum if self.nesterov else 1.0)
                weight = entering * buffer + (rate * on_parameters if self.nesterov else 0.0)
                on_buffer = momentum * buffer
            else:
                weight = rate * on_parameters
            result[t] = weight
            if self.decoupled:
                on_parameters *= 1.0 - rate * decay
            else:
                on_parameters -= decay * weight
        return np.array(result)

    def _output_coefficients(self, steps: int) -> list[float]:
        """How much the iterate after each step counts in what is released."""
        if self.averaging is None:
            return [0.0] * (steps - 1) + [1.0]
        if self.averaging == "uniform":
            return [1.0 / steps] * steps
        decay = float(self.averaging)
        return [(1.0 - decay) * decay ** (steps - 1 - t) for t in range(steps)]

    def __eq__(self, other: object) -> bool:
        return same(self, other)

    def __hash__(self) -> int:
        return hash(key(self))


def require_linear(optimizer: object) -> None:
    """Refuse what is not a linear function of the gradients."""
    if isinstance(optimizer, SGD):
        return
    name = optimizer if isinstance(optimizer, str) else getattr(optimizer, "__name__", type(optimizer).__name__)
    if "ada" in name.lower() or "rms" in name.lower():
        raise ValueError(
            f"optimizer must be a lastiterate.SGD, got {name}: it divides by a running size of the gradients, so the "
            "last iterate is not linear in them and has no weights; report the unweighted heuristic instead "
            "(optimizer=None) and label it as such"
        )
    raise ValueError(f"optimizer must be a lastiterate.SGD or None, got {name}")
