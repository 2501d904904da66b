"""Audits side by side: what each found, and which of them are of another run, or of other data, than the first."""

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
        name: by which it is told from the others.
        differs: in what it is not like the first: names of a run's fields, and "data". Empty: in nothing.
    """

    name: str
    result: AuditResult
    differs: tuple[str, ...] = ()

    @property
    def validity(self) -> str:
        """For which numbers of models its bounds hold."""
        return next(iter(self.result.estimates.values())).validity

    @property
    def label(self) -> str:
        """The name, with a mark where it differs, and where its bounds hold at every moment."""
        return f"{self.name}{'*' if self.differs else ''}{' (anytime)' if self.validity == 'anytime' else ''}"


def compared(audits: Sequence[tuple[str, AuditResult, str | None]]) -> list[ComparedAudit]:
    """Audits by their names, each with the fingerprint of what was trained on, which is None where it is not known."""
    (_, first, known), *_ = audits
    found = []
    for name, result, problem in audits:
        own, others = _fields(result.run), _fields(first.run)
        fields = [field for field in dict.fromkeys([*others, *own]) if own.get(field) != others.get(field)]
        is_other = result.data != first.data or (None not in (problem, known) and problem != known)
        found.append(ComparedAudit(name, result, (*fields, *(["data"] if is_other else []))))
    return found


def methods_of(audits: Sequence[ComparedAudit]) -> list[str]:
    """All methods by which any of them was estimated."""
    return [method for method in METHODS if any(method in audit.result.estimates for audit in audits)]


def comparison_table(audits: Sequence[ComparedAudit]) -> Table:
    """One row an audit."""
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
    """In what an audit is not like the first, in a sentence."""
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
    """How far the epsilons of several audits may be trusted."""
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
    """A world, and of how many where that number was fixed and not reached; canaries of one run are all of them."""
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
