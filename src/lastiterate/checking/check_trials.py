"""Which models are trained: some without a canary, one of them twice, and some with canaries, at the same seeds.

If the canary is in no batch at the first seeds, more seeds are tried before canaries of other shapes are: nothing can
be learned of a canary that took no part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TypeAlias

import numpy as np

from lastiterate.checking.check_result import Row, Status
from lastiterate.checking.parameters import Foreign, Parameters, flatten, in_form, require_finite, require_same_form
from lastiterate.common.errors import TrainerFailed, guarded
from lastiterate.common.types import FloatArray
from lastiterate.run import DPSGD

LEAST_MODELS, MOST_MODELS = 8, 1000
OTHER_SHAPES = 5  # canaries beside the first one: two small ones, one coordinate, one tensor, one less loud
_FEWEST = 3  # models beside those shapes and the one that is trained twice: a variance takes two, a canary one
PARTICIPATION_SHARES = 8  # of the error: counts need more of it than other measurements
ROWS = 30  # shares of the error, beside one for each tensor: both rows of participation have theirs

RECORD = "the trainer's own record"

Trainer: TypeAlias = Callable[[int, Foreign], Foreign]


@dataclass(frozen=True)
class Plan:
    """How many models are trained: ``plain`` ones, ``pairs`` of seeds with a canary, ``shapes`` of other canaries."""

    models: int
    plain: int
    pairs: int
    shapes: int


def plan(models: int, *, with_shapes: bool) -> Plan:
    """Half of the models measure the noise; to as many of their seeds the canary is put."""
    shapes = min(OTHER_SHAPES, models - 1 - _FEWEST) if with_shapes else 0
    left = models - 1 - shapes
    pairs = max(1, left // 2)
    return Plan(models, left - pairs, pairs, shapes)


def models_for(pairs: int) -> int:
    """How many models it takes to put a canary to so many seeds."""
    return 2 * pairs + 1 + OTHER_SHAPES


def seed_of(seed: int, number: int) -> int:
    """Seeds in [0, 2^31) that have nothing in common, as a trainer may well use the next one for something else."""
    return int.from_bytes(blake2b(f"check {seed} {number}".encode(), digest_size=4).digest(), "little") >> 1


@dataclass
class Trainings:
    """Trains, once for each seed and canary, and remembers.

    Attributes:
        run: what is declared, for trainers that say what they did.
        train: the user's trainer.
        seed: of the seeds that it is given.
        told: is called after each training.
        first: parameters of the first training, whose form all others have.
        plain: parameters without a canary, by number.
        trained: how many models were.
        complaint: what a trainer's own record of its training says against the run; None: it keeps none.
    """

    run: DPSGD
    train: Trainer
    seed: int
    told: Callable[[], None]
    first: Parameters | None = None
    plain: dict[int, FloatArray] = field(default_factory=dict)
    trained: int = 0
    complaint: Row | None = None

    def without(self, number: int) -> FloatArray:
        """The parameters of a model without a canary, which must be finite."""
        if number not in self.plain:
            self.plain[number] = self.again(number)
        return self.plain[number]

    def again(self, number: int) -> FloatArray:
        """The same, trained anew."""
        found = self._train(number, False, "without a canary")
        try:
            require_finite(found)
        except ValueError as error:
            raise TrainerFailed(error, self._called(number, "without a canary")) from error
        return found.vector

    def effect(self, number: int, canary: FloatArray | None, what: str) -> FloatArray | None:
        """What a canary did to the parameters; None: they are not finite with it. Without one: an example of theirs."""
        before = self.without(number)
        assert self.first is not None
        given = True if canary is None else in_form(canary, self.first)
        after = self._train(number, given, what).vector
        return after - before if np.isfinite(after).all() else None

    def _train(self, number: int, canary: Foreign, what: str) -> Parameters:
        seed = seed_of(self.seed, number)
        result = guarded(lambda: self.train(seed, canary), self._called(number, what))
        try:
            found = flatten(result)
            self.first = self.first or found
            require_same_form(found, self.first)
        except ValueError as error:
            raise TrainerFailed(error, self._called(number, what)) from error
        self.trained += 1
        self.told()
        self._compare(found)
        return found

    def _compare(self, found: Parameters) -> None:
        """What a trainer says about its training against the run; the first that does not fit is a fault."""
        if found.trained is None or (self.complaint is not None and self.complaint.status == "fault"):
            return
        status: Status = "ok"
        why = ""
        try:
            found.trained.check(self.run)
        except ValueError as error:
            status, why = "fault", str(error)
        self.complaint = Row(RECORD, None, None, None, None, None, status, why)

    def _called(self, number: int, what: str) -> str:
        return f"seed {seed_of(self.seed, number)}, {what}"


# Gradients that a training is given as one more example's: shapes that tell one way to clip from another.
#
# ``spread`` is on all tensors, with the same norm on each, and on all coordinates of a tensor alike, with random
# signs: whoever clips by layer, column or coordinate lets more than the clipping norm through. The signs are random
# so that what else happens in a training has nothing to do with them.

SMALL, LARGER = 0.2, 0.75  # norms of canaries that must not be clipped, in clipping norms
ABOVE = 1.4  # the norm of one that must be, in clipping norms: near, to see a norm that is taken for its square
LOUD = 100.0  # clipping norms in the least coordinate of another one that must be


def spread(like: Parameters, tensors: Sequence[int], seed: int) -> FloatArray:
    """A vector of norm 1 on these tensors: of equal norm on each, of equal size in all coordinates of one."""
    rng = np.random.default_rng([seed, 1])
    direction = np.zeros(len(like.vector))
    for tensor in tensors:
        where = like.slices[tensor]
        size = where.stop - where.start
        direction[where] = rng.choice([-1.0, 1.0], size) / np.sqrt(size * len(tensors))
    return direction


def one_coordinate(like: Parameters, tensors: Sequence[int], seed: int) -> tuple[FloatArray, int]:
    """A vector of norm 1 on one coordinate of one of these tensors, and that tensor."""
    rng = np.random.default_rng([seed, 2])
    tensor = int(rng.choice(np.asarray(tensors)))
    where = like.slices[tensor]
    direction = np.zeros(len(like.vector))
    direction[rng.integers(where.start, where.stop)] = rng.choice([-1.0, 1.0])
    return direction, tensor


def loud(direction: FloatArray, clip_norm: float) -> FloatArray:
    """A canary along a direction, so large that every one of its coordinates is above the clipping norm."""
    least = float(np.abs(direction[direction != 0.0]).min())
    return direction * (LOUD * clip_norm / least)
