"""SGD and Adam as linear maps: the weight of each step's gradient in the released model.

SGD is linear. Adam divides by the root of a running second moment of the gradients. Adam is linear if that divisor is
taken as fixed, and the divisor is known if noise alone makes up the second moment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import numpy as np

from lastiterate.common.errors import BadArgument
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import (
    ByFields,
    PerStep,
    PerStepGiven,
    boolean,
    cut,
    instance,
    integer,
    number,
    per_step,
    shape,
    shown,
)
from lastiterate.mechanism import Mechanism

if TYPE_CHECKING:
    from typing_extensions import TypeIs

HEURISTIC, APPROXIMATION = "heuristic", "approximation of a heuristic"  # kinds of prediction

MOST_STEPS_WITH_MEMORY = 10**6


@dataclass(frozen=True, eq=False, repr=False)
class SGD(ByFields):
    """Stochastic gradient descent in PyTorch's convention.

    Args:
        learning_rate: one number, or a schedule of one number per step.
        momentum: heavy-ball factor. As in PyTorch, the first step's gradient enters the buffer without dampening.
        dampening: the buffer takes (1 - dampening) of each later gradient.
        nesterov: use Nesterov's look-ahead.
        weight_decay: this factor times the parameters is added to the gradient (L2). If ``decoupled`` is true, it is
            instead multiplied by the learning rate and subtracted from the parameters, as in AdamW and SGDW.
        decoupled: see ``weight_decay``.
        averaging: the released model is the last iterate (None), the mean of the iterates after each step
            (``"uniform"``), or their exponential moving average with this decay, a number in (0, 1). The moving average
            starts at the initial parameters.
    """

    prediction: ClassVar[str] = HEURISTIC  # SGD is linear
    is_adaptive: ClassVar[bool] = False  # True for an optimizer that divides gradients by their second moment
    name: ClassVar[str] = "sgd"  # on the command line

    learning_rate: PerStep = 1.0
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    decoupled: bool = False
    averaging: Literal["uniform"] | float | None = None

    if TYPE_CHECKING:  # accepts lists; the fields hold arrays

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
        self._fix(
            learning_rate=_learning_rate(self.learning_rate),
            momentum=number("momentum", self.momentum, 0.0, 1.0, open_high=True),
            dampening=number("dampening", self.dampening, 0.0, 1.0, open_high=True),
            weight_decay=number("weight_decay", self.weight_decay, 0.0),
            nesterov=boolean("nesterov", self.nesterov),
            decoupled=boolean("decoupled", self.decoupled),
        )
        if self.nesterov and (self.momentum == 0.0 or self.dampening != 0.0):
            raise ValueError(
                f"nesterov needs momentum > 0 and dampening = 0, got momentum {self.momentum} "
                f"and dampening {self.dampening}"
            )
        if self.averaging is not None and not (isinstance(self.averaging, str) and self.averaging == "uniform"):
            if isinstance(self.averaging, str) or np.ndim(self.averaging) != 0:
                allowed = "None, 'uniform' or a decay in (0, 1)"
                raise BadArgument("averaging", f"must be {allowed}, got {shown(self.averaging)}")
            self._fix(averaging=number("averaging", self.averaging, 0.0, 1.0, open_low=True, open_high=True))

    @property
    def is_memoryless(self) -> bool:
        """True if the released model is the plain sum of learning rate times gradient."""
        return self.momentum == 0.0 and self.weight_decay == 0.0 and self.averaging is None

    @property
    def memory_words(self) -> str:
        """Name of the setting that makes an iterate depend on more than the previous one, or an empty string."""
        return "momentum" if self.momentum else "averaging" if self.averaging is not None else ""

    def for_sums(self, size: float) -> SGD:
        """Return the optimizer that treats sums of ``size`` gradients as this one treats their means."""
        size = number("size", size, 0.0, open_low=True)
        return replace(self, learning_rate=self.learning_rate / size, weight_decay=self.weight_decay * size)

    def weights(self, steps: int) -> PerStep:
        """Return the weight of each step: minus the derivative of the released parameters by the step's gradient."""
        rate = per_step("learning_rate", self.learning_rate, integer("steps", steps))
        if self.is_memoryless:
            return rate
        _require_few(steps)
        return _finite(self._adjoint(np.broadcast_to(rate, (steps,)).tolist())[0], steps)

    def memory(self, mechanism: Mechanism) -> float:
        """Return the derivative of the released parameters by the initial parameters."""
        steps = _require_mechanism(mechanism).steps
        if not self.weight_decay and self.averaging is None:
            return 1.0
        return self._adjoint(np.broadcast_to(self.learning_rate, (steps,)).tolist())[1]

    def weights_in(self, mechanism: Mechanism) -> PerStep:
        """Return the weights in a run with this mechanism."""
        return self.weights(_require_mechanism(mechanism).steps)

    def prefix(self, steps: int) -> SGD:
        """Return the optimizer of a run that stops after ``steps`` steps."""
        return replace(self, learning_rate=cut(self.learning_rate, integer("steps", steps)))

    def _adjoint(self, rates: list[float]) -> tuple[FloatArray, float]:
        """Go backwards through the updates, with the output's derivatives by the parameters and by the buffer.

        Return the weights of the steps and the derivative by the initial parameters.
        """
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
        # A moving average starts at the initial parameters.
        kept = self.averaging**steps if isinstance(self.averaging, float) else 0.0
        return np.array(result), on_parameters + kept

    def _output_coefficients(self, steps: int) -> list[float]:
        if self.averaging is None:
            return [0.0] * (steps - 1) + [1.0]
        if self.averaging == "uniform":
            return [1.0 / steps] * steps
        decay = float(self.averaging)
        return [(1.0 - decay) * decay ** (steps - 1 - t) for t in range(steps)]


@dataclass(frozen=True, eq=False, repr=False)
class Adam(ByFields):
    """Adam, or AdamW with ``decoupled``, in PyTorch's convention and with the defaults of ``torch.optim.Adam``.

    The input is the noisy *sum* of clipped gradients, as for SGD. For training that divides the sum by a batch size B,
    as Opacus does, multiply ``eps`` by B, and also ``weight_decay`` unless ``decoupled`` is true. The learning rate
    stays the same, because nothing else in Adam depends on the scale of gradients.

    Args:
        learning_rate: one number, or a schedule of one number per step.
        beta1: decay of the running mean of gradients. The bias of the mean is corrected.
        beta2: decay of the running mean of squared gradients. The bias of the mean is corrected.
        eps: number that is added to the root of the second moment, on the scale of sums of gradients.
        weight_decay: this factor times the parameters is added to the gradient (L2). If ``decoupled`` is true, it is
            instead multiplied by the learning rate and subtracted from the parameters (AdamW).
        decoupled: see ``weight_decay``.
    """

    prediction: ClassVar[str] = APPROXIMATION  # the divisor is taken as fixed
    is_adaptive: ClassVar[bool] = True
    averaging: ClassVar[None] = None  # the last iterate is released
    dampening: ClassVar[float] = 0.0
    nesterov: ClassVar[bool] = False
    memory_words: ClassVar[str] = "Adam"

    learning_rate: PerStep = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    if TYPE_CHECKING:  # accepts lists; the fields hold arrays

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
        self._fix(
            learning_rate=_learning_rate(self.learning_rate),
            beta1=number("beta1", self.beta1, 0.0, 1.0, open_high=True),
            beta2=number("beta2", self.beta2, 0.0, 1.0, open_high=True),
            eps=number("eps", self.eps, 0.0),
            weight_decay=number("weight_decay", self.weight_decay, 0.0),
            decoupled=boolean("decoupled", self.decoupled),
        )

    @property
    def momentum(self) -> float:
        """Decay of the running mean of gradients, as for the momentum of SGD."""
        return self.beta1

    @property
    def name(self) -> str:
        """The name on the command line: AdamW decays weights apart from the gradient."""
        return "adamw" if self.decoupled else "adam"

    @property
    def is_memoryless(self) -> bool:
        """True if the released model is the plain sum of learning rate times gradient, divided by the divisor."""
        return self.beta1 == 0.0 and self.weight_decay == 0.0

    def for_sums(self, size: float) -> Adam:
        """Return the optimizer that treats sums of ``size`` gradients as this one treats their means."""
        size = number("size", size, 0.0, open_low=True)
        decay = self.weight_decay * (1.0 if self.decoupled else size)
        return replace(self, eps=self.eps * size, weight_decay=decay)

    def noise_root(self, noise: PerStep, steps: int) -> PerStep:
        """Return the root of the second moment at each step if gradients are noise with this standard deviation."""
        if not np.ndim(noise):
            return float(noise)
        moment, result = 0.0, np.empty(steps)
        for t, deviation in enumerate(np.asarray(noise, np.float64).tolist()):
            moment = self.beta2 * moment + (1.0 - self.beta2) * deviation**2
            result[t] = math.sqrt(moment / bias_of(self.beta2, t + 1))
        return result

    def weights(self, steps: int, root: PerStep | None = None) -> PerStep:
        """Return minus the derivative of the released parameters by each step's gradient, for a fixed divisor.

        SGD with a bias-corrected running mean as momentum has the same weights. The weight of gradient j in step t
        is (1 - beta1) beta1^(t - j) / (1 - beta1^t) times the learning rate, over the divisor.

        Args:
            root: root of the second moment at each step. The divisor is ``root + eps``, or 1 if ``root`` is None.
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

    def weights_in(self, mechanism: Mechanism) -> PerStep:
        """Return the weights in a run with this mechanism. The divisor is computed from the noise alone."""
        root = self.noise_root_in(mechanism)
        return self.weights(mechanism.steps, root)

    def noise_root_in(self, mechanism: Mechanism) -> PerStep:
        """Return the root of the second moment at each step. The analyses assume that gradients are noise alone."""
        _require_mechanism(mechanism)
        if mechanism.noise_filter is not None:
            raise BadArgument(
                "noise_filter",
                f"must be None for a prediction with Adam, got {len(mechanism.noise_filter)} "
                "coefficients: the effect of correlated noise on Adam's second moment is not known; composition "
                "still holds",
            )
        return self.noise_root(mechanism.noise_multiplier * mechanism.clip_norm, mechanism.steps)

    def memory(self, mechanism: Mechanism) -> float:
        """Return the derivative of the released parameters by the initial parameters, with the divisor of noise."""
        if not self.weight_decay:
            return 1.0
        _require_mechanism(mechanism)
        divisor = self.noise_root_in(mechanism) + self.eps
        rate = per_step("learning_rate", self.learning_rate, mechanism.steps)
        return self._adjoint(*np.broadcast_arrays(np.empty(mechanism.steps), rate, rate / divisor)[1:])[1]

    def _adjoint(self, rates: FloatArray, steps_taken: FloatArray) -> tuple[FloatArray, float]:
        """Go backwards through the updates, with the output's derivatives by the parameters and by the running mean."""
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


Optimizer: TypeAlias = SGD | Adam


def bias_of(beta: float, count: int) -> float:
    """Return 1 - beta^count, the total weight in a running mean that began at zero. Accurate for beta near 1."""
    return -math.expm1(count * math.log(beta)) if beta else 1.0


def _require_mechanism(mechanism: object) -> Mechanism:
    return instance("mechanism", mechanism, Mechanism, "the mechanism of a lastiterate.DPSGD")


def _learning_rate(value: object) -> PerStep:
    rate = per_step("learning_rate", value, math.prod(shape("learning_rate", value)), low=0.0)
    if not np.any(rate):
        raise BadArgument("learning_rate", "must not be zero at every step: such a run learns nothing")
    return rate


def _require_few(steps: int) -> None:
    if steps > MOST_STEPS_WITH_MEMORY:
        raise BadArgument(
            "steps",
            f"must be at most {MOST_STEPS_WITH_MEMORY} with momentum, weight decay or averaging, got {steps}"
            ": the weight of every step must be computed",
        )


def _finite(weights: PerStep, steps: int) -> PerStep:
    if not np.isfinite(weights).all():
        raise ValueError(
            f"learning_rate and weight_decay must not make the optimizer diverge: in {steps} steps, the effect of a "
            "step on the last iterate is not finite"
        )
    return weights


def is_adam(optimizer: object) -> TypeIs[Adam]:
    """Return whether the optimizer is Adam, for which predictions are approximations of the heuristic."""
    return isinstance(optimizer, Adam)


def is_sgd(optimizer: object) -> TypeIs[SGD]:
    """Return whether the optimizer is SGD, whose weights are exact for linear losses."""
    return isinstance(optimizer, SGD)


def is_optimizer(optimizer: object) -> TypeIs[Optimizer]:
    """Return whether a value is one of our optimizers."""
    return isinstance(optimizer, (SGD, Adam))


def require_optimizer(optimizer: object) -> Optimizer:
    """Return a ``lastiterate.SGD`` or ``Adam``. Raise for any other optimizer."""
    if is_optimizer(optimizer):
        return optimizer
    name = optimizer if isinstance(optimizer, str) else getattr(optimizer, "__name__", type(optimizer).__name__)
    name = name[:200]
    kind, must = name.lower(), f"must be a lastiterate.SGD or Adam, got {name}"
    if kind in ("adam", "adamw"):
        decoupled = "..., decoupled=True" if kind == "adamw" else "..."
        raise BadArgument("optimizer", f"{must}: use lastiterate.Adam({decoupled})")
    if "ada" in kind or "rms" in kind:
        why = "the weights of its steps are not known, because it divides gradients differently from Adam"
        instead = "use equal weights instead (optimizer=None), and say so in reports"
        raise BadArgument("optimizer", f"{must}: {why}; {instead}")
    raise BadArgument("optimizer", f"must be a lastiterate.SGD, a lastiterate.Adam or None, got {name}")
