"""Trainings of a check: calls of the user's trainer with seeds, canaries and numbers of steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from inspect import signature

import numpy as np

from lastiterate.auditing.experiments.user_trainer import Trained
from lastiterate.checking.allowances import Allowances
from lastiterate.checking.check_result import Row, judged
from lastiterate.checking.declared import Declared
from lastiterate.checking.parameters import Parameters, flatten, in_form, require_finite, require_same_form
from lastiterate.common.errors import TrainerFailed, guarded
from lastiterate.common.trees import ForeignTree
from lastiterate.common.types import FloatArray, IntArray
from lastiterate.common.validation import function

RECORD = "the trainer's own record"
FEW_SEEDS = 16  # one-step models at least: 15 degrees of freedom for each parameter
_MOST_KEPT = 2 * 10**7  # numbers of models that are kept in memory
_WITHOUT = "without a canary"
_TAKEN = "a function train(seed, canary) or train(seed, canary, steps) that returns parameters"


def takes_steps(train: ForeignTree) -> bool:
    """Return whether a trainer takes the number of steps. Raise if it cannot be called with seed and canary."""
    function("train", train, _TAKEN)
    try:
        how = signature(train)
    except (TypeError, ValueError):
        return False
    if "steps" in how.parameters:
        return True
    try:
        how.bind(0, False)
    except TypeError as error:
        raise ValueError(
            f"train must be a trainer that takes (seed, canary) or (seed, canary, steps), got one that takes {how}: "
            f"{error}"
        ) from None
    return False


def seed_of(seed: int, number: int) -> int:
    """Return a seed in [0, 2^31). Seeds of successive numbers are far apart, because trainers may also use seed + 1."""
    return int.from_bytes(blake2b(f"check {seed} {number}".encode(), digest_size=4).digest(), "little") >> 1


@dataclass
class Trainings:
    """Models that the user's trainer trains. Models without a canary are kept for later use."""

    declared: Declared
    train: Callable[..., ForeignTree]
    with_steps: bool  # True if the trainer takes the number of steps
    seed: int  # determines all seeds of the trainer
    told: Callable[[], None]  # called after each full-length training
    first: Parameters | None = None  # the form of all parameters
    counts: Counter[int] = field(default_factory=Counter)  # trainings of each length
    record: Row | None = None  # the row that compares the trainer's own record with the run
    reference: FloatArray | None = None  # the canary of the world to compare with, or None for no canary
    _kept: dict[tuple[int, int, bool], FloatArray] = field(default_factory=dict)

    @property
    def like(self) -> Parameters:
        """The form of the parameters."""
        assert self.first is not None
        return self.first

    @property
    def most_kept(self) -> int:
        """Number of models of one length that are kept."""
        return max(FEW_SEEDS, _MOST_KEPT // max(len(self.like.vector), 1))

    def without(self, number: int, steps: int) -> FloatArray:
        """Return the parameters of a model without a canary. They must be finite."""
        return self._once(number, steps, None)

    def again(self, number: int, steps: int) -> FloatArray:
        """Train a model without a canary again."""
        return self._train(number, False, steps, _WITHOUT).vector

    def models(self, count: int, steps: int) -> FloatArray:
        """Return models without a canary, one per row."""
        return np.stack([self.without(number, steps) for number in range(count)])

    def effect(self, number: int, canary: FloatArray | None, steps: int, what: str) -> FloatArray | None:
        """Return minus the displacement by a canary, or None if the parameters are not finite with the canary.

        If ``canary`` is None, the trainer adds an example of its own.
        """
        before = self._once(number, steps, self.reference)
        given = True if canary is None else in_form(canary, self.like)
        after = self._train(number, given, steps, what).vector
        return before - after if np.isfinite(after).all() else None

    def floor(self, steps: int) -> float:
        """Return the size of rounding errors in the difference of two models.

        Each step rounds every parameter twice, by at most half a unit in the last place; signs are random.
        """
        sizes = [vector for (_, count, _), vector in self._kept.items() if count == steps]
        largest = float(np.linalg.norm(np.abs(sizes).max(axis=0)))
        return 4.0 * self.like.precision * largest * float(np.sqrt(max(steps, 1)))

    def _once(self, number: int, steps: int, canary: FloatArray | None) -> FloatArray:
        key, given = (number, steps, canary is None), False if canary is None else in_form(canary, self.like)
        if key in self._kept:
            return self._kept[key]
        found = self._train(number, given, steps, "with a tiny canary" if canary is not None else _WITHOUT).vector
        if number < self.most_kept:
            self._kept[key] = found
        return found

    def _train(self, number: int, canary: ForeignTree, steps: int, what: str) -> Parameters:
        seed, more = seed_of(self.seed, number), {"steps": steps} if self.with_steps else {}
        result = guarded(lambda: self.train(seed, canary, **more), self._called(number, steps, what))
        try:
            found = flatten(result)
            self.first = self.first or found
            require_same_form(found, self.first)
            if canary is False:
                require_finite(found)
        except ValueError as error:
            raise TrainerFailed(error, self._called(number, steps, what)) from error
        self.counts[steps] += 1
        if steps == self.declared.run.steps:
            self.told()
        if found.trained is not None and steps:
            self._compare(found.trained, steps)
        return found

    def _compare(self, trained: Trained, steps: int) -> None:
        """Compare the trainer's own record with the run. The first mismatch is a fault."""
        if self.record is None or self.record.status == "ok":
            why = ""
            try:
                trained.check(self.declared.prefix(steps).run)
            except ValueError as error:
                why = str(error)
            self.record = judged(RECORD, (None, None, None, None), bool(why), why)

    def _called(self, number: int, steps: int, what: str) -> str:
        length = f", {steps} steps" if self.with_steps else ""
        return f"seed {seed_of(self.seed, number)}{length}, {what}"


@dataclass(frozen=True, eq=False)
class Setting:
    """Values that all rows of a check use."""

    declared: Declared
    trainings: Trainings
    error: float  # share of the error that one row has
    allowances: Allowances
    batch_size: float | None  # expected number of examples in a batch
    tensors: tuple[int, ...]  # tensors that are trained
    # Direction of the canary. It is empty if the trainer adds an example of its own.
    direction: FloatArray = field(default_factory=lambda: np.zeros(0))
    seeded: bool = False  # True if initial values, and therefore gradients, depend on the seed

    @property
    def like(self) -> Parameters:
        """The form of the parameters."""
        return self.trainings.like

    @property
    def columns(self) -> IntArray:
        """The trained parameters."""
        return np.concatenate([np.arange(self.like.slices[i].start, self.like.slices[i].stop) for i in self.tensors])
