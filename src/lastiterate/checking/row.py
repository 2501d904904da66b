"""One thing that was measured: beside what the run declares, with an interval and where to look in the code."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from lastiterate.rows import Row as PlainRow

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
