"""The SQLite tables of a store, and functions that write and read its contents.

The file is not trusted: reading checks the header, tables, types, checksums and the list of trials.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from hashlib import blake2b, sha256
from pathlib import Path

import numpy as np

from lastiterate.auditing.design import Design, OpenEnded
from lastiterate.auditing.identity import versions
from lastiterate.auditing.stores.audit_record import Crafted, Record, ScoredTrials
from lastiterate.common.errors import DISK_ERRORS, BadArgument, DiskTrouble
from lastiterate.common.types import Fields, IntArray
from lastiterate.common.validation import number
from lastiterate.data.files import BadFile


@contextmanager
def explaining(path: Path) -> Iterator[None]:
    """Convert errors of SQLite and the operating system to ``BadFile`` or ``DiskTrouble``."""
    try:
        yield
    except sqlite3.Error as error:
        raise _told(path, error) from None
    except UnicodeDecodeError:
        raise BadFile(damaged(path)) from None
    except OSError as error:
        if not error.strerror:  # an error of this package, with its own message
            raise
        blamed = f"{error.strerror} {str(error.filename)!r}" if error.filename else str(error)
        sentence = f"the store {str(path)!r} cannot be used: {blamed}"
        raise (DiskTrouble if error.errno in DISK_ERRORS else BadFile)(sentence) from None


def damaged(path: Path | None) -> str:
    """Return the error message for a damaged store."""
    return f"the store {str(path)!r} is damaged: restore it from a copy, or choose another store"


def _told(path: Path, error: sqlite3.Error) -> BadFile | DiskTrouble:
    store = f"the store {str(path)!r}"
    match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF:  # the low byte is the primary error code
        case sqlite3.SQLITE_FULL:
            return DiskTrouble(f"the disk of {store} is full: make room, then run the same command again")
        case sqlite3.SQLITE_IOERR:
            what = "check that its disk works and has room, then run the same command again"
            return DiskTrouble(f"{store} cannot be read or written ({error}): {what}")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            found = f"{store} must be writable, but it is protected or was opened only for reading"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            found = f"another process is using {store}: try again when that process has finished"
        case sqlite3.SQLITE_CANTOPEN:
            found = f"{store} cannot be opened: it must be readable and, after an interruption, its folder writable"
        case sqlite3.SQLITE_INTERRUPT:
            found = f"{store} takes longer to read than any store of lastiterate: choose another store"
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_ERROR | sqlite3.SQLITE_TOOBIG:
            found = damaged(path)
        case _:
            found = f"{store} cannot be used: {error}"
    return BadFile(found)


FORMAT = 1
APPLICATION = int.from_bytes(b"LIau", "big")  # marks an SQLite file as a store

# Every value has a checksum. Every chunk of trials has a checksum and the package versions that trained it.
SCHEMA = """
CREATE TABLE audit (name TEXT PRIMARY KEY, value TEXT NOT NULL, checksum TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE software (number INTEGER PRIMARY KEY, versions TEXT NOT NULL);
CREATE TABLE chunks (number INTEGER PRIMARY KEY, software INTEGER NOT NULL, checksum TEXT NOT NULL);
CREATE TABLE trials (
  model INTEGER NOT NULL CHECK (model >= 0),
  world TEXT NOT NULL CHECK (world IN ('in', 'out')),
  score REAL NOT NULL,
  quality REAL,
  seconds REAL NOT NULL,
  chunk INTEGER NOT NULL,
  PRIMARY KEY (model, world)
) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Former:
    """An older format: its exact tables, and a function that converts them to the current format."""

    schema: str
    read: Callable[[sqlite3.Connection], Contents]


# Older formats by number. A report does not change such a store. A continued audit converts it.
FORMER: dict[int, Former] = {}


def format_of(database: sqlite3.Connection) -> int:
    """Return the number of a store's format."""
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def check_kind(path: Path, database: sqlite3.Connection) -> None:
    """Raise if the file's header is not a store's header, or if the format is unknown."""
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
    if found != FORMAT and found not in FORMER:
        what = "which this version of lastiterate cannot read: choose another store"
        raise BadFile(f"{str(path)!r} has store format {found}, {what}")


def check_tables(path: Path, database: sqlite3.Connection) -> None:
    """Raise if the tables differ from the tables of a store, or if there is any trigger, view or index.

    Call this before reading a table: a query of a view may never end, and a trigger may change written data.
    """
    number = format_of(database)
    expected = _entries(SCHEMA if number == FORMAT else FORMER[number].schema)
    found = database.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    if {_words(*each) for each in found} != expected or len(found) != len(set(found)):
        ours = {name for _, name, _ in expected}
        strange = sorted({f"{kind} {name!r}"[:80] for kind, name, _ in found if kind != "table" or name not in ours})
        got = f"the {strange[0]}" if strange else "others"
        raise BadFile(f"the store {str(path)!r} must have the tables of lastiterate and nothing else, got {got}")


@cache
def _entries(schema: str) -> frozenset[tuple[str, str, str]]:
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(schema)
        entries = database.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
        return frozenset(_words(*each) for each in entries)


def _words(kind: object, name: object, sql: object) -> tuple[str, str, str]:
    return str(kind), str(name), " ".join(str(sql).split())


_ROW = np.dtype([("model", "<i8"), ("in", "u1"), ("score", "<f8"), ("quality", "<f8"), ("seconds", "<f8")])
_NAMES = {"identity", "record", "seconds", "crafted"}  # crafted is absent until the canary is crafted


@dataclass(frozen=True, eq=False)
class Contents:
    """The contents of a store."""

    values: dict[str, str]  # JSON texts by name: identity, record, seconds and, after crafting, crafted
    chunks: tuple[ScoredTrials, ...] = ()  # trials; all trials of a chunk were trained with the same package versions

    @property
    def identity(self) -> Fields:
        found: Fields = json.loads(self.values["identity"])
        return found

    @property
    def record(self) -> Record:
        return Record.of_fields(json.loads(self.values["record"]))

    @property
    def crafted(self) -> Fields | None:
        found: Fields | None = json.loads(self.values.get("crafted", "null"))
        return found

    @property
    def seconds(self) -> float:
        return float(number("seconds", json.loads(self.values["seconds"]), 0.0))

    @cached_property
    def trials(self) -> ScoredTrials:
        return ScoredTrials.mixed(self.chunks).ordered()

    def same_as(self, other: Contents) -> bool:
        return self.values == other.values and _packed(self.trials) == _packed(other.trials)

    def digest(self) -> str:
        return sha256(json.dumps(self.values, sort_keys=True).encode() + _packed(self.trials)).hexdigest()


def write(database: sqlite3.Connection, contents: Contents) -> None:
    """Write the contents in one transaction. The database is empty or has the tables of an older format."""
    with transaction(database):
        for (name,) in database.execute("SELECT name FROM sqlite_master").fetchall():
            database.execute(f"DROP TABLE {name}")  # ``check_tables`` has verified that the tables are ours
        for statement in SCHEMA.split(";")[:-1]:
            database.execute(statement)
        database.execute(f"PRAGMA application_id = {APPLICATION}")
        database.execute(f"PRAGMA user_version = {FORMAT}")
        for name, text in contents.values.items():
            set_value(database, name, text)
        for chunk in filter(len, contents.chunks):
            add_chunk(database, chunk)


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Commit at the end of the context, or roll back after an exception."""
    try:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("COMMIT")
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")


def set_value(database: sqlite3.Connection, name: str, text: str) -> None:
    """Write or replace one of the values."""
    database.execute("INSERT OR REPLACE INTO audit VALUES (?, ?, ?)", (name, text, _checksum(name, text.encode())))


def add_chunk(database: sqlite3.Connection, chunk: ScoredTrials) -> None:
    """Append trials and the package versions that trained them."""
    trials, told = chunk.ordered(), json.dumps(dict(versions_of(chunk)), sort_keys=True)
    found = database.execute("SELECT number FROM software WHERE versions = ?", (told,)).fetchone()
    software = found[0] if found else database.execute("INSERT INTO software VALUES (NULL, ?)", (told,)).lastrowid
    checksum = _checksum(told, _packed(trials))
    place = database.execute("INSERT INTO chunks VALUES (NULL, ?, ?)", (software, checksum)).lastrowid
    columns = (trials.scores, trials.qualities, trials.seconds)  # SQLite stores NaN as NULL
    rows = zip(trials.models.tolist(), trials.worlds, *(column.tolist() for column in columns), strict=True)
    database.executemany(f"INSERT INTO trials VALUES (?, ?, ?, ?, ?, {place})", rows)


def read(path: Path, database: sqlite3.Connection) -> Contents:
    """Read the contents of a store in one transaction. Raise if they are not valid."""
    database.execute("BEGIN")
    try:
        number = format_of(database)
        contents = _read(database) if number == FORMAT else FORMER[number].read(database)
        design, crafted, _ = contents.record.design, contents.crafted, contents.seconds
        if not isinstance(contents.identity, dict):
            raise TypeError("identity")
        if crafted is not None:
            Crafted.of_fields(crafted)
        check_planned(design, crafted, contents.trials)
        return contents
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError):
        raise BadFile(damaged(path)) from None
    finally:
        database.execute("ROLLBACK")


def check_planned(design: Design, crafted: Fields | None, trials: ScoredTrials) -> None:
    """Raise if a trial is not planned or occurs twice, or if a chunk is incomplete."""
    if not len(trials):
        return
    if crafted is None:
        raise BadArgument("trials", "must come after the crafted canary")
    places = design.places(trials.models, trials.present)
    if places.min() < 0:
        raise BadArgument("trials", f"must be in the plan, got {trials.name(int(np.argmin(places)))}")
    size = crafted["chunk_size"]
    if len(places) == size == 1:
        return
    order = np.argsort(places, kind="stable")
    again = order[1:][np.diff(places[order]) == 0]
    if again.size:
        raise BadArgument("trials", f"must occur once, got {trials.name(int(again.min()))} again")
    if isinstance(design, OpenEnded):  # an extended audit may hold a chunk in two parts
        return
    numbers, counts = np.unique(places // size, return_counts=True)
    if np.any(counts != np.minimum(size, design.trials - numbers * size)):
        raise BadArgument("trials", f"must be whole chunks of {size}, got a part of one")


def _read(database: sqlite3.Connection) -> Contents:
    pairs = database.execute("SELECT name, value, checksum FROM audit LIMIT ?", (len(_NAMES) + 1,)).fetchall()
    contents = Contents({name: value for name, value, _ in pairs})
    if contents.values.keys() | {"crafted"} != _NAMES or len(contents.values) != len(pairs):
        raise ValueError("names")
    if any(checksum != _checksum(name, value.encode()) for name, value, checksum in pairs):
        raise ValueError("checksum")
    most = min(contents.record.design.trials + 1, 2**62)  # one trial too many is enough for a refusal later
    rows = database.execute(
        "SELECT model, world, score, quality, seconds, chunk FROM trials ORDER BY model, world LIMIT ?", (most,)
    ).fetchall()
    allowed: list[set[type]] = [{int}, {str}, {float}, {float, type(None)}, {float}, {int}]
    for column, types in zip(zip(*rows, strict=True), allowed, strict=False):
        if not set(map(type, column)) <= types:
            raise TypeError("columns")
    if not {row[1] for row in rows} <= {"in", "out"}:
        raise ValueError("world")
    models, worlds, *measured, places = zip(*rows, strict=True) if rows else ((),) * 6
    scores, qualities, seconds = (np.array(column, np.float64) for column in measured)
    present = np.array([world == "in" for world in worlds], np.bool_)
    trials = ScoredTrials(np.array(models, np.int64), present, scores, qualities, seconds)
    return replace(contents, chunks=tuple(_chunks(database, trials, np.array(places, np.int64))))


def _chunks(database: sqlite3.Connection, trials: ScoredTrials, places: IntArray) -> Iterator[ScoredTrials]:
    """Check the checksum of every stored chunk. Yield the trials of each set of package versions."""
    software: dict[int, str] = dict(database.execute("SELECT number, versions FROM software").fetchall())
    listed = database.execute("SELECT number, software, checksum FROM chunks ORDER BY number").fetchall()
    order = np.argsort(places, kind="stable")
    limits = np.searchsorted(places[order], np.arange(1, len(listed) + 2)).tolist()
    in_turn = [number for number, *_ in listed] == list(range(1, len(listed) + 1))
    if not in_turn or limits[0] != 0 or limits[-1] != len(places):
        raise ValueError("every trial must be in a chunk, and chunks must be numbered consecutively")
    packed, size = _packed(trials.at(order)), _ROW.itemsize
    for (_, used, checksum), begin, end in zip(listed, limits[:-1], limits[1:], strict=True):
        if begin == end or _checksum(software[used], packed[begin * size : end * size]) != checksum:
            raise ValueError("checksum")
    used = np.array([used for _, used, _ in listed], np.int64)[places - 1]
    for key, text in software.items():
        told = json.loads(text)
        if not isinstance(told, dict) or not all(isinstance(each, str) for each in told.values()):
            raise TypeError("versions")
        yield replace(trials.at(np.flatnonzero(used == key)), versions=told)


def _packed(trials: ScoredTrials) -> bytes:
    """Return the rows as bytes. NaN and zero have one form each, because SQLite does not keep others."""
    rows = np.zeros(len(trials), _ROW)
    rows["model"], rows["in"], rows["score"] = trials.models, trials.present, trials.scores + 0.0
    rows["quality"] = np.where(np.isnan(trials.qualities), np.nan, trials.qualities + 0.0)
    rows["seconds"] = trials.seconds + 0.0
    return rows.tobytes()


def versions_of(chunk: ScoredTrials) -> Mapping[str, str]:
    """Return the package versions that trained a chunk."""
    return _versions_here() if chunk.versions is None else chunk.versions


_versions_here = cache(versions)  # cached, because finding the versions takes milliseconds


def _checksum(name: str, content: bytes) -> str:
    return blake2b(name.encode() + b"\0" + content, digest_size=16).hexdigest()
