"""SGD and Adam as linear maps: how much the gradient of each step counts in the model that is released.

SGD is one. Adam divides by the root of a running second moment of the gradients; with that divisor taken as given it is
one, too, and where noise makes up the second moment the divisor is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from lastiterate.common.types import FloatArray
from lastiterate.common.validation import (
    PerStep,
    PerStepGiven,
    boolean,
    call_of,
    cut,
    integer,
    key,
    number,
    per_step,
    same,
    shape,
)

if TYPE_CHECKING:
    from typing_extensions import TypeIs

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

        fix("learning_rate", _learning_rate(self.learning_rate))
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
        _require_few(steps)
        return _finite(self._adjoint(np.broadcast_to(rate, (steps,)).tolist()), steps)

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

    def __repr__(self) -> str:
        return call_of(self)


@dataclass(frozen=True, eq=False)
class Adam:
    """Adam, and with ``decoupled`` AdamW, in PyTorch's convention; the defaults are those of ``torch.optim.Adam``.

    It is given the noisy *sum* of clipped gradients, as SGD is. Whoever divides that by a batch size B, as Opacus does,
    has the same training with the same learning rate, ``eps`` times B and, if it is not decoupled, ``weight_decay``
    times B: everything else of Adam does not depend on the scale of gradients.

    Args:
        learning_rate: one number, or a schedule of one number a step.
        beta1: of the running mean of gradients, whose bias is corrected.
        beta2: of the running mean of their squares, whose bias is corrected.
        eps: is added to the root of that second moment, on the scale of sums of gradients.
        weight_decay: factor of the parameters that is added to the gradient (L2), or, with ``decoupled``, taken from
            the parameters directly, times the learning rate (AdamW).
        decoupled: see ``weight_decay``.
    """

    learning_rate: PerStep = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    if TYPE_CHECKING:  # lists may be given, and arrays are kept

        def __init__(
            self,
            learning_rate: PerStepGiven = 1e-3,
            beta1: float = 0.9,
            beta2: float = 0.999,
            eps: float = 1e-8,
            weight_decay: float = 0.0,
            decoupled: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        def fix(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        fix("learning_rate", _learning_rate(self.learning_rate))
        for name in ("beta1", "beta2"):
            fix(name, number(name, getattr(self, name), 0.0, 1.0, open_high=True))
        for name in ("eps", "weight_decay"):
            fix(name, number(name, getattr(self, name), 0.0))
        fix("decoupled", boolean("decoupled", self.decoupled))

    @property
    def momentum(self) -> float:
        """The factor of the running mean, by which a gradient counts in later steps, too."""
        return self.beta1

    @property
    def averaging(self) -> None:
        """The last iterate is released."""
        return None

    @property
    def is_memoryless(self) -> bool:
        """Whether the released model is the plain sum of learning rate times gradient, over the divisor."""
        return self.beta1 == 0.0 and self.weight_decay == 0.0

    def noise_root(self, noise: PerStep, steps: int) -> PerStep:
        """The root of the second moment at each step if gradients were noise alone, of this standard deviation."""
        if not np.ndim(noise):
            return float(noise)
        moment, result = 0.0, np.empty(steps)
        for t, deviation in enumerate(np.asarray(noise, np.float64).tolist()):
            moment = self.beta2 * moment + (1.0 - self.beta2) * deviation**2
            result[t] = math.sqrt(moment / bias_of(self.beta2, t + 1))
        return result

    def weights(self, steps: int, root: PerStep | None = None) -> PerStep:
        """Minus the derivative of the released parameters by each step's gradient, with the divisor taken as given.

        The weights are those of SGD whose momentum is a running mean with its bias corrected: gradient j is in step t
        with (1 - beta1) beta1^(t - j) / (1 - beta1^t) of its learning rate, over the divisor.

        Args:
            root: of the second moment at each step; to it ``eps`` is added. None: the divisor is 1.
        """
        rate = per_step("learning_rate", self.learning_rate, integer("steps", steps))
        divisor: PerStep = 1.0 if root is None else per_step("root", root, steps, 0.0) + self.eps
        if not np.all(divisor):
            raise ValueError("root and eps must not both be zero: steps are divided by their sum")
        with np.errstate(over="ignore"):
            steps_taken = rate / divisor
        if self.is_memoryless:
            return _finite(steps_taken, steps)
        _require_few(steps)
        return _finite(self._adjoint(*np.broadcast_arrays(np.empty(steps), rate, steps_taken)[1:])[0], steps)

    def memory(self, steps: int, root: PerStep) -> float:
        """The derivative of the released parameters by the initial ones, with ``root`` as in ``weights``."""
        if not self.weight_decay:
            return 1.0
        rate = per_step("learning_rate", self.learning_rate, integer("steps", steps))
        return self._adjoint(*np.broadcast_arrays(np.empty(steps), rate, rate / (root + self.eps))[1:])[1]

    def _adjoint(self, rates: FloatArray, steps_taken: FloatArray) -> tuple[FloatArray, float]:
        """Run the update backwards, carrying how the output depends on the parameters and on the running mean."""
        result = [0.0] * len(rates)
        coupled = 0.0 if self.decoupled else self.weight_decay
        kept = (1.0 - rates * (self.weight_decay if self.decoupled else 0.0)).tolist()
        on_parameters, on_mean = 1.0, 0.0
        for t, step in reversed(list(enumerate(steps_taken.tolist()))):
            mean = on_mean + step / bias_of(self.beta1, t + 1) * on_parameters
            result[t] = weight = (1.0 - self.beta1) * mean
            on_mean = self.beta1 * mean
            on_parameters = kept[t] * on_parameters - coupled * weight
        return np.array(result), on_parameters

    def __eq__(self, other: object) -> bool:
        return same(self, other)

    def __hash__(self) -> int:
        return hash(key(self))

    def __repr__(self) -> str:
        return call_of(self)


Optimizer: TypeAlias = SGD | Adam


def bias_of(beta: float, count: int) -> float:
    """1 - beta^count: what a running mean that began at zero has of all that it saw; exact where beta is near 1."""
    return -math.expm1(count * math.log(beta)) if beta else 1.0


def _learning_rate(value: object) -> PerStep:
    rate = per_step("learning_rate", value, math.prod(shape("learning_rate", value)), low=0.0)
    if not np.any(rate):
        raise ValueError("learning_rate must not be zero at every step: such a run learns nothing")
    return rate


def _require_few(steps: int) -> None:
    if steps > MOST_STEPS_WITH_MEMORY:
        raise ValueError(
            f"steps must be at most {MOST_STEPS_WITH_MEMORY} with momentum, weight decay or averaging, got {steps}"
            ": each step then has a weight of its own"
        )


def _finite(weights: PerStep, steps: int) -> PerStep:
    if not np.isfinite(weights).all():
        raise ValueError(
            f"learning_rate and weight_decay must not make the optimizer diverge: the weights of {steps} steps "
            "are not finite"
        )
    return weights


def is_adam(optimizer: object) -> TypeIs[Adam]:
    """Return whether the optimizer is Adam, for which a prediction is an approximation of the heuristic."""
    return isinstance(optimizer, Adam)


def is_sgd(optimizer: object) -> TypeIs[SGD]:
    """Return whether the optimizer is SGD, whose weights are exact for linear losses."""
    return isinstance(optimizer, SGD)


def is_optimizer(optimizer: object) -> TypeIs[Optimizer]:
    """Return whether a value is one of our optimizers."""
    return isinstance(optimizer, (SGD, Adam))


def require_optimizer(optimizer: object) -> Optimizer:
    """Refuse optimizers whose last iterate has no weights, not even with a divisor taken as given."""
    if is_optimizer(optimizer):
        return optimizer
    name = optimizer if isinstance(optimizer, str) else getattr(optimizer, "__name__", type(optimizer).__name__)
    if name.lower() in ("adam", "adamw"):
        decoupled = "..., decoupled=True" if name.lower() == "adamw" else "..."
        raise ValueError(f"optimizer must be a lastiterate.SGD or Adam, got {name}: lastiterate.Adam({decoupled})")
    if "ada" in name.lower() or "rms" in name.lower():
        raise ValueError(
            f"optimizer must be a lastiterate.SGD or Adam, got {name}: it divides by a running size of the gradients "
            "that is not Adam's, so that the last iterate has no weights that are known here; report the unweighted "
            "heuristic instead (optimizer=None) and label it as such"
        )
    raise ValueError(f"optimizer must be a lastiterate.SGD, a lastiterate.Adam or None, got {name}")
