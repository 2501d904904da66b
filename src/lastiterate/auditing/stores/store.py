"""The store of an audit: one SQLite file that describes the audit and holds every score as soon as it is computed."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from lastiterate.auditing.design import OpenEnded
from lastiterate.auditing.identity import fingerprint
from lastiterate.auditing.stores import store_file
from lastiterate.auditing.stores import store_file as presence
from lastiterate.auditing.stores.audit_record import (
    Record,
    ScoredTrials,
    as_json,
    check_crafted,
    check_same,
    differences,
)
from lastiterate.auditing.stores.error_messages import explaining
from lastiterate.auditing.stores.serialization import (
    FORMAT,
    Contents,
    add_chunk,
    check_planned,
    format_of,
    read,
    set_value,
    transaction,
    write,
)
from lastiterate.auditing.stores.store_file import WriterLock
from lastiterate.common.errors import StoreLost
from lastiterate.common.types import Fields
from lastiterate.common.validation import number
from lastiterate.data.files import BadFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from lastiterate.auditing.design import Design
    from lastiterate.auditing.identity import Identity
    from lastiterate.data.files import Location

_WAIT_SECONDS = 0.5  # commits in quick succession wait for the disk at most once in this time


class Store:
    """A store of trials. ``Store.open`` opens it to write, ``Store.read`` to read; ``close`` or ``with`` closes it.

    A writer also holds the contents in memory. If the file is removed or changed by others, the writer writes the
    contents to another file and raises ``StoreLost``. Files of earlier formats are readable in the same way.
    """

    def __init__(self, path: Path, database: sqlite3.Connection, lock: WriterLock | None) -> None:
        self._path, self._place = path, path.absolute()  # a user's trainer may change the working directory
        self._database, self._lock, self._reads = database, lock, lock is None
        self._version = self._data_version()
        self._held = read(path, database)
        self._plan = _plan_of(self._held)
        self._added: list[ScoredTrials] = []
        self._logs = database.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        self._waits, self._waited = True, -_WAIT_SECONDS
        self._file = None if lock is None else presence.Watched(self._place)
        self._lost: StoreLost | None = None
        self._closed = False

    @classmethod
    def open(cls, path: Location, identity: Identity, record: Record) -> Self:
        """Create the store of this audit, or continue it. A store of another audit is refused and left unchanged.

        Args:
            path: path of the file; missing folders are created.
            identity: everything that determines the results.
            record: description of the audit. An existing store keeps its own.
        """
        wanted, about = as_json("identity", identity.values), as_json("record", record.fields())
        place = store_file.locate(path)
        with explaining(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            lock = WriterLock(place.absolute())
            try:
                if store_file.is_new(place):
                    store_file.create(place, Contents({"identity": wanted, "record": about, "seconds": "0.0"}))
                else:
                    with cls.read(place) as present:
                        present.check_resumable(identity, record)
                store = cls._to_write(place, lock)
                store._extend(record)
                return store
            except BaseException:
                lock.release()
                raise

    @classmethod
    def _to_write(cls, place: Path, lock: WriterLock) -> Self:
        database = store_file.connect_to_write(place)
        try:
            if format_of(database) < FORMAT:
                write(database, read(place, database))
            return cls(place, database, lock)
        except BaseException:
            database.close()
            raise

    @classmethod
    def read(cls, path: Location, *, repairs: bool = True) -> Self:
        """Open a store to read, also while an audit writes to it. Without ``repairs`` the file is never changed."""
        place = store_file.locate(path)
        if not place.exists():
            raise BadFile(f"the store must exist, but nothing is at {str(place)!r}")
        with explaining(place):
            database = store_file.connect_to_read(place, repairs=repairs)
            try:
                return cls(place, database, None)
            except BaseException:
                database.close()
                raise

    def check_resumable(self, identity: Identity, record: Record) -> None:
        """Raise if this store may hold another audit."""
        held = self._contents()
        if held.format == 1:
            raise ValueError(
                f"the store {str(self._path)!r} was begun by an earlier version, which did not keep all that its "
                "scores depend on: it can be reported and exported, but not continued; name another store"
            )
        check_same(self._path, held.identity, json.loads(json.dumps(identity.values)))
        told, given = held.record.fields(), json.loads(json.dumps(record.fields()))
        if isinstance(record.design, OpenEnded) and isinstance(held.record.design, OpenEnded):
            given["design"] = told["design"]  # the number of models may differ
        for name in ("run", "design"):
            check_same(self._path, {name: json.loads(json.dumps(told[name]))}, {name: given[name]})
        if identity.unknown:
            raise ValueError(
                f"the store {str(self._path)!r} exists, but there is no source of {', '.join(identity.unknown)} to "
                "compare with what was trained: put it into a file, or name another store"
            )

    def _extend(self, record: Record) -> None:
        """Plan more models if the audit is open-ended."""
        held, wanted = self.record, record.design
        if isinstance(wanted, OpenEnded) and isinstance(held.design, OpenEnded) and wanted.models > held.design.models:
            longer = replace(held, design=replace(held.design, models=wanted.models))
            self._set("record", as_json("record", longer.fields()))

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._path

    @property
    def record(self) -> Record:
        """The description of the audit."""
        return self._contents().record

    @property
    def problem(self) -> str | None:
        """The fingerprint of the training problem; None if there is none, or if the store's format does not have it."""
        held = self._contents()
        found = None if held.format == 1 else held.identity.get("problem")
        return None if found == fingerprint(None) else found

    @property
    def seed(self) -> int | None:
        """The seed of all randomness; None if the store's format does not have it."""
        held = self._contents()
        found = None if held.format == 1 else held.identity.get("seed")
        return found if isinstance(found, int) else None

    def digest(self) -> str:
        """Return a digest of all that is stored, scores included."""
        return self._contents().digest()

    @property
    def crafted(self) -> Fields | None:
        """The crafter's decisions; None before crafting."""
        return self._contents().crafted

    def set_crafted(self, crafted: Fields) -> None:
        """Store the crafter's decisions. They are written once, because all trials depend on them."""
        text = as_json("crafted", crafted)
        try:
            check_crafted(json.loads(text))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"crafted must be what a report understands: {error}") from None
        held = self.crafted
        if held is not None and next(differences(held, json.loads(text)), None):
            raise ValueError(f"crafted must be what the store {str(self._path)!r} holds already, got something else")
        if held is None:
            self._set("crafted", text)

    @property
    def seconds(self) -> float:
        """Wall time of all sessions so far."""
        return self._contents().seconds

    def add_seconds(self, seconds: float) -> None:
        """Add the wall time of a session, or of a part of a session."""
        self._set("seconds", repr(self.seconds + number("seconds", seconds, 0.0)))

    def add(self, chunk: ScoredTrials) -> None:
        """Store all of these trials, or none if anything fails. Raise if a trial is stored already."""
        if not len(chunk):
            return
        check_planned(*self._plan, chunk)
        try:
            self._add(chunk)
        except KeyboardInterrupt:  # store the trained models before the program stops
            known = len(self._contents().ends)
            if self._stored_chunks() == known:
                self._add(chunk)
            elif not any(each is chunk for each in self._added):
                self._added.append(chunk)
            raise
        except sqlite3.IntegrityError:
            seen = self.done()
            for trial in zip(chunk.models.tolist(), chunk.present.tolist(), strict=True):
                if trial in seen:
                    break
            raise ValueError(
                f"trials must be new to the store {str(self._path)!r}, "
                f"got model {trial[0]} of world {'in' if trial[1] else 'out'!r} again"
            ) from None

    def _add(self, chunk: ScoredTrials) -> None:
        self._write(lambda: add_chunk(self._database, chunk), lambda: self._contents().extended([chunk]), quick=True)
        self._added.append(chunk)

    def done(self) -> set[tuple[int, bool]]:
        """Return the pair (model, whether the canary is present) of each stored trial."""
        trials = self._contents().trials
        return set(zip(trials.models.tolist(), trials.present.tolist(), strict=True))

    def scores(self) -> ScoredTrials:
        """Return all stored trials, ordered by model, world "in" before "out"."""
        return self._contents().trials.ordered()

    def versions(self) -> list[Mapping[str, str]]:
        """Return the distinct package versions that trained the chunks; empty ones for chunks of an earlier format."""
        found: list[Mapping[str, str]] = []
        for told in self._contents().told:
            if told not in found:
                found.append(told)
        return found

    def check_kept(self) -> None:
        """Check, after closing, that the file holds what was written; if not, write it elsewhere and raise."""
        if self._lost is None and not presence.holds(self._place, self._contents()):
            raise self._lose(self._contents())

    def is_there(self) -> bool:
        """Return whether the file is still the one that was opened, so that it may be removed."""
        return self._lost is None and self._file is not None and self._file.is_there()

    def close(self) -> None:
        """Close the file and release the lock. Trials that were added are safe even without closing."""
        if self._closed:
            return
        self._closed = True
        if self._lock is None:
            self._database.close()
        elif self._lost is not None:
            # The file may belong to another program by now: SQLite must not write our log into it.
            with suppress(OSError):
                os.truncate(f"{self._place}-wal", 0)
            with suppress(sqlite3.Error):
                self._database.close()
        else:
            store_file.close_written(self._database)
        if self._file is not None:
            self._file.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _contents(self) -> Contents:
        """Return the contents: from memory for a writer, from the file as it is now for a reader."""
        if self._reads:
            with explaining(self._path):
                version = self._data_version()
                if version != self._version:
                    store_file.limit_time(self._place, self._database)
                    self._held, self._version = read(self._path, self._database), version
        if self._added:
            self._held, self._added = self._held.extended(self._added), []
        return self._held

    def _set(self, name: str, text: str) -> None:
        before = self._contents()
        after = replace(before, values={**before.values, name: text})
        self._write(lambda: set_value(self._database, name, text), lambda: after)
        self._held, self._plan = after, _plan_of(after)

    def _write(self, change: Callable[[], None], after: Callable[[], Contents], *, quick: bool = False) -> None:
        """Apply ``change`` in one transaction. A committed change survives the end of this process.

        It survives a crash of the machine as well, except for ``quick`` writes of the last half second. If the file is
        lost, the contents ``after`` the change are written elsewhere and ``StoreLost`` is raised.
        """
        watched = self._file
        if watched is None:
            raise BadFile(f"the store {str(self._path)!r} must be writable, got one that was opened for reading only")
        if self._lost is not None:
            raise self._lost
        with explaining(self._path):
            if not watched.is_as_left(self._contents):
                raise self._lose(after())
            try:
                self._wait_for_disk(not quick)
                with transaction(self._database):
                    change()
            except sqlite3.IntegrityError:
                raise
            except sqlite3.Error:
                if not watched.is_as_left(self._contents):
                    raise self._lose(after()) from None
                raise
            if not watched.is_there():
                raise self._lose(after())
            watched.leave()

    def _lose(self, contents: Contents) -> StoreLost:
        fate = "was changed" if self._file is None else self._file.fate()
        self._lost = presence.rescue(self._place, self._path, fate, contents)
        return self._lost

    def _wait_for_disk(self, always: bool) -> None:
        """Set whether the next commit waits for the disk.

        Commits in quick succession need not wait: a log that is not yet on the disk is lost only if the machine fails.
        """
        now = monotonic()
        wait = always or not self._logs or now - self._waited > _WAIT_SECONDS
        if wait != self._waits:
            self._database.execute(f"PRAGMA synchronous = {'FULL' if wait else 'NORMAL'}")
        self._waits, self._waited = wait, now if wait else self._waited

    def _stored_chunks(self) -> int:
        return int(self._database.execute("SELECT count(*) FROM chunks").fetchone()[0])

    def _data_version(self) -> int:
        return int(self._database.execute("PRAGMA data_version").fetchone()[0])


def _plan_of(contents: Contents) -> tuple[Design, Fields | None]:
    return contents.record.design, contents.crafted
