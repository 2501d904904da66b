"""What all measurements are made of: the run, models without a canary, and the means to train more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lastiterate.checking.canary_effects import (
    UNKNOWN,
    UNKNOWN_OF_A_TENSOR,
    Effect,
    are_short,
    in_tensor,
    is_dead,
    least_noise,
    restricted,
    still_at,
)
from lastiterate.checking.check_result import Plan, Row, Trainings, not_checked
from lastiterate.checking.declared import Declared, Parameters
from lastiterate.checking.noise import (
    QUIET,
    Allowance,
    Excess,
    Spread,
    dead_row,
    hidden_by_sampling,
    most_shared,
    noise_row,
    repeated_row,
    spread_between,
    unmoved_row,
    without_sampling,
)
from lastiterate.checking.noise_tests import AGAIN, CLOSEST, LAW, WITHOUT, again_row, closest_row, law_row, without_row
from lastiterate.common.types import FloatArray, IntArray

_SOME = 8  # parameters that a tensor must have to be compared with others
_MANY = 40  # that all tensors must have together
_FEW = 3  # that it must have where canaries are compared, whose effects are without noise


@dataclass(frozen=True, eq=False)
class Measured:
    """Models without a canary, one a row of ``plain``; ``error`` is that of each measurement by itself."""

    declared: Declared
    trainings: Trainings
    plain: FloatArray
    plan: Plan
    error: float
    batch_size: float | None

    @property
    def like(self) -> Parameters:
        """The form of the parameters."""
        assert self.trainings.first is not None
        return self.trainings.first

    @cached_property
    def moved(self) -> list[int]:
        """Tensors that are not the same in all models; all, if every one is the same."""
        differ = np.ptp(self.plain, axis=0) > 0.0
        found = [i for i, where in enumerate(self.like.slices) if differ[where].any()]
        return found or [i for i, where in enumerate(self.like.slices) if where.stop > where.start]

    @property
    def unmoved(self) -> list[int]:
        """Tensors that are the same in all models, where others are not."""
        return [i for i, where in enumerate(self.like.slices) if i not in self.moved and where.stop > where.start]

    def has_several(self, least: int = _FEW) -> bool:
        """Whether there are several tensors of that size at least, which curvature does not treat all alike."""
        sizes = [len(self._within(tensor)) for tensor in self.moved]
        return sum(sizes) >= _MANY and len([size for size in sizes if size >= least]) > 1

    @cached_property
    def variance(self) -> float:
        """Of the noise in each parameter, as declared or as found, whichever is less, so that sharing is noticed."""
        found = float(self.plain.var(axis=0, ddof=1).mean())
        return min(found, self.declared.variance) if found > 0.0 else self.declared.variance

    @property
    def floor(self) -> float:
        """How far rounding may move the difference of two models, over the clipping norm."""
        size = float(np.linalg.norm(np.abs(self.plain).max(axis=0)))
        run = self.declared.run
        return 4.0 * self.like.precision * size * float(np.sqrt(run.steps)) / run.clip_norm

    def noise_rows(
        self, effects: Sequence[Effect], clip: float, unmoved: bool | None, still: IntArray | None = None
    ) -> list[Row]:
        """The noise of all parameters, of the ``still`` ones, of each tensor, and whether two tensors share it."""
        like, names = self.like, self.like.names
        spread = spread_between(self.plain, self.declared)
        everything = np.concatenate([self._within(tensor) for tensor in self.moved])
        excess = self._excess(spread)
        rows = [self._noise_row(spread.of(everything), None, self._allowance(effects, clip), excess)]
        if still is not None and len(self.plain) > 2:
            seen = [restricted(effect, still) for effect in effects]
            # Where a canary bends least may depend on the noise of the model at which that was seen: leave it out.
            others = spread_between(np.delete(self.plain, still_at(effects).number, axis=0), self.declared)
            dead = is_dead(effects, seen, self.floor)
            row = self._noise_row(others.of(still), None, self._allowance(seen, clip), replace(excess, dead=dead))
            rows.append(replace(row, name=QUIET))
        for tensor in self.moved if len(names) > 1 else ():
            allowance = self._allowance(effects, clip, like.slices[tensor])
            row = self._noise_row(spread.of(self._within(tensor)), names[tensor], allowance, None)
            rows.append(
                without_sampling(
                    row, self.plain[:, like.slices[tensor]], like.shapes[tensor], self.declared, self.error
                )
            )
        rows += [unmoved_row(names[tensor], unmoved) for tensor in self.unmoved]
        return [*rows, repeated_row(self.plain, like, self.moved, self.error, self._most_shared(spread, effects, clip))]

    def unless_hidden(self, row: Row) -> Row:
        """The noise of all parameters, unless batches may hide it."""
        size = sum(len(self._within(tensor)) for tensor in self.moved)
        return hidden_by_sampling(row, size, self.declared, self.batch_size)

    def dead_row(self, dead: IntArray, exact: bool) -> Row:
        """The noise where no gradient is: neither sampling nor curvature changes it, if effects are ``exact``."""
        spread = spread_between(self.plain, self.declared)
        alike, least = self._excess(spread).alike, 1.0 if exact else UNKNOWN
        if self.declared.is_correlated and not exact:
            alike, least = False, min(UNKNOWN, self.declared.last)
        return dead_row(spread.of(dead), self.declared, self.error, alike, least)

    def everywhere_rows(self, effects: Sequence[Effect], clip: float, has_fault: bool) -> list[Row]:
        """Whether noise is missing somewhere, or of another law; ``has_fault``: whether it is wrong on the whole."""
        if has_fault:
            names = (CLOSEST, WITHOUT, AGAIN, LAW)
            return [not_checked(name, "noise is not as declared on the whole") for name in names]
        models = self.plain[:, np.concatenate([self._within(tensor) for tensor in self.moved])]
        least = self._allowance(effects, clip).least
        return [
            closest_row(models, self.declared, least, self.error),
            without_row(self.plain, effects, self.declared, self.error),
            again_row(models, self.declared, least, self.error),
            law_row(models, self.declared, self.error),
        ]

    def _within(self, tensor: int) -> IntArray:
        where = self.like.slices[tensor]
        return np.arange(where.start, where.stop)

    def _noise_row(self, spread: Spread, tensor: str | None, allowance: Allowance, excess: Excess | None) -> Row:
        return noise_row(spread, tensor, self.declared, allowance, self.error, self.batch_size, excess)

    def _most_shared(self, spread: Spread, effects: Sequence[Effect], clip: float) -> FloatArray:
        """For each tensor that moves, how much of its standard deviation it may have in common with others."""
        found = []
        for tensor in self.moved:
            least = self._allowance(effects, clip, self.like.slices[tensor]).least
            high = spread.of(self._within(tensor)).interval(self.error)[2]
            found.append(most_shared(high, least))
        return np.asarray(np.sqrt(found), np.float64)

    def _excess(self, spread: Spread) -> Excess:
        ends = [spread.of(self._within(tensor)).interval(self.error)[1:] for tensor in self.moved]
        alike = len(ends) > 1 and max(low for low, _ in ends) <= min(high for _, high in ends)
        return Excess(alike, len(ends) == 1)

    def _unknown(self, where: slice | None) -> float:
        """The least noise of a correct training where no canary shows what curvature takes.

        Curvature that is the same everywhere leaves as little as the last step's noise. It is that of small models of
        one tensor, such as linear regression; tensors of a network do not all have the same.
        """
        if self.declared.run.steps == 1:
            return 1.0
        if not self.has_several(_SOME):
            return min(UNKNOWN_OF_A_TENSOR, 0.5 * self.declared.last)
        return UNKNOWN if where is None else UNKNOWN_OF_A_TENSOR

    def _allowance(self, effects: Sequence[Effect], clip: float, where: slice | None = None) -> Allowance:
        """What canaries say that curvature takes, of all or of a tensor.

        Where noise is correlated, curvature may leave nothing but what the last step draws, whatever canaries say.
        """
        seen = [effect for effect in effects if effect.took_part and effect.along > 0.0]
        if self.declared.is_correlated:
            return Allowance(1.0, self.declared.last, seen=bool(seen))
        if not seen or (self.has_several() and are_short(seen, self.declared, clip)):
            return Allowance(1.0, self._unknown(where), seen=False)
        least, expected = least_noise(seen, self.declared, clip, self.error, self.has_several())
        if where is not None and self.declared.run.steps > 1:
            shares = [in_tensor(effect, where) / effect.along for effect in seen]
            least = max(least * min(1.0, max(min(shares), 0.0)) ** 2, self.declared.last)
        return Allowance(min(expected, 1.0), least, seen=True)
