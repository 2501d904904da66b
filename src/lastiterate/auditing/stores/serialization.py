"""The SQLite tables of a store, and functions that write and read its contents.

Reading trusts nothing in the file: header, tables, types, checksums and the plan of trials are all checked.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b, sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from lastiterate.auditing.design import Design, OpenEnded
from lastiterate.auditing.identity import versions
from lastiterate.auditing.stores.audit_record import (
    Record,
    ScoredTrials,
    check_crafted,
    crafted_of_format_1,
    record_of_format_1,
)
from lastiterate.auditing.stores.error_messages import checking
from lastiterate.common.types import Fields, IntArray
from lastiterate.common.validation import number
from lastiterate.data.files import BadFile

if TYPE_CHECKING:
    from pathlib import Path


# Tables: the exact schema of every readable format. A file with other tables is refused.

FORMAT = 3
APPLICATION = int.from_bytes(b"LIau", "big")  # marks an SQLite file as a store

_AUDIT = "CREATE TABLE audit (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
_TRIALS = """
CREATE TABLE trials (
  model INTEGER NOT NULL CHECK (model >= 0),
  world TEXT NOT NULL CHECK (world IN ('in', 'out')),
  score REAL NOT NULL,
  {}
  PRIMARY KEY (model, world)
) WITHOUT ROWID;
"""
# Every value has a checksum. Every chunk of trials has a checksum and the package versions that trained it.
_CHECKED = """
CREATE TABLE audit (name TEXT PRIMARY KEY, value TEXT NOT NULL, checksum TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE software (number INTEGER PRIMARY KEY, versions TEXT NOT NULL);
CREATE TABLE chunks (number INTEGER PRIMARY KEY, software INTEGER NOT NULL, checksum TEXT NOT NULL);
"""
SCHEMAS = {
    1: _AUDIT + _TRIALS.format("accuracy REAL, seconds REAL NOT NULL, seed INTEGER,"),
    2: _AUDIT + _TRIALS.format("quality REAL, seconds REAL NOT NULL,"),
    3: _CHECKED + _TRIALS.format("quality REAL, seconds REAL NOT NULL, chunk INTEGER NOT NULL,"),
}


def mark(database: sqlite3.Connection) -> None:
    """Mark the file's header as a store of the current format."""
    database.execute(f"PRAGMA application_id = {APPLICATION}")
    database.execute(f"PRAGMA user_version = {FORMAT}")


def statements() -> list[str]:
    """Return the SQL statements that create the tables of the current format."""
    return [each for each in SCHEMAS[FORMAT].split(";") if each.strip()]


def format_of(database: sqlite3.Connection) -> int:
    """Return the number of a store's format."""
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def check_kind(path: Path, database: sqlite3.Connection) -> None:
    """Raise if the header is not that of a store, or if the format is unknown."""
    try:
        (application,) = database.execute("PRAGMA application_id").fetchone()
        found = format_of(database)
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_NOTADB:
            raise
        application = found = None
    if application != APPLICATION:
        content = "an empty file" if path.stat().st_size == 0 else "a file of another kind"
        raise BadFile(f"{str(path)!r} must be the store of an audit, got {content}")
    if found not in SCHEMAS:
        *most, last = map(str, SCHEMAS)
        known = f"{', '.join(most)} and {last}"
        raise BadFile(f"{str(path)!r} has store format {found}, but this version of lastiterate reads {known} only")


def check_tables(path: Path, database: sqlite3.Connection) -> None:
    """Raise if the database has other tables than a store, or any trigger, view or index.

    Call this before reading a table: a view may never end, and a trigger would change what is written.
    """
    found = database.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    if {_words(*each) for each in found} != _expected(format_of(database)) or len(found) != len(set(found)):
        ours = {name for _, name, _ in _expected(format_of(database))}
        strange = sorted({f"{kind} {name!r}"[:80] for kind, name, _ in found if kind != "table" or name not in ours})
        got = f"the {strange[0]}" if strange else "others"
        raise BadFile(f"the store {str(path)!r} must have the tables of lastiterate and nothing else, got {got}")


@cache
def _expected(number: int) -> frozenset[tuple[str, str, str]]:
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(SCHEMAS[number])
        return frozenset(
            _words(*each) for each in database.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
        )


def _words(kind: object, name: object, sql: object) -> tuple[str, str, str]:
    """Return an entry of ``sqlite_master`` with line breaks and repeated spaces in its SQL removed."""
    return str(kind), str(name), " ".join(str(sql).split())


_ROW = np.dtype([("model", "<i8"), ("in", "u1"), ("score", "<f8"), ("quality", "<f8"), ("seconds", "<f8")])
_NAMES = {1: {"specification", "setup", "seconds", "facts"}, 2: {"identity", "record", "seconds", "crafted"}}
_MAY_MISS = {1: {"facts", "setup"}, 2: {"crafted"}}  # absent until the canary is crafted


@dataclass(frozen=True, eq=False)
class Contents:
    """The contents of a store, as written.

    Attributes:
        values: JSON texts by name: identity, record, seconds and, after crafting, crafted.
        trials: all trials, chunk after chunk.
        ends: index in ``trials`` at which each chunk ends.
        told: package versions that trained each chunk.
        format: format of the file.
    """

    values: dict[str, str]
    trials: ScoredTrials = field(default_factory=lambda: ScoredTrials.mixed([]))
    ends: tuple[int, ...] = ()
    told: tuple[Mapping[str, str], ...] = ()
    format: int = FORMAT

    @property
    def identity(self) -> Fields:
        """Everything that determines the results of the audit."""
        found: Fields = json.loads(self.values["identity"])
        return found

    @property
    def record(self) -> Record:
        """The description of the audit."""
        if self.format == 1:
            return record_of_format_1(*(self._value(name) for name in ("specification", "facts", "setup")))
        return Record.of_fields(self._value("record"))

    @property
    def crafted(self) -> Fields | None:
        """The crafter's decisions; None before crafting."""
        return crafted_of_format_1(self._value("facts")) if self.format == 1 else self._value("crafted")

    @property
    def seconds(self) -> float:
        """Wall time of all sessions so far."""
        return float(number("seconds", self._value("seconds"), 0.0))

    def chunks(self) -> Iterator[ScoredTrials]:
        """Yield the trials chunk by chunk, as they were added."""
        for begin, end, told in zip((0, *self.ends), self.ends, self.told, strict=False):
            yield replace(self.trials.at(slice(begin, end)), versions=told)

    def extended(self, chunks: Sequence[ScoredTrials]) -> Contents:
        """Return these contents with more chunks appended."""
        ends = np.cumsum([len(self.trials), *map(len, chunks)])[1:].tolist()
        told = [_told(chunk) for chunk in chunks]
        together = ScoredTrials.mixed([self.trials, *chunks])
        return replace(self, trials=together, ends=(*self.ends, *ends), told=(*self.told, *told))

    def same_as(self, other: Contents) -> bool:
        """Return whether all values and trials are the same, bit for bit."""
        one, two = (_packed(each.trials.ordered()).tobytes() for each in (self, other))
        return self.values == other.values and one == two

    def digest(self) -> str:
        """Return the SHA-256 of values and trials. Trials are ordered by model, whatever the order of the chunks."""
        hashed = sha256(json.dumps(self.values, sort_keys=True).encode())
        hashed.update(_packed(self.trials.ordered()).tobytes())
        return hashed.hexdigest()

    def _value(self, name: str) -> Any:
        return json.loads(self.values[name]) if name in self.values else None


def write(database: sqlite3.Connection, contents: Contents) -> None:
    """Write the contents in one transaction to an empty database, or replace the tables of an earlier format."""
    with transaction(database):
        for (name,) in database.execute("SELECT name FROM sqlite_master").fetchall():
            database.execute(f"DROP TABLE {name}")  # ``check_tables`` has verified that the tables are ours
        for statement in statements():
            database.execute(statement)
        mark(database)
        for name, text in contents.values.items():
            set_value(database, name, text)
        for chunk in contents.chunks():
            add_chunk(database, chunk)


class transaction:  # noqa: N801 - used as a ``with`` statement
    """A transaction: commit at the end of ``with``, roll back after an exception."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                self._database.execute("COMMIT")
        finally:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")


def set_value(database: sqlite3.Connection, name: str, text: str) -> None:
    """Write or replace one of the values."""
    database.execute("INSERT OR REPLACE INTO audit VALUES (?, ?, ?)", (name, text, _checksum(name, text.encode())))


def add_chunk(database: sqlite3.Connection, chunk: ScoredTrials) -> None:
    """Append trials and the package versions that trained them."""
    if not len(chunk):
        return
    trials, told = chunk.ordered(), json.dumps(dict(_told(chunk)), sort_keys=True)
    found = database.execute("SELECT number FROM software WHERE versions = ?", (told,)).fetchone()
    software = found[0] if found else database.execute("INSERT INTO software VALUES (NULL, ?)", (told,)).lastrowid
    checksum = _checksum(told, _packed(trials).tobytes())
    place = database.execute("INSERT INTO chunks VALUES (NULL, ?, ?)", (software, checksum)).lastrowid
    columns = (trials.scores, trials.qualities, trials.seconds)  # SQLite has no NaN and stores NULL
    rows = zip(trials.models.tolist(), trials.worlds, *(column.tolist() for column in columns), strict=True)
    database.executemany(f"INSERT INTO trials VALUES (?, ?, ?, ?, ?, {place})", rows)


def read(path: Path, database: sqlite3.Connection) -> Contents:
    """Read the contents of a store in one transaction. Raise if no audit could have written them."""
    found = format_of(database)
    database.execute("BEGIN")
    try:
        with checking(path):
            values = _read_values(database, found)
            contents = Contents(values, format=found)
            design, crafted = contents.record.design, contents.crafted
            _ = contents.seconds
            if found > 1 and not isinstance(contents.identity, dict):
                raise TypeError("identity")
            if crafted is not None:
                check_crafted(crafted)
            rows = _rows(database, found, design.trials + 1)
            together = _chunks(database, contents, rows)
            check_planned(design, crafted, together.trials)
            return together
    finally:
        database.execute("ROLLBACK")


def check_planned(design: Design, crafted: Fields | None, trials: ScoredTrials) -> None:
    """Raise if trials are not in the plan, occur twice, or are only a part of a chunk that is trained together."""
    if not len(trials):
        return
    if crafted is None:
        raise ValueError("trials must come after what the crafter decided")
    places = design.places(trials.models, trials.present)
    if places.min() < 0:
        raise ValueError(f"trials must be planned, got {_called(trials, int(np.argmin(places)))}")
    size = crafted["chunk_size"]
    if len(places) == size == 1:
        return
    order = np.argsort(places, kind="stable")
    again = order[1:][np.diff(places[order]) == 0]
    if again.size:
        raise ValueError(f"trials must be there once, got {_called(trials, int(again.min()))} again")
    if isinstance(design, OpenEnded):  # an extended audit may hold a chunk in two parts
        return
    numbers, counts = np.unique(places // size, return_counts=True)
    if np.any(counts != np.minimum(size, design.trials - numbers * size)):
        raise ValueError(f"trials must be whole chunks of {size}, got a part of one")


def _called(trials: ScoredTrials, row: int) -> str:
    return f"model {trials.models[row]} of world {trials.worlds[row]!r}"


def _read_values(database: sqlite3.Connection, found: int) -> dict[str, str]:
    known = min(found, 2)
    columns = "name, value, checksum" if found > 2 else "name, value"
    rows = database.execute(f"SELECT {columns} FROM audit LIMIT ?", (len(_NAMES[known]) + 1,)).fetchall()
    values: dict[str, str] = {name: value for name, value, *_ in rows}
    if not (_NAMES[known] - _MAY_MISS[known] <= values.keys() <= _NAMES[known]) or len(values) != len(rows):
        raise ValueError("names")
    if found > 2 and any(checksum != _checksum(name, value.encode()) for name, value, checksum in rows):
        raise ValueError("checksum")
    return values


def _rows(database: sqlite3.Connection, found: int, most: int) -> list[tuple[Any, ...]]:
    """Read at most ``most`` trials, one more than planned, and check the type of each value."""
    more = {1: "accuracy, seconds, 0", 2: "quality, seconds, 0", 3: "quality, seconds, chunk"}[found]
    rows = database.execute(
        f"SELECT model, world, score, {more} FROM trials ORDER BY model, world LIMIT ?", (min(most, 2**62),)
    ).fetchall()
    allowed: list[set[type]] = [{int}, {str}, {float}, {float, type(None)}, {float}, {int}]
    for column, types in zip(zip(*rows, strict=True), allowed, strict=False):
        if not set(map(type, column)) <= types:
            raise TypeError("columns")
    if not {row[1] for row in rows} <= {"in", "out"}:
        raise ValueError("world")
    return rows


def _chunks(database: sqlite3.Connection, contents: Contents, rows: list[tuple[Any, ...]]) -> Contents:
    """Return the contents with these rows as trials. Raise if a checksum of format 3 is wrong."""
    models, worlds, scores, qualities, seconds, places = zip(*rows, strict=True) if rows else ((),) * 6
    quality = np.array(qualities, np.float64)
    if contents.format == 1:
        quality = contents.record.quality_of_format_1(quality)
    trials = ScoredTrials(
        np.array(models, np.int64),
        np.array([world == "in" for world in worlds], np.bool_),
        np.array(scores, np.float64),
        quality,
        np.array(seconds, np.float64),
    )
    if contents.format < 3:  # these formats do not record package versions
        return contents.extended([replace(trials, versions={})] if rows else [])
    of = np.array(places, np.int64)
    order = np.argsort(of, kind="stable")
    in_turn = trials.at(order)
    ends, told = _check_chunks(database, in_turn, of[order])
    return replace(contents, trials=in_turn, ends=ends, told=told)


def _check_chunks(
    database: sqlite3.Connection, trials: ScoredTrials, places: IntArray
) -> tuple[tuple[int, ...], tuple[Mapping[str, str], ...]]:
    """Check every chunk's checksum. Return the end of each chunk and the package versions that trained it."""
    software: dict[int, str] = dict(database.execute("SELECT number, versions FROM software").fetchall())
    told = {key: _read_told(text) for key, text in software.items()}
    listed = database.execute("SELECT number, software, checksum FROM chunks ORDER BY number").fetchall()
    limits = np.searchsorted(places, np.arange(1, len(listed) + 2)).tolist()
    if [number for number, *_ in listed] != list(range(1, len(listed) + 1)):
        raise ValueError("chunks must be numbered in turn")
    if limits[0] != 0 or limits[-1] != len(places):
        raise ValueError("trials must be in a chunk")
    packed = _packed(trials)
    for (_, used, checksum), begin, end in zip(listed, limits[:-1], limits[1:], strict=True):
        if begin == end or _checksum(software[used], packed[begin:end].tobytes()) != checksum:
            raise ValueError("checksum")
    return tuple(limits[1:]), tuple(told[used] for _, used, _ in listed)


def _packed(trials: ScoredTrials) -> Any:
    """Return the rows as bytes, with one kind of NaN and no negative zero: SQLite stores neither."""
    rows = np.zeros(len(trials), _ROW)
    rows["model"], rows["in"], rows["score"] = trials.models, trials.present, trials.scores + 0.0
    rows["quality"] = np.where(np.isnan(trials.qualities), np.nan, trials.qualities + 0.0)
    rows["seconds"] = trials.seconds + 0.0
    return rows


def _told(chunk: ScoredTrials) -> Mapping[str, str]:
    return _versions_here() if chunk.versions is None else chunk.versions


@cache
def _versions_here() -> Mapping[str, str]:
    """Return the package versions of this process, cached because finding them takes milliseconds."""
    return versions()


def _read_told(text: str) -> dict[str, str]:
    told = json.loads(text)
    if not isinstance(told, dict) or not all(isinstance(each, str) for each in told.values()):
        raise TypeError("versions")
    return told


def _checksum(name: str, content: bytes) -> str:
    return blake2b(name.encode() + b"\0" + content, digest_size=16).hexdigest()
