"""What a check found: rows, faults, and whether the training passed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lastiterate.checking.row import Row, Status
from lastiterate.rows import Fields
from lastiterate.run import DPSGD
from lastiterate.wording import describe, spell

if TYPE_CHECKING:
    from lastiterate.plot.style import Picture

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

    def to_dict(self) -> Fields:
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

    def plot(self) -> Picture:
        """Ratios with their intervals, an altair chart."""
        from lastiterate.plot.check import check_chart

        return check_chart(self)

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
