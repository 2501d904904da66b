"""The file of a store: created whole, and opened with care."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from time import monotonic
from typing import TYPE_CHECKING

from lastiterate.auditing.stores.contents import Contents, write
from lastiterate.auditing.stores.schema import check_kind, check_tables
from lastiterate.auditing.stores.trouble import damaged, explaining
from lastiterate.data.files import BadFile, as_path, kind

if TYPE_CHECKING:
    from pathlib import Path

    from lastiterate.data.files import Location

_PATIENCE = 30.0  # seconds to wait for a reader to finish
_AS_IT_IS = "mode=ro&immutable=1"  # no locks, no log
_LONGEST = 2**28  # bytes of one value; the longest are runs whose every step differs
_LONG_ENOUGH = 60.0  # seconds for anything that is read
_SECONDS_A_BYTE = 1e-6  # more, for large files
_INSTRUCTIONS = 100_000  # of SQLite between two looks at the clock
_SIDECARS = ("-wal", "-shm", "-journal")


def locate(path: Location) -> Path:
    """The store's own path, behind any link, as SQLite puts its other files beside that; a folder is refused."""
    found = as_path(path)
    try:
        found = found.resolve() if found.is_symlink() else found
    except RuntimeError:  # as Python says it before 3.13
        raise BadFile(f"the store must be a file, got a link that leads back to itself, {str(found)!r}") from None
    if (what := kind(found)) not in (None, "file"):
        raise BadFile(f"the store must be a file, got the {what} {str(found)!r}")
    return found


def is_new(path: Path) -> bool:
    """Whether nothing is stored here yet. An empty file counts as nothing."""
    return not path.exists() or path.stat().st_size == 0


def create(path: Path, contents: Contents) -> None:
    """Make the file, with all that is to be in it, under another name: so it is never half there."""
    neighbour = path.with_name(f".{path.name}.new")  # one name suffices, the lock is held
    leftovers = [neighbour, neighbour.with_name(f"{neighbour.name}-journal")]
    with explaining(path):
        for leftover in leftovers:
            leftover.unlink(missing_ok=True)
        try:
            with closing(sqlite3.connect(neighbour, isolation_level=None)) as database:
                write(database, contents)
            for ending in _SIDECARS:  # of a store that was deleted: SQLite would take them for the new one's
                path.with_name(path.name + ending).unlink(missing_ok=True)
            neighbour.replace(path)
        finally:
            for leftover in leftovers:
                leftover.unlink(missing_ok=True)


def connect_to_write(path: Path) -> sqlite3.Connection:
    """A connection whose commits survive whatever happens afterwards, and that readers do not disturb."""
    database = _connect(path, "mode=rw")
    try:
        check_tables(path, database)
        # Where a file system has no WAL, SQLite stays with a journal: as safe, only slower.
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
    except BaseException:
        database.close()
        raise
    return database


def close_written(database: sqlite3.Connection) -> None:
    """Fold everything into the one file, so that it can be copied or read in a folder where nothing can be written."""
    with suppress(sqlite3.Error):  # a reader is there, or the disk is full: the next session will do it
        database.execute("PRAGMA busy_timeout = 0")
        database.execute("PRAGMA journal_mode = DELETE")
    database.close()


def connect_to_read(path: Path, without_log: bool = False, *, repairs: bool = True) -> sqlite3.Connection:
    """A connection that changes nothing and keeps no writer waiting, to a sound store of a known format.

    What a writer that was killed has left half done is undone first, if ``repairs``, and otherwise refused.
    """
    if without_log:
        return _sound(path, _AS_IT_IS)
    # Python must not open the file itself: when it closes a file, SQLite's locks on that are lost.
    with closing(_connect(path, _AS_IT_IS)) as database, suppress(sqlite3.DatabaseError):
        check_kind(path, database)  # before SQLite leaves traces beside a foreign database
    # Without its log even a sound file may look damaged, hence the second look, with the log.
    try:
        return _sound(path, "mode=ro")
    except sqlite3.OperationalError as error:
        name = getattr(error, "sqlite_errorname", "")
        if name == "SQLITE_READONLY_ROLLBACK" and not repairs:
            raise BadFile(
                f"the store {str(path)!r} has half of a write in it: `lastiterate report` undoes that, and reads it"
            ) from None
        if name == "SQLITE_READONLY_ROLLBACK":
            _undo_half_a_write(path)
            return _sound(path, "mode=ro")
        log = path.with_name(f"{path.name}-wal")
        if not name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")) or (log.exists() and log.stat().st_size > 0):
            raise
    return _sound(path, _AS_IT_IS)  # in a read-only folder, where SQLite cannot coordinate readers: nobody writes


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    """A connection that trusts nothing in the file: it may be anybody's."""
    place = f"{path.absolute().as_uri()}?{mode}"
    database = sqlite3.connect(place, uri=True, timeout=_PATIENCE, isolation_level=None)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
    database.execute("PRAGMA trusted_schema = OFF")
    database.execute("PRAGMA cell_size_check = ON")
    return database


def _sound(path: Path, mode: str) -> sqlite3.Connection:
    database = _connect(path, mode)
    try:
        database.execute("PRAGMA query_only = ON")
        limit_time(path, database)
        check_kind(path, database)
        check_tables(path, database)
        if database.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise BadFile(damaged(path))
    except BaseException:
        database.close()
        raise
    return database


def limit_time(path: Path, database: sqlite3.Connection) -> None:
    """From now on, interrupt what takes longer than a file of this size can."""
    until = monotonic() + _LONG_ENOUGH + path.stat().st_size * _SECONDS_A_BYTE
    database.set_progress_handler(lambda: monotonic() > until, _INSTRUCTIONS)


def _undo_half_a_write(path: Path) -> None:
    """A writer was killed in the instant between journal and log. SQLite repairs that as soon as it may write."""
    with closing(_connect(path, "mode=rw")) as database:
        database.execute("SELECT count(*) FROM sqlite_master").fetchone()
