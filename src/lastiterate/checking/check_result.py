"""What a check found: rows, faults, and whether the training passed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, TypeAlias
from xml.etree import ElementTree

import numpy as np

from lastiterate.checking.declared import Foreign, Parameters, flatten, in_form, require_finite, require_same_form
from lastiterate.common.errors import TrainerFailed, guarded
from lastiterate.common.system import late
from lastiterate.common.types import FloatArray, JsonObject
from lastiterate.common.types import Row as PlainRow
from lastiterate.formatting import describe, printable, spell
from lastiterate.run import DPSGD

if TYPE_CHECKING:
    from altair import LayerChart, VConcatChart

# One thing that was measured: beside what the run declares, with an interval and where to look in the code.

Status = Literal["ok", "fault", "cannot tell", "not checked"]


@dataclass(frozen=True)
class Row:
    """A measurement.

    Attributes:
        name: what was measured.
        tensor: of which tensor; None: of all parameters together.
        measured: what was found; None where nothing could be.
        declared: what the run says.
        low: lower end of the interval of what was measured.
        high: its upper end.
        status: ``"ok"``, ``"fault"``, ``"cannot tell"`` or ``"not checked"``.
        advice: one sentence: what it means, and where to look in the code.
    """

    name: str
    tensor: str | None
    measured: float | None
    declared: float | None
    low: float | None
    high: float | None
    status: Status
    advice: str = ""

    def plain(self) -> PlainRow:
        """The row as JSON has it; infinity, which JSON lacks, is None."""
        return {
            "name": self.name,
            "tensor": self.tensor,
            **{each: _finite(getattr(self, each)) for each in ("measured", "declared", "low", "high")},
            "status": self.status,
            "advice": self.advice,
        }


def not_checked(name: str, why: str, tensor: str | None = None) -> Row:
    """A row that does not apply here."""
    return Row(name, tensor, None, None, None, None, "not checked", why)


def cannot_tell(name: str, declared: float | None, why: str, tensor: str | None = None) -> Row:
    """A row for which nothing was seen."""
    return Row(name, tensor, None, declared, None, None, "cannot tell", why)


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


_ORDER: tuple[Status, ...] = ("fault", "cannot tell", "ok", "not checked")


@dataclass(frozen=True, eq=False)
class CheckResult:
    """Is the training what its run says?

    Attributes:
        run: what was declared.
        rows: one for each measurement.
        models: how many models were trained.
        error: the probability that a correct training has any fault here.
        notes: what else was noticed, in sentences.
    """

    run: DPSGD
    rows: tuple[Row, ...]
    models: int
    error: float
    notes: tuple[str, ...] = ()

    @property
    def faults(self) -> tuple[Row, ...]:
        """The rows that are faults."""
        return tuple(row for row in self.rows if row.status == "fault")

    @property
    def verdict(self) -> Status:
        """A fault wins over what cannot be told; rows that were not checked do not count."""
        found = {row.status for row in self.rows}
        return next(status for status in _ORDER if status in found)

    @property
    def passed(self) -> bool:
        """Whether everything that was checked is as declared."""
        return self.verdict == "ok"

    @property
    def sentence(self) -> str:
        """What came out, in one sentence."""
        match self.verdict:
            case "fault":
                some = ", ".join(dict.fromkeys(row.name for row in self.faults))
                return f"The training is not what its run says: {some}."
            case "cannot tell":
                some = ", ".join(dict.fromkeys(row.name for row in self.rows if row.status == "cannot tell"))
                return f"It cannot be told whether the training is what its run says: {some}."
            case "ok":
                return "Nothing was found that is not as the run says."
        return "Nothing could be checked."

    @property
    def error_sentence(self) -> str:
        """What the error means."""
        return (
            f"{self.models} models. A correct training has a fault here with probability at most {spell(self.error)}, "
            "all rows together."
        )

    def to_dict(self) -> JsonObject:
        """The result as JSON has it."""
        return {
            "passed": self.passed,
            "verdict": self.verdict,
            "models": self.models,
            "error": self.error,
            "rows": [row.plain() for row in self.rows],
            "faults": [row.plain() for row in self.faults],
            "notes": list(self.notes),
        }

    def plot(self) -> LayerChart | VConcatChart:
        """Ratios with their intervals, an altair chart."""
        chart: LayerChart | VConcatChart = late("plot.check:check_chart")(self)
        return chart

    def __str__(self) -> str:
        header = ("", "tensor", "measured", "declared", "interval", "status")
        cells = [header, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(header))]
        lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in cells]
        told = [f"{row.name}: {row.advice}." for row in self.rows if row.advice and row.status != "not checked"]
        parts = [describe(self.run), "", *lines, "", *told, *self.notes, self.sentence, self.error_sentence]
        return "\n".join(line.rstrip() for line in parts)


def _cells(row: Row) -> tuple[str, ...]:
    number = spell_or_none
    interval = "" if row.low is None or row.high is None else f"{number(row.low)} to {number(row.high)}"
    return row.name, row.tensor or "", number(row.measured), number(row.declared), interval, row.status


def spell_or_none(value: float | None) -> str:
    """A number for people; nothing where there is none."""
    return "" if value is None else spell(value)


# A check as a JUnit file, which continuous integration shows: one test case a row.


def junit(result: CheckResult) -> bytes:
    """A fault is a failure; what cannot be told, or was not checked, is skipped, and says which of the two."""
    skipped = [row for row in result.rows if row.status in ("cannot tell", "not checked")]
    counts = {"tests": len(result.rows), "failures": len(result.faults), "errors": 0, "skipped": len(skipped)}
    suite = ElementTree.Element("testsuite", {"name": "lastiterate check", **{k: str(v) for k, v in counts.items()}})
    for row in result.rows:
        name = printable(f"{row.name}: {row.tensor}" if row.tensor else row.name)
        case = ElementTree.SubElement(suite, "testcase", {"classname": "lastiterate.check", "name": name})
        numbers = f"measured {row.measured}, declared {row.declared}, interval {row.low} to {row.high}"
        message = printable(f"{row.status}: {row.advice}")
        if row.status == "fault":
            ElementTree.SubElement(case, "failure", {"message": message}).text = numbers
        elif row.status != "ok":
            ElementTree.SubElement(case, "skipped", {"message": message})
    written: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return written


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
