"""The file of a store: created whole, and opened with care."""

from __future__ import annotations

import os
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

from lastiterate.auditing.stores.error_messages import damaged, explaining
from lastiterate.auditing.stores.serialization import Contents, check_kind, check_tables, read, write
from lastiterate.common.errors import StoreLost
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


# Is the file that is written to still the store? Others may remove, replace or overwrite it while an audit runs.

_HEAD = 65_536  # bytes at the beginning, which say what is audited: two stores differ there
_File: TypeAlias = tuple[int, int, int, int] | None
_Signature: TypeAlias = tuple[_File, _File]


class Watched:
    """The file that was opened, as it was left by the last write to it.

    It stays open until ``close``: if this process closed a file of its own sooner, it would lose SQLite's locks.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._log = path, path.with_name(f"{path.name}-wal")
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._left = self._signature()
        self._head = self._beginning()

    def is_there(self) -> bool:
        """Whether the path still leads to the file that was opened, and to its log."""
        (store, log), (store_now, log_now) = self._left, self._signature()
        kept = store is not None and store_now is not None and store[:2] == store_now[:2]
        return kept and (log is None or (log_now is not None and log[:2] == log_now[:2]))

    def is_as_left(self, contents: Callable[[], Contents]) -> bool:
        """Whether nobody has written to it, or it holds these contents anyway."""
        if (now := self._signature()) == self._left:
            return True
        if not self.is_there():
            return False
        # The log would hide what was done to the file itself, until it is folded in.
        changed = _size(now) != _size(self._left) or self._beginning() != self._head
        if not holds(self._path, contents(), without_log=changed):
            return False
        self.leave()
        return True

    def leave(self) -> None:
        """From now on it should be as it is now."""
        before, self._left = self._left, self._signature()
        if before[0] != self._left[0]:
            self._head = self._beginning()

    def fate(self) -> str:
        """What has happened to it, in words."""
        store, now = self._left[0], _of(self._path)
        if now is None or store is None:
            return "was removed"
        return "was overwritten, or lost its log," if now[:2] == store[:2] else "was replaced by another file"

    def close(self) -> None:
        """Once SQLite has closed it."""
        os.close(self._descriptor)

    def _signature(self) -> _Signature:
        """What changes when anybody writes to the store or its log, or puts something else there."""
        return _of(self._path), _of(self._log)

    def _beginning(self) -> bytes:
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        return os.read(self._descriptor, _HEAD)


def holds(path: Path, contents: Contents, *, without_log: bool = False) -> bool:
    """Whether somebody who opens the store now finds these contents, every bit of them.

    Args:
        path: of the store.
        contents: what should be in it.
        without_log: do not look at the log. It hides what was done to the file, until it is folded in.
    """
    try:
        with closing(connect_to_read(path, without_log)) as database:
            return read(path, database).same_as(contents)
    except (BadFile, OSError, sqlite3.Error):
        return False


def rescue(path: Path, shown: Path, fate: str, contents: Contents) -> StoreLost:
    """Write the contents under another name: beside the store, in the current folder or in that for temporary files."""
    count = len(contents.trials)
    for place in _places(path):
        try:
            create(place, contents)
        except (BadFile, OSError, sqlite3.Error):
            continue
        near = shown.with_name(place.name) if place.parent == path.parent else place
        return StoreLost(
            f"the store {str(shown)!r} {fate} while the audit ran: its {count} trials are now in {str(near)!r}, "
            "and the same command goes on with that as its store",
            near,
        )
    return StoreLost(
        f"the store {str(shown)!r} {fate} while the audit ran, and its {count} trials could not be written elsewhere",
        None,
    )


def _size(found: _Signature) -> int:
    return found[0][2] if found[0] else 0


def _of(path: Path) -> _File:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _places(path: Path) -> Iterator[Path]:
    """Names that are free, one a folder."""
    folders = [path.parent]
    with suppress(OSError):  # the current folder may be gone as well
        folders.append(Path.cwd())
    folders.append(Path(tempfile.gettempdir()))
    for folder in folders:
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            continue
        for attempt in range(1, 1000):
            name = f"{path.stem}-rescued{'' if attempt == 1 else f'-{attempt}'}{path.suffix}"
            if not os.path.lexists(folder / name):
                yield folder / name
                break


# One process at a time writes to a store.


class WriterLock:
    """Held by the one process that writes to a store; the operating system lets go of it however that process ends.

    It is a file beside the store because SQLite's own locks would keep readers out.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(f"{path.name}.lock")
        while True:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            if not _take(self._descriptor):
                os.close(self._descriptor)
                raise BadFile(f"another process is writing to the store {str(path)!r}: wait for it or stop it first")
            if self._is_there():
                return
            os.close(self._descriptor)  # its last owner deleted it after it was opened here

    def release(self) -> None:
        """Let the next process write."""
        with suppress(OSError):  # Windows deletes no open file: it stays, and does no harm
            self._path.unlink()
        os.close(self._descriptor)

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except FileNotFoundError:
            return False


def _take(descriptor: int) -> bool:
    """Whether the lock is ours. A file system without locks counts as ours: a trial is still never stored twice."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        pass
    return True
