"""What all measurements are made of: the run, models without a canary, and the means to train more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import TypeAlias

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
from lastiterate.checking.check_result import Row, Status, not_checked
from lastiterate.checking.declared import (
    Declared,
    Foreign,
    Parameters,
    flatten,
    in_form,
    require_finite,
    require_same_form,
)
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
from lastiterate.common.errors import TrainerFailed, guarded
from lastiterate.common.types import FloatArray, IntArray
from lastiterate.run import DPSGD

# Which models are trained: some without a canary, one of them twice, and some with canaries, at the same seeds.
#
# If the canary is in no batch at the first seeds, more seeds are tried before canaries of other shapes are: nothing
# can be learned of a canary that took no part.

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
