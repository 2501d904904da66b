"""Learning rate schedules: one number per step, for ``SGD(learning_rate=...)``.

Each schedule equals the named scheduler of ``torch.optim.lr_scheduler``, if that is stepped after every update.
"""

from collections.abc import Callable

import numpy as np

from lastiterate.common.types import FloatArray
from lastiterate.common.validation import integer, number
from lastiterate.optimizer import MOST_STEPS_WITH_MEMORY


def cosine(learning_rate: float, steps: int, final_rate: float = 0.0) -> FloatArray:
    """Return half a cosine from ``learning_rate`` down to ``final_rate``, which would be reached after the last step.

    Equals ``CosineAnnealingLR(T_max=steps, eta_min=final_rate)``.
    """
    rate, final = _rate(learning_rate), number("final_rate", final_rate, 0.0)
    return final + (rate - final) * 0.5 * (1.0 + np.cos(np.pi * _done(steps)))


def linear(learning_rate: float, steps: int, final_rate: float = 0.0) -> FloatArray:
    """Return a straight line from ``learning_rate`` to ``final_rate``, which would be reached after the last step.

    Equals ``LinearLR(start_factor=1, end_factor=final_rate / learning_rate, total_iters=steps)``.
    """
    rate, final = _rate(learning_rate), number("final_rate", final_rate, 0.0)
    return rate + (final - rate) * _done(steps)


def step(learning_rate: float, steps: int, drop_every: int, drop_factor: float = 0.1) -> FloatArray:
    """Return a rate that is multiplied by ``drop_factor`` after every ``drop_every`` steps. Equals ``StepLR``."""
    rate, every = _rate(learning_rate), integer("drop_every", drop_every)
    factor = number("drop_factor", drop_factor, 0.0, 1.0, open_low=True)
    return rate * factor ** np.floor_divide(np.arange(_count(steps)), every).astype(np.float64)


def warmup_cosine(
    learning_rate: float, steps: int, warmup_steps: int, first_rate: float = 0.0, final_rate: float = 0.0
) -> FloatArray:
    """Return a line from ``first_rate`` up to ``learning_rate`` for ``warmup_steps``, followed by half a cosine.

    Equals ``SequentialLR`` of ``LinearLR(start_factor=first_rate / learning_rate, total_iters=warmup_steps)`` and
    ``CosineAnnealingLR(T_max=steps - warmup_steps, eta_min=final_rate)``.
    """
    rate, first = _rate(learning_rate), number("first_rate", first_rate, 0.0)
    warm = integer("warmup_steps", warmup_steps, 0, _count(steps) - 1)
    rising = first + (rate - first) * _done(warm) if warm else np.empty(0)
    return np.concatenate([rising, cosine(rate, steps - warm, final_rate)])


def _rate(learning_rate: float) -> float:
    return number("learning_rate", learning_rate, 0.0, open_low=True)


def _count(steps: int) -> int:
    return integer("steps", steps, 1, MOST_STEPS_WITH_MEMORY)


def _done(steps: int) -> FloatArray:
    """Return, for each step, the share of all steps that come before it."""
    return np.arange(_count(steps)) / steps


SCHEDULES: dict[str, Callable[..., FloatArray]] = {
    "cosine": cosine,
    "linear": linear,
    "step": step,
    "warmup-cosine": warmup_cosine,
}
