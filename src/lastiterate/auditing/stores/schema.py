"""The tables of a store, word for word, in every format that can be read. A file with others is not ours."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING

from lastiterate.data.files import BadFile

if TYPE_CHECKING:
    from pathlib import Path

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
# Every value has a checksum, and so has every chunk of trials, with the versions that trained it.
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
    """Say in the header that this is a store of today's format."""
    database.execute(f"PRAGMA application_id = {APPLICATION}")
    database.execute(f"PRAGMA user_version = {FORMAT}")


def statements() -> list[str]:
    """What makes the tables of today's format."""
    return [each for each in SCHEMAS[FORMAT].split(";") if each.strip()]


def format_of(database: sqlite3.Connection) -> int:
    """The number of a store's format."""
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def check_kind(path: Path, database: sqlite3.Connection) -> None:
    """Refuse what is no store by its header, or one of a format that is not known."""
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
    """Refuse tables other than ours, and whatever else could be in a database: triggers, views, indexes.

    It is asked before any of them is read: a view may never end, and a trigger would change what is written.
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
    """How lines are broken does not matter."""
    return str(kind), str(name), " ".join(str(sql).split())
