"""A privacy card: what an audit says on one page, as plain values that people and programs read alike."""

from __future__ import annotations

import math
from dataclasses import asdict
from datetime import UTC, datetime

from lastiterate.answers import run_fields
from lastiterate.auditing.evidence.result import AuditResult
from lastiterate.auditing.stores.store import Store
from lastiterate.fields import Fields
from lastiterate.reporting import guaranteed, released_by, seen_by
from lastiterate.vocabulary import LAST_ITERATE, METHODS, THRESHOLDS, VALIDITIES, VERDICTS, kind_of_prediction
from lastiterate.wording import (
    ONE_TRAINING,
    describe,
    neighbours_of,
    per_cent,
    printable,
    spell_down,
    spell_up,
)

VERSION = 1  # of what a card says
_POWER = 0.8  # with which probability an audit shows what is called detectable
TERMS = {
    "epsilon": "How much better than guessing the best attack may be; 0 is no better, and each step of 1 multiplies "
    "the odds by 2.7.",
    "delta": "How far the probabilities that epsilon compares may differ beyond it; it should be far below one in the "
    "number of examples.",
    "canary": "An example that was made to be found: the audit trains with it and without it.",
    "world": "Trainings with the canary are one world, those without it the other; the attack tells them apart.",
}


def card_of(store: Store, result: AuditResult) -> Fields:
    """The card of what was found in this store. Values that do not exist are null, with the reason beside them."""
    run, record = result.run, store.record
    people = run.group_size > 1
    return {
        "card": "lastiterate privacy card",
        "version": VERSION,
        "trained": printable(result.data) or "a trainer of one's own",
        "run": run_fields(run),
        "run_words": describe(run),
        "released": released_by(run),
        "unit_of_privacy": f"a person with up to {run.group_size:,} examples" if people else "one example",
        "neighbours": run.neighbours,
        "neighbours_words": neighbours_of(run),
        "delta": result.delta,
        **_guaranteed(result),
        **_predicted(result),
        "found": [_found(result, method) for method in result.estimates],
        **_power(result),
        "attack": printable(result.attack),
        "models": {"in": len(result.scores_in), "out": len(result.scores_out), "planned": result.models},
        "verdict": result.verdict,
        "verdict_words": VERDICTS[result.verdict],
        "reason": printable(result.reason),
        "strength": asdict(result.strength),
        "caveats": [*(printable(each) for each in result.caveats), ONE_TRAINING],
        "audited": _text(record.setup.get("created")),
        "summarised": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": _versions(store),
        "platform": _text(record.setup.get("platform")),
        "seed": store.seed,
        "store": printable(store.path.name),
        "digest": f"sha256:{store.digest()}",
        "terms": dict(TERMS),
    }


def _guaranteed(result: AuditResult) -> Fields:
    name, found = guaranteed(result.run, result.delta)
    if found.value is None:
        return {"guaranteed": None, "guaranteed_reason": found.reason}
    return {
        "guaranteed": {
            "epsilon": found.value,
            "analysis": name,
            "words": f"epsilon {spell_up(found.value, 4)}, {seen_by(result.run, name)}",
        }
    }


def _predicted(result: AuditResult) -> Fields:
    answer = result.predictions["last_iterate"]
    if answer.value is None:
        return {"predicted": None, "predicted_reason": answer.reason}
    kind = kind_of_prediction(result.run)
    words = f"epsilon {spell_up(answer.value, 4)}, for {released_by(result.run)}; {kind}, not a guarantee"
    return {
        "predicted": {"epsilon": answer.value, "analysis": LAST_ITERATE.name, "is_guarantee": False, "words": words}
    }


def _found(result: AuditResult, method: str) -> Fields:
    each = result.estimates[method]
    valid = THRESHOLDS[each.threshold_choice].is_valid
    finite = math.isfinite(each.epsilon)
    value = spell_down(each.epsilon, 4) if finite else "infinite"
    says = f"epsilon at least {value}, with confidence {per_cent(each.confidence)}" if valid else f"epsilon {value}"
    fields: Fields = {
        "method": method,
        "epsilon": each.epsilon if finite else None,
        "confidence": each.confidence,
        "threshold": each.threshold_choice,
        "validity": each.validity,
        "validity_words": VALIDITIES[each.validity],
        "is_valid": valid,
        "words": f"{says} ({METHODS[method].label}: {METHODS[method].assumes})",
    }
    if not finite:
        fields["epsilon_reason"] = "infinite: these error rates are below what the family reaches even without noise"
    return fields


def _power(result: AuditResult) -> Fields:
    """What such an audit shows if training is exactly as described."""
    if not result.detectable:
        return {"power": None, "power_reason": "not known for this audit"}
    method, value = next(iter(result.detectable.items()))
    seen = {name: each if math.isfinite(each) else None for name, each in result.detectable.items()}
    value_words = spell_down(value, 3) if math.isfinite(value) else "any"
    words = (
        f"if training is correct, {per_cent(_POWER)} of perfect attacks find at least epsilon {value_words} "
        f"({METHODS[method].label})"
    )
    return {"power": {"probability": _POWER, "detectable": seen, "words": words}}


def _versions(store: Store) -> Fields:
    """Of the packages that trained, all that were used."""
    found: dict[str, list[str]] = {}
    for used in store.versions() or [store.record.setup.get("versions") or {}]:
        for name, version in used.items():
            known = found.setdefault(printable(str(name)), [])
            if printable(str(version)) not in known:
                known.append(printable(str(version)))
    return {name: ", ".join(each) for name, each in found.items()}


def _text(value: object) -> str | None:
    return printable(value) if isinstance(value, str) else None
