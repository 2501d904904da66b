"""The store of an audit, in an SQLite file or in memory. It keeps each score as soon as the score is computed."""

import json
import os
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from threading import RLock
from time import monotonic
from typing import Self

from lastiterate.auditing.design import OpenEnded
from lastiterate.auditing.identity import Identity
from lastiterate.auditing.stores import serialization, store_file
from lastiterate.auditing.stores.audit_record import Crafted, Record, ScoredTrials, as_json, check_same, differences
from lastiterate.auditing.stores.serialization import Contents, check_planned, explaining, versions_of
from lastiterate.common import atomic_write
from lastiterate.common.errors import BadArgument, StoreLost
from lastiterate.common.types import Fields
from lastiterate.common.validation import number
from lastiterate.data.files import BadFile, Location

_LAST_WRITE = 5.0  # seconds that a signal waits for a write in another thread
_WAIT_SECONDS = 0.5  # quick commits wait for the disk at most once per interval of this length


class MemoryStore:
    """The description and the trials of an audit, in memory."""

    path: Path | None = None

    _held: Contents

    def __init__(self, contents: Contents) -> None:
        self._hold(contents)
        self._added: list[ScoredTrials] = []

    @property
    def record(self) -> Record:
        return self._contents().record

    @property
    def identity(self) -> Fields:
        """All values that determine the scores of the audit."""
        return self._contents().identity

    def digest(self) -> str:
        return self._contents().digest()

    @property
    def crafted(self) -> Fields | None:
        """The fields of ``Crafted``, or None before crafting."""
        return self._contents().crafted

    def set_crafted(self, crafted: Fields) -> None:
        """Store the fields of ``Crafted``. They are written only once, because all trials depend on them."""
        text = as_json("crafted", crafted)
        try:
            Crafted.of_fields(json.loads(text))
        except (KeyError, TypeError, ValueError) as error:
            raise BadArgument("crafted", f"must have valid fields: {error}") from None
        held = self.crafted
        if held is None:
            self._set("crafted", text)
        elif next(differences(held, json.loads(text)), None):
            raise BadArgument("crafted", f"must equal the value in the store {str(self.path)!r}, got another value")

    @property
    def seconds(self) -> float:
        """Wall time of all sessions so far."""
        return self._contents().seconds

    def add_seconds(self, seconds: float) -> None:
        self._set("seconds", repr(self.seconds + number("seconds", seconds, 0.0)))

    def add(self, chunk: ScoredTrials) -> None:
        """Store these trials. If an error occurs, none of them is stored. Raise if a trial is stored already."""
        if not len(chunk):
            return
        check_planned(*self._plan, chunk)
        for row, trial in enumerate(zip(chunk.models.tolist(), chunk.present.tolist(), strict=True)):
            if trial in self._done:
                raise BadArgument("trials", f"must be new to the store {str(self.path)!r}, got {chunk.name(row)} again")
        self._save(chunk)

    def done(self) -> set[tuple[int, bool]]:
        """Return a pair (model number, whether the canary is present) for each stored trial."""
        self._contents()
        return self._done

    def scores(self) -> ScoredTrials:
        """Return all stored trials, ordered by model, world "in" before "out"."""
        return self._contents().trials

    def versions(self) -> list[Mapping[str, str]]:
        """Return the distinct sets of package versions with which the chunks were trained."""
        found: list[Mapping[str, str]] = []
        for chunk in self._contents().chunks:
            if (told := versions_of(chunk)) not in found:
                found.append(told)
        return found

    def _contents(self) -> Contents:
        if self._added:
            self._held, self._added = replace(self._held, chunks=(*self._held.chunks, *self._added)), []
        return self._held

    def _hold(self, contents: Contents) -> None:
        self._held, self._plan = contents, (contents.record.design, contents.crafted)
        self._done = _pairs(contents.trials)

    def _save(self, chunk: ScoredTrials) -> None:
        self._added.append(chunk)
        self._done |= _pairs(chunk)

    def _set(self, name: str, text: str) -> None:
        before = self._contents()
        self._hold(replace(before, values={**before.values, name: text}))


class Store(MemoryStore):
    """A store in a file. ``Store.open`` opens it to write, ``Store.read`` to read; ``close`` or ``with`` closes it.

    A writer also holds the contents in memory. If another program removes or changes the file, the contents are
    written to another file and ``StoreLost`` is raised.
    """

    path: Path

    def __init__(self, path: Path, database: sqlite3.Connection, lock: store_file.WriterLock | None) -> None:
        self.path, self._place = path, path.absolute()  # a user's trainer may change the working directory
        self._database, self._lock = database, lock
        try:
            self._version = self._pragma("data_version")
            super().__init__(serialization.read(path, database))
            self._logs = self._pragma("journal_mode") == "wal"
            self._file = None if lock is None else store_file.Watched(self._place)
        except BaseException:
            database.close()
            raise
        self._waits, self._waited = True, -_WAIT_SECONDS
        self._lost: StoreLost | None = None
        self._closed = False
        self._writing = RLock()
        if lock is not None:
            atomic_write.closing.append(self._close_now)

    @classmethod
    def open(cls, path: Location, identity: Identity, record: Record) -> Self:
        """Create the store of this audit, or continue it. A store of another audit is refused and left unchanged.

        Missing folders are created. An existing store keeps its own record.
        """
        begun = begin(identity, record)
        place = store_file.locate(path)
        with explaining(place), ExitStack() as undo:
            place.parent.mkdir(parents=True, exist_ok=True)
            lock = store_file.WriterLock(place.absolute())
            undo.callback(lock.release)
            if not place.exists() or place.stat().st_size == 0:
                store_file.create(place, begun)
            else:
                with cls.read(place) as present:
                    present.check_resumable(identity, record)
            store = cls(place, store_file.connect_to_write(place), lock)
            undo.pop_all()  # the store releases the lock
            undo.callback(store.close)
            held, wanted = store.record, record.design
            if held.design.kind == wanted.kind == OpenEnded.kind and wanted.models > held.design.models:
                longer = replace(held, design=replace(held.design, models=wanted.models))
                store._set("record", as_json("record", longer.fields()))
            undo.pop_all()
            return store

    def tell(self, about: Mapping[str, str]) -> None:
        """Replace the user's name, owner or notes for the audit."""
        if about and {**self.record.about, **about} != self.record.about:
            told = replace(self.record, setup={**self.record.setup, **about})
            self._set("record", as_json("record", told.fields()))

    @classmethod
    def read(cls, path: Location, *, repairs: bool = True) -> Self:
        """Open a store to read. An audit may be writing to it. If ``repairs`` is false, the file is never changed."""
        place = store_file.locate(path)
        if not place.exists():
            raise BadFile(f"the store must exist, but nothing is at {str(place)!r}")
        with explaining(place):
            return cls(place, store_file.connect_to_read(place, repairs=repairs), None)

    def check_resumable(self, identity: Identity, record: Record) -> None:
        held = self._contents()
        check_same(self.path, held.identity, json.loads(json.dumps(identity.values)))
        told, given = held.record.fields(), json.loads(json.dumps(record.fields()))
        if isinstance(record.design, OpenEnded) and isinstance(held.record.design, OpenEnded):
            given["design"] = told["design"]  # the number of models may differ
        for name in ("run", "design"):
            check_same(self.path, {name: json.loads(json.dumps(told[name]))}, {name: given[name]})
        if identity.unknown:
            missing = f"the source of {', '.join(identity.unknown)} is unknown and cannot be compared"
            what = "put the code into a file, or choose another store"
            raise ValueError(f"the store {str(self.path)!r} exists, but {missing}: {what}")

    def check_kept(self) -> None:
        """After closing, compare the file with the contents. If they differ, write the contents elsewhere and raise."""
        if self._lost is None and not store_file.holds(self._place, self._contents()):
            raise self._lose(self._contents())

    def is_there(self) -> bool:
        """Return whether the path still leads to the file that was opened."""
        return self._lost is None and self._file is not None and self._file.is_there()

    def close(self) -> None:
        """Close the file and release the lock. Added trials are stored even if the file is never closed."""
        if self._closed:
            return
        self._closed = True
        if self._close_now in atomic_write.closing:
            atomic_write.closing.remove(self._close_now)
        if self._lock is None:
            self._database.close()
        elif self._lost is not None:
            # Another program may own the file now, so SQLite must not write its log into the file.
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

    def _close_now(self) -> None:
        """Close the store when a signal ends the process. A write of this thread is undone, as by a crash."""
        if self._writing.acquire(timeout=_LAST_WRITE):  # never released: nobody writes afterwards
            if self._database.in_transaction:
                self._database.rollback()
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _contents(self) -> Contents:
        if self._lock is None:  # a reader reads the file again
            with explaining(self.path):
                version = self._pragma("data_version")
                if version != self._version:
                    store_file.limit_time(self._place, self._database)
                    self._hold(serialization.read(self.path, self._database))
                    self._version = version
        return super()._contents()

    def _save(self, chunk: ScoredTrials) -> None:
        def after() -> Contents:
            held = self._contents()
            return replace(held, chunks=(*held.chunks, chunk))

        def save() -> None:
            self._write(lambda: serialization.add_chunk(self._database, chunk), after, quick=True)

        try:
            save()
        except KeyboardInterrupt:  # store the trained models before the program stops
            first = (int(chunk.models[0]), chunk.worlds[0])
            if not self._database.execute("SELECT 1 FROM trials WHERE model = ? AND world = ?", first).fetchone():
                save()
            super()._save(chunk)
            raise
        super()._save(chunk)

    def _set(self, name: str, text: str) -> None:
        before = self._contents()
        after = replace(before, values={**before.values, name: text})
        self._write(lambda: serialization.set_value(self._database, name, text), lambda: after)
        super()._set(name, text)

    def _write(self, change: Callable[[], None], after: Callable[[], Contents], *, quick: bool = False) -> None:
        """Apply ``change`` in one transaction. A committed change survives a crash of this process.

        It also survives a crash of the machine, except for ``quick`` writes of the last half second. If the file is
        lost, the result of ``after``, which includes the change, is written elsewhere and ``StoreLost`` is raised.
        """
        watched = self._file
        if watched is None:
            raise BadFile(f"the store {str(self.path)!r} must be writable, but it was opened only for reading")
        if self._lost is not None:
            raise self._lost
        with explaining(self.path), self._writing:
            if not watched.is_as_left(self._contents):
                raise self._lose(after())
            try:
                self._wait_for_disk(not quick)
                with serialization.transaction(self._database):
                    change()
            except sqlite3.Error:
                if not watched.is_as_left(self._contents):
                    raise self._lose(after()) from None
                raise
            if not watched.is_there():
                raise self._lose(after())
            watched.leave()

    def _lose(self, contents: Contents) -> StoreLost:
        fate = "was changed" if self._file is None else self._file.fate()
        self._lost = store_file.rescue(self._place, self.path, fate, contents)
        return self._lost

    def _wait_for_disk(self, always: bool) -> None:
        # Quick commits need not wait: a log that is not yet on disk is lost only if the machine crashes.
        now = monotonic()
        wait = always or not self._logs or now - self._waited > _WAIT_SECONDS
        if wait != self._waits:
            self._database.execute(f"PRAGMA synchronous = {'FULL' if wait else 'NORMAL'}")
        self._waits, self._waited = wait, now if wait else self._waited

    def _pragma(self, name: str) -> object:
        return self._database.execute(f"PRAGMA {name}").fetchone()[0]


def begin(identity: Identity, record: Record) -> Contents:
    """Return the contents of a store without trials."""
    values = {"identity": as_json("identity", identity.values), "record": as_json("record", record.fields())}
    return Contents({**values, "seconds": "0.0"})


def _pairs(trials: ScoredTrials) -> set[tuple[int, bool]]:
    return set(zip(trials.models.tolist(), trials.present.tolist(), strict=True))
