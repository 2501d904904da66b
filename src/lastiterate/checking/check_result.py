"""What a check found: rows, faults, and whether the training passed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from xml.etree import ElementTree

from lastiterate.common.system import late
from lastiterate.common.types import JsonObject
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
