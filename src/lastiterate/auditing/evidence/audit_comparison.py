"""Comparison of several audits: their epsilons side by side, and how their runs and data differ from the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lastiterate.auditing.evidence.audit_result import AuditResult
from lastiterate.compare_analyses import guarantee_of, run_fields
from lastiterate.formatting import Table, caveat_of, describe, per_cent, spell, spell_down, spell_exact, spell_up
from lastiterate.registry import ANALYSES, CONSISTENT, METHODS, OWN_COIN, THRESHOLDS
from lastiterate.run import DPSGD


@dataclass(frozen=True, eq=False)
class ComparedAudit:
    """One of several audits.

    Attributes:
        name: a unique name of the audit.
        differs: differences from the first audit: names of the run's fields, and "data". Empty: none.
    """

    name: str
    result: AuditResult
    differs: tuple[str, ...] = ()

    @property
    def validity(self) -> str:
        """The validity of the bounds, "fixed" or "anytime"."""
        return next(iter(self.result.estimates.values())).validity

    @property
    def label(self) -> str:
        """The name, with marks for an audit that differs and for "anytime" bounds."""
        return f"{self.name}{'*' if self.differs else ''}{' (anytime)' if self.validity == 'anytime' else ''}"


def compared(audits: Sequence[tuple[str, AuditResult, str | None]]) -> list[ComparedAudit]:
    """Compare audits with the first. Each is (name, result, fingerprint of the training problem or None if unknown)."""
    (_, first, known), *_ = audits
    found = []
    for name, result, problem in audits:
        own, others = _fields(result.run), _fields(first.run)
        fields = [field for field in dict.fromkeys([*others, *own]) if own.get(field) != others.get(field)]
        is_other = result.data != first.data or (None not in (problem, known) and problem != known)
        found.append(ComparedAudit(name, result, (*fields, *(["data"] if is_other else []))))
    return found


def methods_of(audits: Sequence[ComparedAudit]) -> list[str]:
    """Return all methods that at least one audit has estimates of."""
    return [method for method in METHODS if any(method in audit.result.estimates for audit in audits)]


def comparison_table(audits: Sequence[ComparedAudit]) -> Table:
    """Return the table of the audits, one row for each."""
    first, methods = audits[0].result, methods_of(audits)
    rows = [
        [
            audit.label,
            spell(audit.result.signal, 3),
            *(_epsilon(audit.result, method) for method in methods),
            _models(audit),
            f"{audit.result.seconds:,.0f}",
            audit.result.verdict,
        ]
        for audit in audits
    ]
    columns = [method.replace("-", "- ") for method in methods]
    header = ("audit", "signal", *columns, "models", "seconds", "verdict")
    title = f"{len(audits)} audits; epsilons at delta {spell_exact(first.delta)}"
    return Table(title, header, rows, set(range(1, len(header) - 1)), _notes(audits))


def _notes(audits: Sequence[ComparedAudit]) -> list[str]:
    first = audits[0]
    predicted = [
        f"{ANALYSES[name].label_of(first.result.run)} {spell_up(answer.value, 4)}"
        for name in ("last_iterate", guarantee_of(first.result.run))
        if (answer := first.result.predictions.get(name)) is not None and answer.value is not None
    ]
    notes = [f"{audit.name}: {audit.result.attack}." for audit in audits]
    notes += [
        f"{audit.name}: {audit.result.verdict}. {audit.result.reason}"
        for audit in audits
        if audit.result.verdict != CONSISTENT
    ]
    notes.append(
        f"{first.name} is of {first.result.data or 'your trainer'}: {describe(first.result.run)}. "
        f"Epsilon by analyses: {', '.join(predicted) or 'none'}."
    )
    notes += [f"* {difference(audit, first)}" for audit in audits if audit.differs]
    notes += trust(audits)
    return [*notes, caveat_of(*(audit.result.run for audit in audits))]


def difference(audit: ComparedAudit, first: ComparedAudit) -> str:
    """Return a sentence on the differences of an audit from the first."""
    own, others = _fields(audit.result.run), _fields(first.result.run)
    words = []
    for name in audit.differs:
        one, other = own.get(name), others.get(name)
        if name == "data":
            words.append(f"other data or another model ({audit.result.data or 'your trainer'})")
        elif isinstance(one, (int, float, str)) and isinstance(other, (int, float, str)):
            words.append(f"{name} {_told(one)} instead of {_told(other)}")
        else:
            words.append(f"another {name}")
    return f"{audit.name} is not comparable with {first.name}: {', '.join(words)}."


def trust(audits: Sequence[ComparedAudit]) -> list[str]:
    """Return sentences on the confidence and validity of the epsilons of several audits."""
    words = [
        f"Empirical epsilons are lower bounds, each with {per_cent(audits[0].result.confidence)} confidence by itself: "
        "the largest of several was chosen by looking, and has less."
    ]
    if any(audit.validity == "anytime" for audit in audits):
        words.append("Anytime: these bounds hold at every moment, and are a little lower for it.")
    found = [estimate for audit in audits for estimate in audit.result.estimates.values()]
    if any(METHODS[each.method].is_one_run for each in found):
        words.append(f"Epsilons of one run hold only if {OWN_COIN}.")
    if not all(THRESHOLDS[each.threshold_choice].is_valid for each in found):
        words.append("The threshold is the best of all, uncorrected for that choice: these are not valid bounds.")
    return words


def _epsilon(result: AuditResult, method: str) -> str:
    return spell_down(result.estimates[method].epsilon, 4) if method in result.estimates else "-"


def _models(audit: ComparedAudit) -> str:
    """Return the number of models a world, or of all canaries of one run, and the planned number if not reached."""
    result = audit.result
    done = len(result.scores_in)
    if any(METHODS[method].is_one_run for method in result.estimates):
        done += len(result.scores_out)
    unfinished = audit.validity == "fixed" and done < result.models
    return f"{done:,} of {result.models:,}" if unfinished else f"{done:,}"


def _fields(run: DPSGD) -> dict[str, object]:
    return {**run_fields(run), "clip_norm": run.clip_norm}


def _told(value: float | str) -> str:
    return value if isinstance(value, str) else spell(value, 6)
