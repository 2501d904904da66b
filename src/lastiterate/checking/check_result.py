"""The result of a check: rows, faults, a summary sentence, JSON and JUnit."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias
from xml.etree import ElementTree

from lastiterate.common.system import late
from lastiterate.common.types import JsonObject
from lastiterate.common.types import Row as PlainRow
from lastiterate.formatting import Table, describe, printable, spell
from lastiterate.run import DPSGD

if TYPE_CHECKING:
    from altair import LayerChart, VConcatChart

Status = Literal["ok", "fault", "cannot tell", "not checked"]
Numbers: TypeAlias = tuple[float | None, float | None, float | None, float | None]


@dataclass(frozen=True)
class Row:
    """A measurement beside its declared value.

    Attributes:
        name: what was measured.
        tensor: the tensor that was measured; None: all parameters together.
        measured: the measured value, with its interval from ``low`` to ``high``; None if there is none.
        declared: the declared value.
        status: ``"ok"``, ``"fault"``, ``"cannot tell"`` or ``"not checked"``.
        advice: one sentence on the meaning of the row, and on the place to look in the code.
        smallest_fault: the smallest fault that the row would have found, with the probability of ``Allowances.power``.
        needs: what would decide the row, such as "56 models". Empty if the row is decided.
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

    def now(self, status: Status, advice: str, needs: str = "") -> Row:
        """Return the row with another status. What a row needs is only told if it cannot be decided."""
        return replace(self, status=status, advice=advice, needs=needs)

    def plain(self) -> PlainRow:
        """Return the row for JSON, without infinity."""
        fields = {**asdict(self), "smallest_fault": self.smallest_fault or None, "needs": self.needs or None}
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in fields.items()}


def judged(name: str, numbers: Numbers, is_fault: bool, why: str, finds: str = "", tensor: str | None = None) -> Row:
    """Return a fault with its advice, or a row that is ok. ``numbers`` are measured, declared, low and high."""
    return Row(name, tensor, *numbers, "fault" if is_fault else "ok", why if is_fault else "", finds)


def not_checked(name: str, why: str, tensor: str | None = None) -> Row:
    """Return a row that does not apply."""
    return Row(name, tensor, None, None, None, None, "not checked", why)


def cannot_tell(name: str, declared: float | None, why: str, needs: str = "") -> Row:
    """Return a row without a measurement."""
    return Row(name, None, None, declared, None, None, "cannot tell", why, "", needs)


_ORDER: tuple[Status, ...] = ("fault", "cannot tell", "ok", "not checked")


@dataclass(frozen=True, eq=False)
class CheckResult:
    """The measured training beside its declared run.

    Attributes:
        run: the declared run.
        rows: one for each measurement.
        models: number of trained models with all steps, or with up to two steps less.
        error: probability that a correct training has any fault here.
        notes: further observations, in sentences.
        short_models: number of models with fewer steps: one, two, three, or one epoch.
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
        models = f"{self.models} models{f' and {self.short_models} short ones' if self.short_models else ''}"
        return f"{models}. For a correct training, the probability of any fault here is at most {spell(self.error)}."

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
        return late("plot.check:check_chart")(self)  # type: ignore[no-any-return]

    def table(self, title: str) -> Table:
        """Return the rows, the advice on rows that are not ok, and the summary."""
        cells, told = list[list[str]](), dict[tuple[str, str], list[str]]()
        for row in self.rows:
            written = ("" if value is None else spell(value, 3) for value in (row.measured, row.declared))
            cells.append([row.title, *written, row.smallest_fault, row.status])
        for row in (*self.faults, *self._of("cannot tell"), *self._of("not checked")):
            told.setdefault((row.status.capitalize(), row.advice), []).append(row.title)
        notes = [f"{status}: {', '.join(dict.fromkeys(titles))}: {why}." for (status, why), titles in told.items()]
        header = ("what", "measured", "declared", "would have found", "status")
        return Table(title, header, cells, {1, 2}, [*notes, *self.notes, self.sentence, self.error_sentence])

    def __str__(self) -> str:
        return str(self.table(describe(self.run)))


def junit(result: CheckResult) -> bytes:
    """Return a JUnit file with one test case a row. A fault is a failure; undecided and unchecked rows are skipped."""
    skipped = str(sum(row.status in ("cannot tell", "not checked") for row in result.rows))
    counts = {"tests": str(len(result.rows)), "failures": str(len(result.faults)), "errors": "0", "skipped": skipped}
    suite = ElementTree.Element("testsuite", {"name": "lastiterate check", **counts})
    for row in result.rows:
        name = printable(f"{row.name}: {row.tensor}" if row.tensor else row.name)
        case = ElementTree.SubElement(suite, "testcase", {"classname": "lastiterate.check", "name": name})
        if row.status != "ok":
            kind = "failure" if row.status == "fault" else "skipped"
            part = ElementTree.SubElement(case, kind, {"message": printable(f"{row.status}: {row.advice}")})
            part.text = f"measured {row.measured}, declared {row.declared}, interval {row.low} to {row.high}"
        if row.smallest_fault:
            ElementTree.SubElement(case, "system-out").text = printable(f"would have found: {row.smallest_fault}")
    written: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return written
