"""Where trials are kept: one SQLite file that says what is audited and holds every score as soon as it is known."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from lastiterate.auditing.stores import file as store_file
from lastiterate.auditing.stores.comparison import as_json, check_same, differences
from lastiterate.auditing.stores.lock import WriterLock
from lastiterate.auditing.stores.records import Record, crafted_of_format_1, record_of_format_1
from lastiterate.auditing.stores.trials import ScoredTrials
from lastiterate.data.files import BadFile
from lastiterate.fields import Fields
from lastiterate.values import number

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from lastiterate.auditing.identity import Identity
    from lastiterate.data.files import Location

_SCHEMA = """
CREATE TABLE audit (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE trials (
  model INTEGER NOT NULL CHECK (model >= 0),
  world TEXT NOT NULL CHECK (world IN ('in', 'out')),
  score REAL NOT NULL,
  quality REAL,
  seconds REAL NOT NULL,
  PRIMARY KEY (model, world)
) WITHOUT ROWID;
"""


class Store:
    """Made by ``Store.open`` to write and by ``Store.read`` to look. Closed by ``close`` or at the end of ``with``.

    Files of the first format are read as if they were of this one, and never written to.
    """

    def __init__(self, path: Path, database: sqlite3.Connection, lock: WriterLock | None) -> None:
        self._path, self._database, self._lock = path, database, lock
        self._format = store_file.format_of(database)

    @classmethod
    def open(cls, path: Location, identity: Identity, record: Record) -> Self:
        """The store of this audit, begun or continued; nothing is touched if it holds another.

        Args:
            path: of the file; missing folders are made.
            identity: everything that determines the results.
            record: what is told about the audit. What the file has counts from then on.
        """
        wanted, about = as_json("identity", identity.values), as_json("record", record.fields())
        place = store_file.locate(path)
        with store_file.explaining(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            lock = WriterLock(place)
            try:
                if store_file.is_new(place):
                    store_file.create(place, _SCHEMA, {"identity": wanted, "record": about, "seconds": "0.0"})
                else:
                    with cls.read(place) as present:
                        present.check_resumable(identity)
                return cls(place, store_file.connect_to_write(place), lock)
            except BaseException:
                lock.release()
                raise

    @classmethod
    def read(cls, path: Location) -> Self:
        """A store to look at, also while an audit writes to it."""
        place = store_file.locate(path)
        if not place.exists():
            raise BadFile(f"the store must exist, but nothing is at {str(place)!r}")
        with store_file.explaining(place):
            return cls(place, store_file.connect_to_read(place), None)

    def check_resumable(self, identity: Identity) -> None:
        """Refuse to go on with what this store holds, if that may be another audit."""
        if self._format == 1:
            raise ValueError(
                f"the store {str(self._path)!r} was begun by an earlier version, which did not keep all that its "
                "scores depend on: it can be reported and exported, but not continued; name another store"
            )
        check_same(self._path, self._get("identity"), json.loads(json.dumps(identity.values)))
        if identity.unknown:
            raise ValueError(
                f"the store {str(self._path)!r} exists, but there is no source of {', '.join(identity.unknown)} to "
                "compare with what was trained: put it into a file, or name another store"
            )

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._path

    @property
    def record(self) -> Record:
        """What the audit is, for those who judge its scores."""
        if self._format == 1:
            return record_of_format_1(self._get("specification"), self._get("facts"), self._get("setup"))
        with store_file.explaining(self._path):
            return Record.of_fields(self._get("record"))

    @property
    def crafted(self) -> Fields | None:
        """What the crafter decided; None before it did."""
        if self._format == 1:
            return crafted_of_format_1(self._get("facts"))
        found = self._get("crafted")
        return None if found is None else dict(found)

    def set_crafted(self, crafted: Fields) -> None:
        """Keep what the crafter decided. The trials rest on it, so it is written once."""
        text = as_json("crafted", crafted)
        held = self.crafted
        if held is not None and next(differences(held, json.loads(text)), None):
            raise ValueError(f"crafted must be what the store {str(self._path)!r} holds already, got something else")
        if held is None:
            self._write("INSERT INTO audit VALUES ('crafted', ?)", [(text,)])

    @property
    def seconds(self) -> float:
        """Wall time of all sessions so far."""
        return float(self._get("seconds"))

    def add_seconds(self, seconds: float) -> None:
        """Count the wall time of a session, or of a part of one."""
        total = self.seconds + number("seconds", seconds, 0.0)
        self._write("UPDATE audit SET value = ? WHERE name = 'seconds'", [(repr(total),)])

    def add(self, chunk: ScoredTrials) -> None:
        """Store all of these trials or, whatever happens, none. A trial that is there already is refused."""
        columns = (chunk.scores, chunk.qualities, chunk.seconds)  # SQLite has no NaN: it becomes NULL
        rows = zip(chunk.models.tolist(), chunk.worlds, *(column.tolist() for column in columns), strict=True)
        try:
            self._write("INSERT INTO trials VALUES (?, ?, ?, ?, ?)", rows)
        except sqlite3.IntegrityError:
            seen = self.done()
            for trial in zip(chunk.models.tolist(), chunk.present.tolist(), strict=True):
                if trial in seen:
                    break
                seen.add(trial)
            raise ValueError(
                f"trials must be new to the store {str(self._path)!r}, "
                f"got model {trial[0]} of world {'in' if trial[1] else 'out'!r} again"
            ) from None

    def done(self) -> set[tuple[int, bool]]:
        """Model and presence of the canary, for each trial that is stored."""
        return {(model, world == "in") for model, world in self._rows("SELECT model, world FROM trials")}

    def scores(self) -> ScoredTrials:
        """All trials that are stored, by model, in it "in" before "out"."""
        quality = "quality" if self._format > 1 else self.record.quality_in_format_1
        rows = self._rows(f"SELECT model, world, score, {quality}, seconds FROM trials ORDER BY model, world")
        models, worlds, scores, qualities, seconds = zip(*rows, strict=True) if rows else ((),) * 5
        return ScoredTrials(
            models=np.array(models, np.int64),
            present=np.array([world == "in" for world in worlds], np.bool_),
            scores=np.array(scores, np.float64),
            qualities=np.array(qualities, np.float64),
            seconds=np.array(seconds, np.float64),
        )

    def close(self) -> None:
        """Let the next process write. What was added is safe with or without it."""
        if self._lock is None:
            self._database.close()
            return
        store_file.close_written(self._database)
        self._lock.release()
        self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _get(self, name: str) -> Any:
        rows = self._rows("SELECT value FROM audit WHERE name = ?", name)
        with store_file.explaining(self._path):
            return json.loads(rows[0][0]) if rows else None

    def _rows(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        with store_file.explaining(self._path):
            return self._database.execute(query, values).fetchall()

    def _write(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Do this for all rows in one transaction, which is on the disk when this returns."""
        with store_file.explaining(self._path):
            try:
                self._database.execute("BEGIN IMMEDIATE")
                self._database.executemany(statement, rows)
                self._database.execute("COMMIT")
            finally:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
