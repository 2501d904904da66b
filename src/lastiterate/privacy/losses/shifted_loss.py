"""The loss of a step that hides a shift and the canary at once: (1 - q) N(a) + q N(a + b) against N(0), unit noise.

It is a x - a^2 / 2 + log(1 - q + q exp(b (x - a) - b^2 / 2)): that of `step_loss` moved by a, and a Gaussian one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.special import ndtr, ndtri_exp

from lastiterate.arrays import FloatArray
from lastiterate.privacy.losses.step_loss import BEND, RISE, TURN, Loss, Nodes, StepLoss
from lastiterate.privacy.mixtures.contour import Effort, Unreliable

_OF_A_STEP = 3000.0  # numbers, which take as long as all else in a step


@dataclass(frozen=True, eq=False)
class ShiftedLoss(Loss):
    """As `StepLoss`, of which all but ``shift`` is; there is no cap."""

    rate: float
    slope: float
    shift: float
    remove: bool
    log_left_out: float
    effort: Effort = field(default_factory=Effort)

    def nodes(self, order: float, frequency: float, fineness: float = 1.0) -> Nodes:
        self.effort.spend(0.0)
        nodes = super().nodes(order, frequency, fineness)
        self.effort.spend(_OF_A_STEP + nodes.x.size)
        return nodes

    def loss(self, x: FloatArray) -> FloatArray:
        return self.shift * (x - 0.5 * self.shift) + self._sampled.loss(x - self.shift)

    def moved(self, x: FloatArray) -> FloatArray:
        return 2.0 * np.abs(x) * self.shift + self._sampled.moved(x - self.shift)

    @property
    def steepest(self) -> float:
        return self.slope + self.shift

    @cached_property
    def window(self) -> tuple[float, float]:
        log_half, log_quarter = (self.log_left_out - math.log(parts) for parts in (2.0, 4.0))
        low, far = float(ndtri_exp(log_half)), -float(ndtri_exp(log_quarter))
        if not self.remove:
            return low, far
        rare = min(log_quarter - math.log(self.rate), -math.log(2.0))
        with_canary = self.slope - float(ndtri_exp(rare))
        # A smooth maximum, as in `step_loss`: losses are interpolated in the shift.
        return low, self.shift + 0.5 * (far + with_canary + math.hypot(far - with_canary, 0.5))

    @property
    def is_capped(self) -> bool:
        return False

    @cached_property
    def above(self) -> tuple[float, float]:
        high = self.window[1]
        without = float(ndtr(-high))
        return without, self._of_mixture(lambda centre: float(ndtr(centre - high))) - without

    @cached_property
    def outside(self) -> tuple[float, float]:
        low, _ = self.window
        without, more = self.above
        below = self._of_mixture(lambda centre: float(ndtr(low - centre)))
        return below + without + more, float(ndtr(low)) + without

    @property
    def left_out(self) -> float:
        return self.outside[0 if self.remove else 1]

    def log_error(self, nodes: Nodes, order: float, frequency: float) -> float:
        raise Unreliable  # nothing is proved here

    def _places(self, size: float) -> tuple[FloatArray, FloatArray]:
        low, high = self.window
        bend, width = self._sampled.bend + self.shift, math.pi / self.slope
        reach = math.asinh((high - low + abs(bend)) / width)
        near = bend + width * np.sinh(np.linspace(-reach, reach, 61))
        x = np.concatenate((np.linspace(low, high, 81), near[(near > low) & (near < high)]))
        x.sort()
        turned = size * self.loss(x) + 0.5 * x * np.abs(x) + 4.0 * x
        rising = self.slope * (x - bend)
        risen = np.logaddexp(0.0, rising + math.log1p(size)) - np.logaddexp(0.0, rising)
        return x, turned / (2.0 * TURN) + np.arcsinh((x - bend) / width) / BEND + risen / RISE

    @cached_property
    def _sampled(self) -> StepLoss:
        return StepLoss(self.rate, self.slope, self.remove, self.log_left_out)

    def _of_mixture(self, probability: Callable[[float], float]) -> float:
        return (1.0 - self.rate) * probability(self.shift) + self.rate * probability(self.shift + self.slope)
