"""Trainings of a check: calls of the user's trainer with seeds, canaries and numbers of steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from inspect import signature

import numpy as np

from lastiterate.checking.allowances import Allowances
from lastiterate.checking.check_result import Row, judged
from lastiterate.checking.declared import Declared
from lastiterate.checking.parameters import Parameters, flatten, in_form, require_finite, require_same_form
from lastiterate.common.errors import TrainerFailed, guarded
from lastiterate.common.trees import ForeignTree
from lastiterate.common.types import FloatArray, IntArray
from lastiterate.common.validation import function

RECORD = "the trainer's own record"
LEAST_MODELS, MOST_MODELS = 8, 1000  # models of the declared length
FEW_SEEDS = 16  # one-step models at least: 15 degrees of freedom for each parameter
SMALLEST_BATCH = 2.0  # the mean of fewer gradients is their sum
MEAN = "the learning rate is for the mean of gradients (the run needs the rate for their sum: rate / batch size)"
_MOST_KEPT = 2 * 10**7  # numbers of models that are kept in memory
_WITHOUT = "without a canary"
_TAKEN = "(seed, canary) or (seed, canary, steps)"


class NotFinite(Exception):
    """Parameters are NaN or infinite with a canary."""


def takes_steps(train: ForeignTree) -> bool:
    """Return whether a trainer takes the number of steps. Raise if it cannot be called with seed and canary."""
    function("train", train, f"a function train{_TAKEN} that returns parameters")
    try:
        how = signature(train)
    except (TypeError, ValueError):
        return False
    if "steps" not in how.parameters:
        try:
            how.bind(0, False)
        except TypeError as error:
            got = f"got one that takes {how}: {error}"
            raise ValueError(f"train must be a trainer that takes {_TAKEN}, {got}") from None
    return "steps" in how.parameters


def seed_of(seed: int, number: int) -> int:
    """Return a seed in [0, 2^31). Seeds of successive numbers are far apart, because trainers may also use seed + 1."""
    return int.from_bytes(blake2b(f"check {seed} {number}".encode(), digest_size=4).digest(), "little") >> 1


@dataclass
class Trainings:
    """Models that the user's trainer trains. Models without a canary are kept for later use."""

    declared: Declared
    train: Callable[..., ForeignTree]
    seed: int  # determines all seeds of the trainer
    told: Callable[[], None]  # called after each full-length training
    first: Parameters | None = None  # the form of all parameters
    counts: Counter[int] = field(default_factory=Counter)  # trainings of each length
    record: Row | None = None  # the row that compares the trainer's own record with the run
    with_steps: bool = field(init=False)  # True if the trainer takes the number of steps
    reference: FloatArray | None = None  # the canary of the world to compare with, or None for no canary
    _kept: dict[tuple[int, int, bool], FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.with_steps = takes_steps(self.train)

    @property
    def like(self) -> Parameters:
        """The form of the parameters."""
        assert self.first is not None
        return self.first

    @property
    def most_kept(self) -> int:
        """Number of models of one length that are kept."""
        return max(FEW_SEEDS, _MOST_KEPT // max(len(self.like.vector), 1))

    def again(self, number: int, steps: int) -> FloatArray:
        """Train a model without a canary again."""
        return self._train(number, False, steps, _WITHOUT)

    def models(self, count: int, steps: int) -> FloatArray:
        """Return models without a canary, one per row. They must be finite."""
        return np.stack([self._once(number, steps, None) for number in range(count)])

    def effect(self, number: int, canary: FloatArray | None, steps: int, what: str) -> FloatArray:
        """Return minus the displacement by a canary, or by the trainer's own example if ``canary`` is None."""
        before = self._once(number, steps, self.reference)
        after = self._train(number, True if canary is None else in_form(canary, self.like), steps, what)
        if not np.isfinite(after).all():
            raise NotFinite
        return before - after

    def floor(self, steps: int) -> float:
        """Return the size of rounding errors in the difference of two models: two roundings a step, of random sign."""
        sizes = [vector for (_, count, _), vector in self._kept.items() if count == steps]
        largest = float(np.linalg.norm(np.abs(sizes).max(axis=0)))
        return 4.0 * self.like.precision * largest * float(np.sqrt(max(steps, 1)))

    def _once(self, number: int, steps: int, canary: FloatArray | None) -> FloatArray:
        key, given = (number, steps, canary is None), False if canary is None else in_form(canary, self.like)
        if key in self._kept:
            return self._kept[key]
        found = self._train(number, given, steps, _WITHOUT if canary is None else "with a tiny canary")
        if number < self.most_kept:
            self._kept[key] = found
        return found

    def _train(self, number: int, canary: ForeignTree, steps: int, what: str) -> FloatArray:
        seed, more = seed_of(self.seed, number), {"steps": steps} if self.with_steps else {}
        called = f"seed {seed}{f', {steps} steps' if self.with_steps else ''}, {what}"
        found = self.parameters(lambda: self.train(seed, canary, **more), called, canary is False)
        self.counts[steps] += 1
        if steps == self.declared.run.steps:
            self.told()
        # The trainer's own record is compared with the run. The first mismatch is a fault.
        if found.trained is not None and steps and (self.record is None or self.record.status == "ok"):
            why = ""
            try:
                found.trained.check(self.declared.prefix(steps).run)
            except ValueError as error:
                why = str(error)
            self.record = judged(RECORD, (None, None, None, None), bool(why), why)
        return found.vector

    def parameters(self, call: Callable[[], ForeignTree], called: str, is_finite: bool = True) -> Parameters:
        """Return the parameters that a user's function returns. They must have the form of the first ones."""
        result = guarded(call, called)
        try:
            found = flatten(result)
            self.first = self.first or found
            require_same_form(found, self.first)
            if is_finite:
                require_finite(found)
        except ValueError as error:
            raise TrainerFailed(error, called) from error
        return found


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
    def columns(self) -> IntArray:
        """The trained parameters."""
        return self.trainings.like.columns(self.tensors)
