"""Measurement of Adam's second moment on a few models: the share of noise in it, and the effect on step sizes.

The prediction assumes that noise alone makes up the second moment, so that Adam divides all steps by the same number.
If gradients add to the second moment, steps are smaller. If the contribution of gradients shrinks during training,
later steps are larger than earlier ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from threading import Lock

import numpy as np

from lastiterate.common.types import IntArray, RealArray
from lastiterate.common.validation import instance, integer, numbers
from lastiterate.optimizer import Adam, bias_of
from lastiterate.run import DPSGD, require_run

LEAST_MODELS = 2  # one half of the models selects the busy parameters, the other half is measured there
_LOOKS = 24  # number of steps at which the second moment is measured
_MOST_PARAMETERS = 100_000  # maximum number of parameters that are measured
_BUSY = 0.1  # the busy parameters are the tenth with the largest second moment


@dataclass(frozen=True)
class SecondMoment:
    """Adam's second moment as measured after some of the steps, with its bias corrected.

    Attributes:
        steps: steps after which the second moment was measured.
        noise: the second moment that noise alone would give.
        mean: mean second moment over parameters and models.
        busy: mean second moment over the busy parameters, the tenth where it is largest.
        numbers: number of values behind each mean in ``busy``.
    """

    steps: tuple[int, ...]
    noise: tuple[float, ...]
    mean: tuple[float, ...]
    busy: tuple[float, ...]
    numbers: int

    def __post_init__(self) -> None:
        looks = len(instance("steps", self.steps, tuple, "a tuple of steps"))
        steps = [integer("steps", step) for step in self.steps]
        if not steps or any(later <= earlier for earlier, later in pairwise(steps)):
            raise ValueError(f"steps must be at least one step, in increasing order, got {self.steps!r}")
        for name in ("noise", "mean", "busy"):
            values = numbers(name, getattr(self, name), 0.0, open_low=True)
            if values.shape != (looks,) or not np.isfinite(values).all():
                raise ValueError(f"{name} must be {looks} finite numbers, one per entry of steps, got {values!r}")
        integer("numbers", self.numbers)

    @classmethod
    def of_fields(cls, fields: Mapping[str, Sequence[float] | float]) -> SecondMoment:
        """Return the measurement from the JSON fields that the method ``fields`` returned."""
        given = {name: tuple(value) if isinstance(value, Sequence) else value for name, value in fields.items()}
        return cls(**given)  # type: ignore[arg-type]  # ``fields`` wrote it

    def fields(self) -> dict[str, list[float] | float]:
        """Return the measurement as JSON fields."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @property
    def noise_share(self) -> float:
        """Smallest share of noise in the mean second moment, over the measured steps."""
        return float(np.min(np.divide(self.noise, self.mean)))

    @property
    def busy_noise_share(self) -> float:
        """Smallest share of noise in the second moment of the busy parameters, over the measured steps."""
        return float(np.min(np.divide(self.noise, self.busy)))

    @property
    def growth(self) -> float:
        """Ratio of the last step to the smallest step, each divided by its predicted size. It is at least 1."""
        relative = [np.divide(values, self.noise) for values in (self.mean, self.busy)]
        return max(float(np.sqrt(each.max() / each[-1])) for each in relative)

    @property
    def uncertainty(self) -> float:
        """Excess of ``growth`` over 1 that may be chance: four standard deviations of the root of the first mean."""
        return 4.0 * math.sqrt(0.5 / self.numbers)

    def as_measured(self, run: DPSGD) -> tuple[DPSGD, DPSGD]:
        """Return the run with step weights from the mean second moment, and with step weights from ``busy``."""
        adam = instance("run.optimizer", require_run(run).optimizer, Adam, "a lastiterate.Adam")
        every = np.arange(1, run.steps + 1)
        roots = [np.interp(every, self.steps, np.sqrt(values)) for values in (self.mean, self.busy)]
        first, second = (run.replace(optimizer=None, weights=adam.weights(run.steps, root)) for root in roots)
        return first, second


class SecondMomentWatch:
    """A thread-safe collector of second moments of models while they train."""

    def __init__(self, run: DPSGD, parameters: int, models: int) -> None:
        self._adam = instance("run.optimizer", require_run(run).optimizer, Adam, "a lastiterate.Adam")
        looks = np.unique(np.rint(np.linspace(1, run.steps, min(_LOOKS, run.steps))).astype(int))
        self._rows = {int(step): row for row, step in enumerate(looks)}
        noise = np.asarray(self._adam.noise_root_in(run.mechanism), np.float64)
        self._noise = np.broadcast_to(noise**2, run.steps)[looks - 1]
        self._which: IntArray | None = None
        if parameters > _MOST_PARAMETERS:
            self._which = np.sort(np.random.default_rng(0).choice(parameters, _MOST_PARAMETERS, replace=False))
        size = min(parameters, _MOST_PARAMETERS)
        self._halves = np.zeros((2, len(looks), size))
        self._counts = ((models + 1) // 2, models // 2)
        self._lock = Lock()

    def wants(self, step: int) -> bool:
        """Return whether the second moment is measured after this step."""
        return step in self._rows

    def see(self, step: int, models: Sequence[int], moments: RealArray) -> None:
        """Add uncorrected second moments, [models, parameters], after a step. Models are numbered from 0."""
        found = np.asarray(moments if self._which is None else moments[:, self._which], np.float64)
        found = found / bias_of(self._adam.beta2, step)
        with self._lock:
            for model, values in zip(models, found, strict=True):
                self._halves[model % 2, self._rows[step]] += values / self._counts[model % 2]

    def result(self) -> SecondMoment:
        """Return the measurement."""
        size = self._halves.shape[2]
        busy = np.argsort(self._halves[0].mean(axis=0))[-max(1, round(_BUSY * size)) :]
        return SecondMoment(
            tuple(self._rows),
            tuple(self._noise.tolist()),
            tuple(self._halves.mean(axis=(0, 2)).tolist()),
            tuple(self._halves[1][:, busy].mean(axis=1).tolist()),
            len(busy) * self._counts[1],
        )
