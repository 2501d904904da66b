"""The result of a check: rows, faults, a summary sentence, JSON and JUnit."""

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

Status = Literal["ok", "fault", "cannot tell", "not checked"]


@dataclass(frozen=True)
class Row:
    """A measurement beside its declared value.

    Attributes:
        name: what was measured.
        tensor: the tensor that was measured; None: all parameters together.
        measured: the measured value; None if there is none.
        declared: the declared value.
        low: lower end of the interval of the measured value.
        high: upper end of the interval.
        status: ``"ok"``, ``"fault"``, ``"cannot tell"`` or ``"not checked"``.
        advice: one sentence: what the row means, and where to look in the code.
        smallest_fault: the smallest fault that the row would have found, with the probability of ``Allowances.power``.
        needs: what it takes to decide the row, such as "56 models"; empty if the row is decided.
    """

    name: str
    tensor: str | None
    measured: float | None
    declared: float | None
    low: float | None
    high: float | None
    status: Status
    advice: str = ""
    smallest_fault: str = ""
    needs: str = ""

    @property
    def title(self) -> str:
        """The name, with the tensor if there is one."""
        return f"{self.name} of {self.tensor}" if self.tensor else self.name

    def plain(self) -> PlainRow:
        """Return the row for JSON. Infinity, which JSON lacks, is None."""
        return {
            "name": self.name,
            "tensor": self.tensor,
            **{each: _finite(getattr(self, each)) for each in ("measured", "declared", "low", "high")},
            "status": self.status,
            "smallest_fault": self.smallest_fault or None,
            "needs": self.needs or None,
            "advice": self.advice,
        }


def judged(
    name: str,
    numbers: tuple[float | None, float | None, float | None, float | None],
    is_fault: bool,
    advice: str,
    smallest_fault: str = "",
    tensor: str | None = None,
) -> Row:
    """Return a fault with its advice, or a row that is ok. ``numbers`` are measured, declared, low and high."""
    return Row(name, tensor, *numbers, "fault" if is_fault else "ok", advice if is_fault else "", smallest_fault)


def not_checked(name: str, why: str, tensor: str | None = None) -> Row:
    """Return a row that does not apply."""
    return Row(name, tensor, None, None, None, None, "not checked", why)


def cannot_tell(name: str, declared: float | None, why: str, needs: str = "") -> Row:
    """Return a row without a measurement."""
    return Row(name, None, None, declared, None, None, "cannot tell", why, "", needs)


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


_ORDER: tuple[Status, ...] = ("fault", "cannot tell", "ok", "not checked")


@dataclass(frozen=True, eq=False)
class CheckResult:
    """The measured training beside its declared run.

    Attributes:
        run: the declared run.
        rows: one for each measurement.
        models: number of trained models of the declared length, or up to two steps shorter.
        error: probability that a correct training has any fault here.
        notes: further observations, in sentences.
        short_models: number of trained models of three steps or fewer.
    """

    run: DPSGD
    rows: tuple[Row, ...]
    models: int
    error: float
    notes: tuple[str, ...] = ()
    short_models: int = 0

    @property
    def faults(self) -> tuple[Row, ...]:
        """The rows that are faults."""
        return self._of("fault")

    def _of(self, status: Status) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.status == status)

    @property
    def verdict(self) -> Status:
        """The worst status. A fault outweighs undecided rows, and rows that were not checked do not count."""
        found = {row.status for row in self.rows}
        return next(status for status in _ORDER if status in found)

    @property
    def passed(self) -> bool:
        """True if every row that was checked is ok."""
        return self.verdict == "ok"

    @property
    def sentence(self) -> str:
        """The summary in one sentence."""
        passed, faults, open_ = self._of("ok"), self.faults, self._of("cannot tell")
        undecided = ", ".join(f"{row.title} (needs {row.needs})" if row.needs else row.title for row in open_)
        if faults:
            some = ", ".join(dict.fromkeys(row.title for row in faults))
            return f"{len(faults)} of {len(passed) + len(faults) + len(open_)} checks found a fault: {some}."
        if open_:
            return f"{len(passed)} passed, {len(open_)} could not be decided: {undecided}."
        return f"All {len(passed)} checks passed." if passed else "Nothing could be checked."

    @property
    def error_sentence(self) -> str:
        """The meaning of the error."""
        short = f" and {self.short_models} of at most three steps" if self.short_models else ""
        return (
            f"{self.models} models{short}. A correct training has a fault here with probability at most "
            f"{spell(self.error)}, all rows together."
        )

    def to_dict(self) -> JsonObject:
        """Return the result for JSON."""
        return {
            "passed": self.passed,
            "verdict": self.verdict,
            "summary": self.sentence,
            "models": self.models,
            "short_models": self.short_models,
            "error": self.error,
            "rows": [row.plain() for row in self.rows],
            "faults": [row.plain() for row in self.faults],
            "notes": list(self.notes),
        }

    def plot(self) -> LayerChart | VConcatChart:
        """Return an altair chart of the ratios with their intervals."""
        chart: LayerChart | VConcatChart = late("plot.check:check_chart")(self)
        return chart

    def __str__(self) -> str:
        header = ("", "tensor", "measured", "declared", "interval", "would have found", "status")
        cells = [header, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(header))]
        lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in cells]
        told = [f"{row.title}: {row.advice}." for row in self.rows if row.advice and row.status != "not checked"]
        parts = [describe(self.run), "", *lines, "", *told, *self.notes, self.sentence, self.error_sentence]
        return "\n".join(line.rstrip() for line in parts)


def _cells(row: Row) -> tuple[str, ...]:
    number = spell_or_none
    interval = "" if row.low is None or row.high is None else f"{number(row.low)} to {number(row.high)}"
    numbers = number(row.measured), number(row.declared), interval
    return row.name, row.tensor or "", *numbers, row.smallest_fault, row.status


def spell_or_none(value: float | None) -> str:
    """Return a number for people; an empty string for None."""
    return "" if value is None else spell(value)


def junit(result: CheckResult) -> bytes:
    """Return a JUnit file with one test case a row. A fault is a failure; undecided and unchecked rows are skipped."""
    skipped = [row for row in result.rows if row.status in ("cannot tell", "not checked")]
    counts = {"tests": len(result.rows), "failures": len(result.faults), "errors": 0, "skipped": len(skipped)}
    suite = ElementTree.Element("testsuite", {"name": "lastiterate check", **{k: str(v) for k, v in counts.items()}})
    for row in result.rows:
        name = printable(f"{row.name}: {row.tensor}" if row.tensor else row.name)
        case = ElementTree.SubElement(suite, "testcase", {"classname": "lastiterate.check", "name": name})
        numbers = f"measured {row.measured}, declared {row.declared}, interval {row.low} to {row.high}"
        found = f"would have found: {row.smallest_fault}" if row.smallest_fault else ""
        message = printable(f"{row.status}: {row.advice}")
        if row.status == "fault":
            ElementTree.SubElement(case, "failure", {"message": message}).text = numbers
        elif row.status != "ok":
            ElementTree.SubElement(case, "skipped", {"message": message})
        if found:
            ElementTree.SubElement(case, "system-out").text = printable(found)
    written: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return written
