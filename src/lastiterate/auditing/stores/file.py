"""The file of a store: created whole, opened with care, and every trouble with it told in one sentence."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager, suppress
from json import JSONDecodeError
from typing import TYPE_CHECKING

from lastiterate.data.files import BadFile, as_path, kind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lastiterate.data.files import Location

FORMAT = 2
READABLE = (1, 2)
_APPLICATION = int.from_bytes(b"LIau", "big")  # marks an SQLite file as a store
_PATIENCE = 30.0  # seconds to wait for a reader to finish
_AS_IT_IS = "mode=ro&immutable=1"  # no locks, no log
_SIDECARS = ("-wal", "-shm", "-journal")


def locate(path: Location) -> Path:
    """The store's own path, behind any link, as SQLite puts its other files beside that; a folder is refused."""
    found = as_path(path)
    found = found.resolve() if found.is_symlink() else found
    if (what := kind(found)) not in (None, "file"):
        raise BadFile(f"the store must be a file, got the {what} {str(found)!r}")
    return found


def is_new(path: Path) -> bool:
    """Whether nothing is stored here yet. An empty file counts as nothing."""
    return not path.exists() or path.stat().st_size == 0


def create(path: Path, schema: str, values: dict[str, str]) -> None:
    """Make the file, with these rows in its table ``audit``, under another name: so it is never half there."""
    neighbour = path.with_name(f".{path.name}.new")  # one name suffices, the lock is held
    leftovers = [neighbour, neighbour.with_name(f"{neighbour.name}-journal")]
    with explaining(path):
        for leftover in leftovers:
            leftover.unlink(missing_ok=True)
        try:
            with closing(sqlite3.connect(neighbour)) as database:
                database.executescript(
                    f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {FORMAT};" + schema
                )
                with database:
                    database.executemany("INSERT INTO audit VALUES (?, ?)", values.items())
            for ending in _SIDECARS:  # of a store that was deleted: SQLite would take them for the new one's
                path.with_name(path.name + ending).unlink(missing_ok=True)
            neighbour.replace(path)
        finally:
            for leftover in leftovers:
                leftover.unlink(missing_ok=True)


def format_of(database: sqlite3.Connection) -> int:
    """The number of a store's format."""
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def connect_to_write(path: Path) -> sqlite3.Connection:
    """A connection whose commits survive whatever happens afterwards, and that readers do not disturb."""
    database = _connect(path, "mode=rw")
    try:
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


def connect_to_read(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing and keeps no writer waiting, to a sound store of a known format."""
    # Python must not open the file itself: when it closes a file, SQLite's locks on that are lost.
    with closing(_connect(path, _AS_IT_IS)) as database, suppress(sqlite3.DatabaseError):
        _check_kind(path, database)  # before SQLite leaves traces beside a foreign database
    # Without its log even a sound file may look damaged, hence the second look, with the log.
    try:
        return _sound(path, "mode=ro")
    except sqlite3.OperationalError as error:
        name = getattr(error, "sqlite_errorname", "")
        if name == "SQLITE_READONLY_ROLLBACK":
            _undo_half_a_write(path)
            return _sound(path, "mode=ro")
        log = path.with_name(f"{path.name}-wal")
        if not name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")) or (log.exists() and log.stat().st_size > 0):
            raise
    return _sound(path, _AS_IT_IS)  # in a read-only folder, where SQLite cannot coordinate readers: nobody writes


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=_PATIENCE, isolation_level=None)


def _sound(path: Path, mode: str) -> sqlite3.Connection:
    database = _connect(path, mode)
    try:
        _check_kind(path, database)
        if database.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise BadFile(_damaged(path))
    except BaseException:
        database.close()
        raise
    return database


def _undo_half_a_write(path: Path) -> None:
    """A writer was killed in the instant between journal and log. SQLite repairs that as soon as it may write."""
    with closing(_connect(path, "mode=rw")) as database:
        database.execute("SELECT count(*) FROM sqlite_master").fetchone()


def _check_kind(path: Path, database: sqlite3.Connection) -> None:
    try:
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (found,) = database.execute("PRAGMA user_version").fetchone()
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_NOTADB:
            raise
        application = found = None
    if application != _APPLICATION:
        content = "an empty file" if is_new(path) else "a file of another kind"
        raise BadFile(f"{str(path)!r} must be the store of an audit, got {content}")
    if found not in READABLE:
        known = " and ".join(map(str, READABLE))
        raise BadFile(f"{str(path)!r} has store format {found}, but this version of lastiterate reads {known} only")


@contextmanager
def explaining(path: Path) -> Iterator[None]:
    """Turns what SQLite and the operating system say about the store into a sentence, but for broken constraints."""
    try:
        yield
    except sqlite3.IntegrityError:
        raise
    except sqlite3.Error as error:
        raise BadFile(_sentence(path, error)) from None
    except (JSONDecodeError, UnicodeDecodeError):
        raise BadFile(_damaged(path)) from None
    except OSError as error:
        blamed = f"{error.strerror} {str(error.filename)!r}" if error.filename else str(error)
        raise BadFile(f"the store {str(path)!r} cannot be used: {blamed}") from None


def _sentence(path: Path, error: sqlite3.Error) -> str:
    store = f"the store {str(path)!r}"
    match getattr(error, "sqlite_errorcode", -1) & 0xFF:  # the low byte is the kind, the rest its details
        case sqlite3.SQLITE_FULL:
            return f"the disk of {store} is full: make room, then run the same command again"
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return f"{store} must be writable, got one that is protected or was opened for reading only"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return f"another process keeps {store} busy: try again when it has finished"
        case sqlite3.SQLITE_CANTOPEN:
            return (
                f"{store} cannot be opened: the file must be readable and, after an interruption, its folder writable"
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return _damaged(path)
        case _:
            return f"{store} cannot be used: {error}"


def _damaged(path: Path) -> str:
    return f"the store {str(path)!r} is damaged: restore it from a copy or name another one"
