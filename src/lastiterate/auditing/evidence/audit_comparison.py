"""Comparison of several audits: their epsilons side by side, and the differences of each from the first audit."""

from collections.abc import Sequence
from dataclasses import dataclass

from lastiterate.auditing.evidence.audit_result import AuditResult, three_numbers
from lastiterate.compare_analyses import run_fields
from lastiterate.formatting import Table, caveat_of, describe, per_cent, spell, spell_down, spell_exact
from lastiterate.labels import CONSISTENT, METHODS, OWN_COIN, THRESHOLDS
from lastiterate.run import DPSGD


@dataclass(frozen=True, eq=False)
class ComparedAudit:
    """One of several audits. ``differs`` lists what differs from the first audit: fields of the run, or "data"."""

    name: str
    result: AuditResult
    differs: tuple[str, ...] = ()

    @property
    def validity(self) -> str:
        """The validity of the bounds, "fixed" or "anytime"."""
        return next(iter(self.result.estimates.values())).validity

    @property
    def label(self) -> str:
        """The name of the audit, with "*" if it differs from the first audit, and "(anytime)" for "anytime" bounds."""
        return f"{self.name}{'*' if self.differs else ''}{' (anytime)' if self.validity == 'anytime' else ''}"


def compared(audits: Sequence[tuple[str, AuditResult, str | None]]) -> list[ComparedAudit]:
    """Compare audits with the first. Each audit is (name, result, fingerprint of the training problem or None)."""
    (_, first, known), *_ = audits
    found = []
    for name, result, problem in audits:
        own, others = _fields(result.run), _fields(first.run)
        fields = [field for field in dict.fromkeys([*others, *own]) if own.get(field) != others.get(field)]
        is_other = result.data != first.data or (None not in (problem, known) and problem != known)
        found.append(ComparedAudit(name, result, (*fields, *(["data"] if is_other else []))))
    return found


def methods_of(audits: Sequence[ComparedAudit]) -> list[str]:
    """Return the methods that at least one of the audits used."""
    return [method for method in METHODS if any(method in audit.result.estimates for audit in audits)]


def comparison_table(audits: Sequence[ComparedAudit], *, details: bool = False) -> Table:
    """Return a table with one row for each audit. With ``details``, it has what each method found, and the signal."""
    first, methods, rows = audits[0].result, methods_of(audits) if details else [], []
    for audit in audits:
        result, found = audit.result, audit.result.estimates
        epsilons = (spell_down(found[method].epsilon, 3) if method in found else "-" for method in methods)
        more = (spell(result.signal, 3), f"{result.seconds:,.0f}") if details else ()
        numbers = (each.text for each in three_numbers(result))
        rows.append([audit.label, *numbers, *epsilons, *more, _models(audit), result.headline])
    families = [f"found: {METHODS[method].label}" for method in methods]
    more = ("signal", "seconds") if details else ()
    header = ("audit", "guaranteed", "predicted", "found", *families, *more, "models", "verdict")
    title = f"{len(audits)} audits; epsilons at delta {spell_exact(first.delta)}"
    return Table(title, header, rows, set(range(1, len(header) - 1)), _notes(audits, details=details))


def _notes(audits: Sequence[ComparedAudit], *, details: bool) -> list[str]:
    first = audits[0]
    notes = [f"{audit.name}: {audit.result.attack}." for audit in audits]
    notes += [
        f"{audit.name}: {audit.result.strength.words if audit.result.verdict == CONSISTENT else audit.result.reason}"
        for audit in audits
        if details or audit.result.verdict != CONSISTENT
    ]
    notes.append(f"{first.name} audits {first.result.data or 'your trainer'}: {describe(first.result.run)}.")
    notes += [f"* {difference(audit, first)}" for audit in audits if audit.differs]
    notes += trust(audits)
    return [*notes, caveat_of(*(audit.result.run for audit in audits))]


def difference(audit: ComparedAudit, first: ComparedAudit) -> str:
    """Return a sentence on the differences between an audit and the first audit."""
    own, others = _fields(audit.result.run), _fields(first.result.run)
    words = []
    for name in audit.differs:
        one, other = own.get(name), others.get(name)
        if name == "data":
            words.append(f"other data or another model ({audit.result.data or 'your trainer'})")
        elif isinstance(one, (int, float, str)) and isinstance(other, (int, float, str)):
            values = (each if isinstance(each, str) else spell(each, 6) for each in (one, other))
            words.append(f"{name} {' instead of '.join(values)}")
        else:
            words.append(f"another {name}")
    return f"{audit.name} is not comparable with {first.name}: {', '.join(words)}."


def trust(audits: Sequence[ComparedAudit]) -> list[str]:
    """Return sentences on the confidence and validity of the epsilons of several audits."""
    words = [
        f"Empirical epsilons are lower bounds, each with {per_cent(audits[0].result.confidence)} confidence. The "
        "largest of several bounds has less confidence, because it is chosen after the results are known."
    ]
    if any(audit.validity == "anytime" for audit in audits):
        words.append("Anytime: these bounds hold at every time during the audit, and are therefore a little lower.")
    found = [estimate for audit in audits for estimate in audit.result.estimates.values()]
    if any(METHODS[each.method].is_one_run for each in found):
        words.append(f"Epsilons from one run hold only if {OWN_COIN}.")
    if not all(THRESHOLDS[each.threshold_choice].is_valid for each in found):
        words.append(
            "The threshold is the best one for these scores, without a correction for this choice: the bounds "
            "are invalid."
        )
    return words


def _models(audit: ComparedAudit) -> str:
    result = audit.result
    done = len(result.scores_in)
    if any(METHODS[method].is_one_run for method in result.estimates):
        done += len(result.scores_out)
    unfinished = audit.validity == "fixed" and done < result.models
    return f"{done:,} of {result.models:,}" if unfinished else f"{done:,}"


def _fields(run: DPSGD) -> dict[str, object]:
    return {**run_fields(run), "clip_norm": run.clip_norm}
