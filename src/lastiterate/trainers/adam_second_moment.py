"""Measurement of Adam's second moment on a few models: the share of noise in it, and the effect on step sizes.

The prediction assumes that noise alone makes up the second moment, so that Adam divides all steps alike. If gradients
add to the second moment, steps are smaller. If their contribution shrinks during training, later steps are larger than
earlier ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from threading import Lock

import numpy as np

from lastiterate.common.types import FloatArray, IntArray, RealArray
from lastiterate.common.validation import instance, integer, numbers
from lastiterate.optimizer import Adam, bias_of
from lastiterate.run import DPSGD, noise_root, require_run

LEAST_MODELS = 2  # one half of the models finds the busy parameters, the other half is measured on them
_LOOKS = 24
_MOST_PARAMETERS = 100_000  # that are measured
_BUSY = 0.1  # share of the parameters


@dataclass(frozen=True)
class SecondMoment:
    """Adam's second moment as measured after some of the steps, with its bias corrected.

    Attributes:
        steps: steps after which it was measured.
        noise: its value if gradients were noise alone.
        mean: its mean over parameters and models.
        busy: its mean over the tenth of the parameters where it is largest.
        numbers: how many numbers each mean in ``busy`` is taken over.
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
            raise ValueError(f"steps must be one at least, and in order, got {self.steps!r}")
        for name in ("noise", "mean", "busy"):
            values = numbers(name, getattr(self, name), 0.0, open_low=True)
            if values.shape != (looks,) or not np.isfinite(values).all():
                raise ValueError(f"{name} must be {looks} finite numbers, one for each of steps, got {values!r}")
        integer("numbers", self.numbers)

    @classmethod
    def of_fields(cls, fields: Mapping[str, Sequence[float] | float]) -> SecondMoment:
        """Return the measurement that ``fields`` wrote."""
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
        """Factor by which the last step is larger than the smallest step, beyond the prediction.

        The factor is 1 if the second moment, relative to the noise, is largest at the end.
        """
        return max(_growth(np.divide(values, self.noise)) for values in (self.mean, self.busy))

    @property
    def uncertainty(self) -> float:
        """Chance excess of ``growth`` over 1: four standard deviations of the root of the first step's mean."""
        return 4.0 * math.sqrt(0.5 / self.numbers)

    def as_measured(self, run: DPSGD) -> tuple[DPSGD, DPSGD]:
        """Return the run with the step weights of the mean second moment, and with those of the busy parameters."""
        adam = instance("run.optimizer", require_run(run).optimizer, Adam, "a lastiterate.Adam")
        every = np.arange(1, run.steps + 1)
        roots = [np.interp(every, self.steps, np.sqrt(values)) for values in (self.mean, self.busy)]
        first, second = (run.replace(optimizer=None, weights=adam.weights(run.steps, root)) for root in roots)
        return first, second


def _growth(relative: FloatArray) -> float:
    return float(np.sqrt(relative.max() / relative[-1]))


class SecondMomentWatch:
    """A collector of second moments of models while they train. Several threads may call it."""

    def __init__(self, run: DPSGD, parameters: int, models: int) -> None:
        self._adam = instance("run.optimizer", require_run(run).optimizer, Adam, "a lastiterate.Adam")
        looks = np.unique(np.rint(np.linspace(1, run.steps, min(_LOOKS, run.steps))).astype(int))
        self._rows = {int(step): row for row, step in enumerate(looks)}
        self._noise = np.broadcast_to(np.asarray(noise_root(run), np.float64) ** 2, run.steps)[looks - 1]
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
        """Add second moments with their bias, [models, parameters], after a step; models are numbered from 0."""
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
