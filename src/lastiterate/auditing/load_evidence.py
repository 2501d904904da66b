"""Results and exports of a store (evidence, privacy card, tables of trials), and scores from a CSV file."""

from __future__ import annotations

import csv
import io
import math
import re
from array import array
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path

import numpy as np

from lastiterate.auditing.design import Paired
from lastiterate.auditing.evidence.audit_result import AuditResult, advice_on, three_numbers
from lastiterate.auditing.evidence.estimates import Question
from lastiterate.auditing.evidence.report import Evidence, report
from lastiterate.auditing.identity import fingerprint
from lastiterate.auditing.stores.audit_record import ABOUT, Crafted
from lastiterate.auditing.stores.store import MemoryStore, Store
from lastiterate.citation import guaranteed, released_by, risk_sentences, risks_of, seen_by
from lastiterate.common.atomic_write import check_writable, is_same_file, write_whole
from lastiterate.common.errors import not_installed
from lastiterate.common.types import Fields, FloatArray
from lastiterate.common.validation import shown, written_number
from lastiterate.compare_analyses import run_fields
from lastiterate.data.files import LINE, PARSED, BadFile, Location, as_path, find, most_bytes, too_large
from lastiterate.formatting import ONE_TRAINING, describe, neighbours_of, per_cent, printable, spell_down, spell_up
from lastiterate.labels import LAST_ITERATE, METHODS, THRESHOLDS, VALIDITIES, VERDICTS, VIOLATION, kind_of_prediction


def evidence_in(store: MemoryStore) -> Evidence:
    """Return the evidence of the audit in a store."""
    record, held = store.record, store.crafted
    if held is None:
        what = "its audit was stopped before the first model"
        raise ValueError(f"the store {str(store.path)!r} has no trial yet: {what}")
    crafted, trials = Crafted.of_fields(held), store.scores()
    # Count the trials before the first gap, and only models that are scored in both worlds.
    there = (trials.models == np.arange(len(trials)) // 2) & (trials.present == (np.arange(len(trials)) % 2 == 0))
    gaps = np.flatnonzero(~there)
    prefix = 2 * ((int(gaps[0]) if gaps.size else len(trials)) // 2)
    return Evidence(
        run=record.run,
        design=record.design,
        expected=crafted.expected,
        words=crafted.words,
        data=record.data,
        scores=trials.scores,
        present=trials.present,
        prefix=prefix if isinstance(record.design, Paired) else 0,
        quality=record.quality,
        qualities=trials.qualities,
        quality_before=crafted.quality_before,
        seconds=store.seconds,
        store=store.path,
        second_moment=crafted.second_moment,
        about=record.about,
    )


def read(path: str | Path, question: Question = Question()) -> AuditResult:  # noqa: B008 - it is frozen
    """Return the result of the audit in a store. The audit may still be running."""
    with Store.read(path) as store:
        return report(evidence_in(store), question)


def read_with_problem(path: Path, question: Question) -> tuple[AuditResult, str | None]:
    """Return the result and the fingerprint of the problem. Error messages name the store."""
    with Store.read(path) as store:
        try:
            problem = store.identity.get("problem")
            return report(evidence_in(store), question), None if problem == fingerprint(None) else problem
        except ValueError as refusal:
            if str(path) in str(refusal):
                raise
            raise ValueError(f"{refusal} (the store {str(path)!r})") from None


# Privacy card: the result of an audit on one page, as JSON values.

VERSION = 1  # version of the card's format
_POWER = 0.8  # power at which an epsilon counts as detectable
TERMS = {
    "epsilon": "How much better than guessing the best attack may be. At 0 it only guesses; each increase by 1 "
    "multiplies the odds by 2.7.",
    "delta": "The probability by which the bound with epsilon may fail. It should be far below 1 / (number of "
    "examples).",
    "canary": "An example that is made to be detected: the audit trains models with it and without it.",
    "world": (
        "Models trained with the canary are one world, models trained without it the other. The attack tells "
        "them apart."
    ),
}


def card_of(store: Store, result: AuditResult) -> Fields:
    """Return the privacy card of a store. A missing value is null, and the card states the reason."""
    run, record, seed = result.run, store.record, store.identity.get("seed")
    people = run.group_size > 1
    told = {name: record.setup.get(name) for name in ("created", "platform")}
    setup = {name: printable(value) if isinstance(value, str) else None for name, value in told.items()}
    return {
        "card": "lastiterate privacy card",
        "version": VERSION,
        **{name: getattr(result, name) for name in ABOUT},
        "trained": printable(result.data) or "a user's trainer",
        "run": run_fields(run),
        "run_words": describe(run),
        "released": released_by(run),
        "unit_of_privacy": f"a person with up to {run.group_size:,} examples" if people else "one example",
        "neighbours": run.neighbours,
        "neighbours_words": neighbours_of(run),
        "delta": result.delta,
        **_guaranteed(result),
        **_predicted(result),
        "risk": {"words": list(risk_words(result)), "at": [each.fields() for each in risks_of(run)]},
        "found": [_found(result, method) for method in result.estimates],
        **_power(result),
        "attack": printable(result.attack),
        "models": {"in": len(result.scores_in), "out": len(result.scores_out), "planned": result.models},
        "verdict": result.verdict,
        "headline": result.headline,
        "advice": advice_on(result),
        "numbers": [asdict(each) for each in three_numbers(result)],
        "verdict_words": VERDICTS[result.verdict],
        "reason": printable(result.reason),
        "strength": asdict(result.strength),
        "caveats": [*(printable(each) for each in result.caveats), ONE_TRAINING],
        "audited": setup["created"],
        "summarised": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": _versions(store),
        "platform": setup["platform"],
        "seed": seed if isinstance(seed, int) else None,
        "store": printable(store.path.name),
        "digest": f"sha256:{store.digest()}",
        "terms": dict(TERMS),
    }


def risk_words(result: AuditResult) -> tuple[str, ...]:
    """Return sentences on the risk of a person: what the guarantee limits, unless the audit refuted the claim."""
    refuted = ("This audit refuted the claim. No limit on what an attacker can learn about a person is known.",)
    return refuted if result.verdict == VIOLATION else risk_sentences(result.run)


def _guaranteed(result: AuditResult) -> Fields:
    name, found = guaranteed(result.run, result.delta)
    if found.value is None:
        return {"guaranteed": None, "guaranteed_reason": found.reason}
    words = f"epsilon {spell_up(found.value, 3)}, {seen_by(result.run, name)}"
    return {"guaranteed": {"epsilon": found.value, "analysis": name, "words": words}}


def _predicted(result: AuditResult) -> Fields:
    answer = result.predictions["last_iterate"]
    if answer.value is None:
        return {"predicted": None, "predicted_reason": answer.reason}
    kind = kind_of_prediction(result.run)
    words = f"epsilon {spell_up(answer.value, 3)}, for {released_by(result.run)}; {kind}, not a guarantee"
    fields = {"epsilon": answer.value, "analysis": LAST_ITERATE.name, "is_guarantee": False, "words": words}
    return {"predicted": fields}


def _found(result: AuditResult, method: str) -> Fields:
    each = result.estimates[method]
    valid = THRESHOLDS[each.threshold_choice].is_valid
    finite = math.isfinite(each.epsilon)
    value = spell_down(each.epsilon, 3) if finite else "infinite"
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
        fields["epsilon_reason"] = "infinite: even without noise, the family has larger error rates than these"
    return fields


def _power(result: AuditResult) -> Fields:
    if not result.detectable:
        return {"power": None, "power_reason": "not known for this audit"}
    method, value = next(iter(result.detectable.items()))
    seen = {name: each if math.isfinite(each) else None for name, each in result.detectable.items()}
    found = f"epsilon {spell_down(value, 3) if math.isfinite(value) else 'any'} ({METHODS[method].label})"
    words = f"if training is correct, {per_cent(_POWER)} of audits by a perfect attack find at least {found}"
    return {"power": {"probability": _POWER, "detectable": seen, "words": words}}


def _versions(store: Store) -> Fields:
    found: dict[str, list[str]] = {}
    for used in store.versions() or [store.record.setup.get("versions") or {}]:
        for name, version in used.items():
            known = found.setdefault(printable(str(name)), [])
            if printable(str(version)) not in known:
                known.append(printable(str(version)))
    return {name: ", ".join(each) for name, each in found.items()}


# Export: trials as a CSV or Parquet table. No incomplete file is ever left.

FORMATS = (".csv", ".parquet")


def export(store: Store, path: Location) -> None:
    """Write the trials to a CSV or Parquet file, depending on the suffix. Numbers are not rounded.

    ``lastiterate estimate`` reads the CSV. If accuracy was not measured, its field is empty, or null in Parquet.
    """
    target = check_target(path)
    if is_same_file(target, store.path):
        raise ValueError(f"the file of the export must differ from the store, got {shown(str(target))}")
    quality, trials = store.record.quality, store.scores()
    columns = ("model", "world", "score", quality.name if quality else "accuracy", "seconds")
    if target.suffix.lower() == ".parquet":
        pyarrow, parquet, buffer = import_module("pyarrow"), import_module("pyarrow.parquet"), io.BytesIO()
        qualities = pyarrow.array(trials.qualities, from_pandas=True)  # NaN becomes null
        values = (trials.models, trials.worlds, trials.scores, qualities, trials.seconds)
        parquet.write_table(pyarrow.table(dict(zip(columns, values, strict=True))), buffer)
        content = buffer.getvalue()
    else:
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        known = ("" if math.isnan(quality) else quality for quality in trials.qualities.tolist())
        numbers = (trials.scores.tolist(), known, trials.seconds.tolist())  # csv writes a float's repr
        writer.writerows(zip(trials.models.tolist(), trials.worlds, *numbers, strict=True))
        content = text.getvalue().encode()
    write_whole(target, content, "export")


def check_target(path: Location) -> Path:
    """Return the path of an export. Raise if the file cannot be written."""
    target = as_path(path)
    if target.suffix.lower() not in FORMATS:
        raise ValueError(f"the file of the export must end in {' or '.join(FORMATS)}, got {shown(str(target))}")
    if target.suffix.lower() == ".parquet" and find_spec("pyarrow") is None:
        raise ValueError(not_installed("Parquet", "pyarrow", "parquet"))
    check_writable(target, "export")
    return target


# Scores from a CSV file: each row has the world and the score of a model, or of a canary in a one-run audit.

_COINS = ("coin", "canary")  # optional columns that identify a canary in a one-run file
_LONGEST_SHOWN = 100  # largest number of characters of a wrong value in an error message


def read_scores(path: Path, one_run: bool = False) -> tuple[FloatArray, FloatArray]:
    """Return the scores of the worlds "in" and "out" from a CSV file. Error messages name the line.

    With ``one_run``, each row is a canary, and a column ``coin`` or ``canary`` must not repeat a value.
    """
    worlds = {"in": array("d"), "out": array("d")}
    _check_size(path)
    if (plain := _read_plain(path, one_run)) is not None:
        return plain
    rows = _rows(path)
    header = next(rows)[1]
    if not {"world", "score"} <= set(header):
        got = _shortened(", ".join(header)) if any(header) else "none"
        raise ValueError(f"{str(path)!r} must have the columns world and score in its first line, got {got}")
    world, score = header.index("world"), header.index("score")
    if not one_run and "coin" in header:
        what = "so its rows are canaries of one run, which are not independent models: choose a one-run method"
        raise ValueError(f"{str(path)!r} has a column coin, {what}")
    coins: dict[str, dict[str, int]] = {name: {} for name in _COINS if one_run and name in header}
    for line, row in rows:
        where = f"{path.name} line {line}"
        _add(worlds, row, world, score, where)
        for name, used in coins.items():
            _toss(used, name, row[header.index(name) :][:1], where, line)
    for name, scores in worlds.items():
        if not scores:
            raise ValueError(f"{str(path)!r} must hold scores of both worlds, in and out, but has none of world {name}")
    return np.array(worlds["in"]), np.array(worlds["out"])


def read_examples(path: Path) -> tuple[tuple[str, ...], FloatArray, FloatArray]:
    """Return names of features, scores and features from a CSV file. Each column but ``score`` is a feature."""
    _check_size(path)
    rows = _rows(path)
    header = next(rows)[1]
    if "score" not in header or len(header) < 2 or len(set(header)) < len(header) or not all(header):
        what = "a column score and at least one column of features in its first line, each with its own name"
        raise ValueError(f"{str(path)!r} must have {what}, got {_shortened(', '.join(header)) or 'none'}")
    values: list[float] = []
    for line, row in rows:
        found = [value for text in row if (value := written_number(text)) is not None]
        if len(found) < len(row) or len(row) != len(header):
            what = f"{len(header)} finite numbers in plain digits (a category is a column of 0 and 1)"
            raise ValueError(f"{path.name} line {line} must have {what}, got {_shortened(','.join(row))!r}")
        values += found
    table, score = np.array(values).reshape(-1, len(header)), header.index("score")
    return tuple(header[:score] + header[score + 1 :]), table[:, score], np.delete(table, score, axis=1)


def _check_size(path: Path) -> None:
    size = find(path, "file").stat().st_size
    if size > most_bytes(PARSED):
        raise too_large(f"{str(path)!r} must have", PARSED, f"{size:,}")


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the header of a CSV file, and then each row that is not empty, with its line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(_lines(path, file))
            yield 1, [name.strip() for name in next(rows, [])]
            for row in rows:
                if row:
                    yield rows.line_num, row
    except UnicodeDecodeError:
        raise BadFile(f"{str(path)!r} must be a CSV file in UTF-8") from None
    except csv.Error as error:
        raise BadFile(f"{str(path)!r} must be a CSV file, but: {error}") from None


_NUMBER = rb"[+-]?(?:[0-9]{1,400}+\.?[0-9]{0,400}+|\.[0-9]{1,400}+)(?:[eE][+-]?[0-9]{1,9}+)?"
_PLAIN_CELLS = {"world": rb"(?:in|out)", "score": _NUMBER}
_OTHER_CELL = rb"[!#-+\--~]{1,400}+"  # without blanks, quotes and commas
_BLOCK = 2**20  # bytes that are parsed at once


def _read_plain(path: Path, one_run: bool) -> tuple[FloatArray, FloatArray] | None:
    """Return the scores of a file in the plainest form, ten times as fast as ``csv``, or None for any other file."""
    with path.open("rb") as file:
        header = file.readline(_LONGEST_SHOWN).decode("ascii", "replace").rstrip("\r\n").split(",")
        coins = [header.index(name) for name in _COINS if name in header]
        if len(header) != len(set(header)) or not {"world", "score"} <= set(header) or (coins and not one_run):
            return None
        world, score = header.index("world"), header.index("score")
        line = b",".join(_PLAIN_CELLS.get(name, _OTHER_CELL) for name in header)
        lines = re.compile(rb"(?:%b\n)*+" % line)
        worlds, scores = [np.zeros(0, bool)], [np.zeros(0)]
        tossed: list[set[bytes]] = [set() for _ in coins]
        while block := file.read(_BLOCK) + file.readline(_BLOCK):
            block = block.replace(b"\r\n", b"\n").removesuffix(b"\n") + b"\n"
            if not lines.fullmatch(block):
                return None
            cells = block.replace(b"\n", b",").split(b",")[:-1]
            worlds.append(np.array(cells[world :: len(header)]) == b"in")
            scores.append(np.array([float(cell) for cell in cells[score :: len(header)]]))
            for coin, used in zip(coins, tossed, strict=True):
                used.update(cells[coin :: len(header)])
    present, values = np.concatenate(worlds), np.concatenate(scores)
    is_new = all(len(used) == len(values) for used in tossed)
    if not is_new or not np.isfinite(values).all() or present.all() or not present.any():
        return None
    return values[present], values[~present]


def _lines(path: Path, file: TextIOWrapper) -> Iterator[str]:
    longest = most_bytes(LINE)
    for number, line in enumerate(iter(lambda: file.readline(longest + 1), ""), 1):
        if len(line) > longest:
            raise too_large(f"{str(path)!r} must have lines of", LINE, f"more in line {number}")
        yield line


def _add(worlds: dict[str, array[float]], row: list[str], world: int, score: int, where: str) -> None:
    if len(row) <= max(world, score):
        raise ValueError(f"{where} must have a world and a score, got {_shortened(','.join(row))!r}")
    name, text = row[world].strip(), row[score].strip()
    if name not in worlds:
        raise ValueError(f"{where}: world must be in or out, got {_shortened(name)!r}")
    value = written_number(text, infinite=True)
    if value is None:
        raise ValueError(f"{where}: score must be a number in plain digits or inf, got {_shortened(text)!r}")
    worlds[name].append(value)


def _toss(used: dict[str, int], name: str, cell: list[str], where: str, line: int) -> None:
    coin = "".join(cell).strip()
    if not coin:
        raise ValueError(f"{where} must name its {name}, got an empty field")
    if (before := used.setdefault(coin, line)) != line:
        what = "One-run methods need an independent fair coin for each canary: give each coin one row"
        raise ValueError(f"{where}: {name} {_shortened(coin)!r} is also in line {before}. {what}")


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]} [...]"
