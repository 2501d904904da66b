"""Trainings of a check: the user's trainer called with seeds, canaries and numbers of steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from inspect import Parameter, signature

import numpy as np

from lastiterate.auditing.experiments.user_trainer import Trained
from lastiterate.checking.allowances import Allowances
from lastiterate.checking.check_result import Row, Status
from lastiterate.checking.declared import Declared
from lastiterate.checking.parameters import Foreign, Parameters, flatten, in_form, require_finite, require_same_form
from lastiterate.common.errors import TrainerFailed, guarded
from lastiterate.common.types import FloatArray, IntArray
from lastiterate.common.validation import function

RECORD = "the trainer's own record"
_TAKEN = "a function train(seed, canary) or train(seed, canary, steps) that returns parameters"


def takes_steps(train: Foreign) -> bool:
    """Return whether a trainer takes the number of steps. Raise if it cannot be called with seed and canary."""
    function("train", train, _TAKEN)
    try:
        how = signature(train)
    except (TypeError, ValueError):
        return False
    named = how.parameters.get("steps")
    if named is not None and named.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
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
    """Return a seed in [0, 2^31). Seeds of different numbers are far apart: a trainer may use the next one, too."""
    return int.from_bytes(blake2b(f"check {seed} {number}".encode(), digest_size=4).digest(), "little") >> 1


@dataclass
class Trainings:
    """Trains each seed, canary and number of steps once, and remembers models without a canary.

    Attributes:
        declared: the declared run, for trainers that return a record.
        train: the user's trainer.
        with_steps: whether the trainer takes the number of steps.
        seed: seed of the trainer's seeds.
        told: is called after each training of the declared length.
        first: parameters of the first training, whose form all others have.
        counts: number of trainings of each length.
        record: comparison of the trainer's own record with the run; None: the trainer keeps none.
        batch_sizes: all batch sizes in the records.
        reference: canary of the world that effects are compared with; None: the world without a canary.
    """

    declared: Declared
    train: Callable[..., Foreign]
    with_steps: bool
    seed: int
    told: Callable[[], None]
    first: Parameters | None = None
    plain: dict[tuple[int, int], FloatArray] = field(default_factory=dict)
    counts: Counter[int] = field(default_factory=Counter)
    record: Row | None = None
    batch_sizes: list[float] = field(default_factory=list)
    reference: FloatArray | None = None
    referred: dict[tuple[int, int], FloatArray] = field(default_factory=dict)

    @property
    def like(self) -> Parameters:
        """The form of the parameters."""
        assert self.first is not None
        return self.first

    def without(self, number: int, steps: int) -> FloatArray:
        """Return the parameters of a model without a canary. They must be finite."""
        if (number, steps) not in self.plain:
            self.plain[number, steps] = self.again(number, steps)
        return self.plain[number, steps]

    def again(self, number: int, steps: int) -> FloatArray:
        """Train a model without a canary anew."""
        found = self._train(number, False, steps, "without a canary")
        try:
            require_finite(found)
        except ValueError as error:
            raise TrainerFailed(error, self._called(number, steps, "without a canary")) from error
        return found.vector

    def models(self, count: int, steps: int) -> FloatArray:
        """Return models without a canary, one a row."""
        return np.stack([self.without(number, steps) for number in range(count)])

    def effect(self, number: int, canary: FloatArray | None, steps: int, what: str) -> FloatArray | None:
        """Return minus the displacement by a canary; None: the parameters are not finite with it.

        Without a canary vector, the trainer puts in an example of its own.
        """
        before = self.without(number, steps)
        if self.reference is not None:
            if (number, steps) not in self.referred:
                other = self._train(number, in_form(self.reference, self.like), steps, "with a tiny canary")
                self.referred[number, steps] = other.vector
            before = self.referred[number, steps]
        given = True if canary is None else in_form(canary, self.like)
        after = self._train(number, given, steps, what).vector
        return before - after if np.isfinite(after).all() else None

    def floor(self, steps: int) -> float:
        """Return the size of rounding errors in the difference of two models.

        Each step rounds every parameter twice, by at most half a unit in the last place; signs are random.
        """
        sizes = [vector for (_, count), vector in self.plain.items() if count == steps]
        largest = float(np.linalg.norm(np.abs(sizes).max(axis=0)))
        return 4.0 * self.like.precision * largest * float(np.sqrt(max(steps, 1)))

    def _train(self, number: int, canary: Foreign, steps: int, what: str) -> Parameters:
        seed = seed_of(self.seed, number)
        more = {"steps": steps} if self.with_steps else {}
        result = guarded(lambda: self.train(seed, canary, **more), self._called(number, steps, what))
        try:
            found = flatten(result)
            self.first = self.first or found
            require_same_form(found, self.first)
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
        if trained.batch_sizes is not None:
            self.batch_sizes += np.ravel(np.asarray(trained.batch_sizes, np.float64)).tolist()
        if self.record is not None and self.record.status == "fault":
            return
        status: Status = "ok"
        why = ""
        try:
            trained.check(self.declared.prefix(steps).run)
        except ValueError as error:
            status, why = "fault", str(error)
        self.record = Row(RECORD, None, None, None, None, None, status, why)

    def _called(self, number: int, steps: int, what: str) -> str:
        length = f", {steps} steps" if self.with_steps else ""
        return f"seed {seed_of(self.seed, number)}{length}, {what}"


# Canaries. ``spread`` has the same norm on every tensor and the same size in all coordinates of a tensor: clipping by
# layer, by column or by coordinate lets more than the clipping norm of it through. Its signs are random.

HUGE = 100.0  # clipping norms in the least coordinate of a huge canary: clipping to any smaller norm shows
SMALL, BELOW, ABOVE, TINY = 0.2, 0.75, 1.2, 1e-3  # norms of other canaries, in clipping norms


def spread(like: Parameters, tensors: Sequence[int], seed: int) -> FloatArray:
    """Return a direction of norm 1 on these tensors."""
    rng = np.random.default_rng([seed, 1])
    direction = np.zeros(len(like.vector))
    for tensor in tensors:
        where = like.slices[tensor]
        size = where.stop - where.start
        direction[where] = rng.choice([-1.0, 1.0], size) / np.sqrt(size * len(tensors))
    return direction


def one_coordinate(like: Parameters, tensors: Sequence[int], seed: int) -> tuple[FloatArray, int]:
    """Return a direction of norm 1 on one coordinate, and the tensor of that coordinate."""
    rng = np.random.default_rng([seed, 2])
    tensor = int(rng.choice(np.asarray(tensors)))
    where = like.slices[tensor]
    direction = np.zeros(len(like.vector))
    direction[rng.integers(where.start, where.stop)] = rng.choice([-1.0, 1.0])
    return direction, tensor


def huge(direction: FloatArray, clip_norm: float) -> FloatArray:
    """Return a canary whose every coordinate is far above the clipping norm."""
    least = float(np.abs(direction[direction != 0.0]).min())
    return direction * (HUGE * clip_norm / least)


@dataclass(frozen=True, eq=False)
class Setting:
    """Values that all rows of a check use.

    ``error`` is the share of one row. ``seeded``: initial values follow the seed, and gradients with them.
    """

    declared: Declared
    trainings: Trainings
    error: float
    allowances: Allowances
    batch_size: float | None
    tensors: tuple[int, ...]
    seeded: bool = False

    @property
    def like(self) -> Parameters:
        """The form of the parameters."""
        return self.trainings.like

    @property
    def columns(self) -> IntArray:
        """The trained parameters."""
        return np.concatenate([np.arange(*self.like.slices[i].indices(len(self.like.vector))) for i in self.tensors])
