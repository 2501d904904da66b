"""The file of a store: creation, connections, detection of changes by other programs, and the writer's lock."""

import os
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import TypeAlias

from lastiterate.auditing.stores import serialization
from lastiterate.auditing.stores.serialization import Contents, check_kind, check_tables, damaged, explaining
from lastiterate.common.errors import StoreLost
from lastiterate.data.files import BadFile, Location, as_path, kind

_PATIENCE = 30.0  # seconds to wait for a reader to finish
_AS_IT_IS = "mode=ro&immutable=1"  # read without locks and without the log
_LONGEST = 2**28  # largest value in bytes; the largest values are runs with different settings at each step
_LONG_ENOUGH = 60.0  # time limit for reading, in seconds
_SECONDS_A_BYTE = 1e-6  # addition to the time limit per byte of the file
_INSTRUCTIONS = 100_000  # SQLite instructions between two checks of the time limit
_MERGE_TRIES = 50  # attempts to merge the log at the end, while a reader is connected
_SIDECARS = ("-wal", "-shm", "-journal")


def locate(path: Location) -> Path:
    """Return the store's path with links resolved. Raise if the path is a folder."""
    found = as_path(path)
    try:
        found = found.resolve() if found.is_symlink() else found
    except RuntimeError:  # a loop of links, in Python before 3.13
        raise BadFile(f"the store must be a file, got a link to itself, {str(found)!r}") from None
    if (what := kind(found)) not in (None, "file"):
        raise BadFile(f"the store must be a file, got the {what} {str(found)!r}")
    return found


def create(path: Path, contents: Contents) -> None:
    """Write the contents to a temporary file and rename it, so that the store is never incomplete."""
    neighbour = path.with_name(f".{path.name}.new")  # a fixed name is safe: this process holds the lock
    leftovers = [neighbour, neighbour.with_name(f"{neighbour.name}-journal")]
    with explaining(path):
        for leftover in leftovers:
            leftover.unlink(missing_ok=True)
        try:
            with closing(sqlite3.connect(neighbour, isolation_level=None)) as database:
                serialization.write(database, contents)
            for ending in _SIDECARS:  # files of a deleted store, which SQLite would apply to the new store
                path.with_name(path.name + ending).unlink(missing_ok=True)
            neighbour.replace(path)
        finally:
            for leftover in leftovers:
                leftover.unlink(missing_ok=True)


def connect_to_write(path: Path) -> sqlite3.Connection:
    """Open a connection for writing. Commits survive a crash, and readers do not block the writer.

    A store of an older format is converted to the current format in one transaction.
    """
    database = _connect(path, "mode=rw")
    try:
        check_tables(path, database)
        # On file systems without write-ahead logs, SQLite uses a rollback journal, which is as safe but slower.
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        if serialization.format_of(database) != serialization.FORMAT:
            serialization.write(database, serialization.read(path, database))
    except BaseException:
        database.close()
        raise
    return database


def close_written(database: sqlite3.Connection) -> None:
    """Close a writer's connection. The log is merged into the store, so that the store is a single file."""
    with suppress(sqlite3.Error):
        database.execute("PRAGMA busy_timeout = 0")
    for _ in range(_MERGE_TRIES):
        try:
            database.execute("PRAGMA journal_mode = DELETE")
            break
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorname", "") != "SQLITE_BUSY":
                break  # the disk is full: the next session merges the log
            sleep(_PAUSE)  # a reader, such as ``watch``, is connected for a moment
        except sqlite3.Error:
            break
    database.close()


def connect_to_read(path: Path, without_log: bool = False, *, repairs: bool = True) -> sqlite3.Connection:
    """Open a read-only connection that does not block a writer. Raise unless the file is an undamaged store.

    If a writer was killed during a write, the write is rolled back first. If ``repairs`` is false, raise instead.
    """
    if without_log:
        return _sound(path, _AS_IT_IS)
    # Python must not open the file itself: closing it would release SQLite's locks on the file.
    with closing(_connect(path, _AS_IT_IS)) as database, suppress(sqlite3.DatabaseError):
        limit_time(path, database)
        check_kind(path, database)  # before SQLite creates files beside a foreign database
    # An undamaged file may look damaged without its log, so the file is checked again with the log.
    try:
        return _sound(path, "mode=ro")
    except sqlite3.OperationalError as error:
        name = getattr(error, "sqlite_errorname", "")
        if name == "SQLITE_READONLY_ROLLBACK":
            if not repairs:
                what = "run `lastiterate report`, which undoes this write"
                raise BadFile(f"the store {str(path)!r} has an incomplete write: {what}") from None
            with closing(_connect(path, "mode=rw")) as database:
                database.execute("SELECT count(*) FROM sqlite_master").fetchone()  # SQLite rolls the write back
            return _sound(path, "mode=ro")
        log = path.with_name(f"{path.name}-wal")
        if not name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")) or (log.exists() and log.stat().st_size > 0):
            raise
    return _sound(path, _AS_IT_IS)  # in a read-only folder SQLite cannot lock files, and nobody can write


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open a connection that does not trust the content of the file. SQLite would wait forever for a pipe beside it."""
    for beside in (path.with_name(path.name + ending) for ending in _SIDECARS):
        if (what := kind(beside)) not in (None, "file"):
            raise BadFile(f"the store {str(path)!r} cannot be used: {str(beside)!r} must be a file, got a {what}")
    place = f"{path.absolute().as_uri()}?{mode}"
    # A signal may close the store from another thread; ``Store`` has a lock for it.
    database = sqlite3.connect(place, uri=True, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
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
    """Interrupt queries that exceed a time limit, which depends on the file's size."""
    until = monotonic() + _LONG_ENOUGH + path.stat().st_size * _SECONDS_A_BYTE
    database.set_progress_handler(lambda: monotonic() > until, _INSTRUCTIONS)


_HEAD = 65_536  # bytes at the beginning of the file that are compared; different stores differ there
_File: TypeAlias = tuple[int, int, int, int] | None  # device, inode, size and time of the last change


class Watched:
    """The file and its state after the last write. They show whether another program removed or changed the file.

    The file stays open until ``close``, because closing a file releases SQLite's locks on it.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._log = path, path.with_name(f"{path.name}-wal")
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._left = self._signature()
        self._head = self._beginning()

    def is_there(self) -> bool:
        """Return whether the opened file and its log still exist at their paths."""
        (store, log), (store_now, log_now) = self._left, self._signature()
        return _is_same(store, store_now) and (log is None or _is_same(log, log_now))

    def is_as_left(self, contents: Callable[[], Contents]) -> bool:
        """Return whether the file is unchanged since the last write, or holds these contents."""
        if (now := self._signature()) == self._left:
            return True
        if not self.is_there():
            return False
        # The log hides changes of the file itself until the log is merged.
        sizes = [0 if store is None else store[2] for store, _ in (now, self._left)]
        changed = sizes[0] != sizes[1] or self._beginning() != self._head
        if not holds(self._path, contents(), without_log=changed):
            return False
        self.leave()
        return True

    def leave(self) -> None:
        before, self._left = self._left, self._signature()
        if before[0] != self._left[0]:
            self._head = self._beginning()

    def fate(self) -> str:
        now = _stat(self._path)
        if now is None:
            return "was removed"
        return "was overwritten, or lost its log," if _is_same(self._left[0], now) else "was replaced by another file"

    def close(self) -> None:
        os.close(self._descriptor)

    def _signature(self) -> tuple[_File, _File]:
        return _stat(self._path), _stat(self._log)

    def _beginning(self) -> bytes:
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        return os.read(self._descriptor, _HEAD)


def holds(path: Path, contents: Contents, *, without_log: bool = False) -> bool:
    """Return whether the store, with or without its log, holds exactly these contents."""
    try:
        with closing(connect_to_read(path, without_log)) as database:
            return serialization.read(path, database).same_as(contents)
    except (BadFile, OSError, sqlite3.Error):
        return False


def rescue(path: Path, shown: Path, fate: str, contents: Contents) -> StoreLost:
    """Write the contents to a new file, beside the store if possible. Return an error that names the new file."""
    lost = f"the store {str(shown)!r} {fate} while the audit ran"
    count = len(contents.trials)
    for place in _places(path):
        try:
            create(place, contents)
        except (BadFile, OSError, sqlite3.Error):
            continue
        near = shown.with_name(place.name) if place.parent == path.parent else place
        moved = f"its {count} trials are now in {str(near)!r}, and the same command continues with this file as --store"
        return StoreLost(f"{lost}: {moved}", near)
    return StoreLost(f"{lost}, and its {count} trials could not be written elsewhere", None)


def _stat(path: Path) -> _File:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _is_same(one: _File, other: _File) -> bool:
    return one is not None and other is not None and one[:2] == other[:2]


def _places(path: Path) -> Iterator[Path]:
    folders = [path.parent]
    with suppress(OSError):  # the current folder may have been removed
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


_TRIES, _PAUSE = 10, 0.02  # attempts to take the lock, and seconds between them


class WriterLock:
    """A lock that allows only one writer. The operating system releases the lock when the process ends.

    The lock is a file beside the store, because SQLite's own locks would block readers.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(f"{path.name}.lock")
        while True:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            if not self._taken():
                os.close(self._descriptor)
                raise BadFile(f"another process is writing to the store {str(path)!r}: wait for it or stop it first")
            if self._is_there():
                return
            os.close(self._descriptor)  # the previous owner deleted the lock file after this process had opened it

    def _taken(self) -> bool:
        for _ in range(_TRIES):  # a reader that looks whether somebody writes holds the lock for a moment
            if _take(self._descriptor):
                return True
            sleep(_PAUSE)
        return False

    def release(self) -> None:
        with suppress(OSError):  # Windows does not delete open files; a lock file that remains is harmless
            self._path.unlink()
        os.close(self._descriptor)

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except FileNotFoundError:
            return False


def is_written(path: Path) -> bool:
    """Return whether a process holds the writer's lock of the store. A lock file that nobody holds does not count."""
    try:
        descriptor = os.open(path.with_name(f"{path.name}.lock"), os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return False
    try:
        return not _take(descriptor, shared=True)
    finally:
        os.close(descriptor)


def _take(descriptor: int, *, shared: bool = False) -> bool:
    """Return whether this process got the lock. Return True on file systems without locks."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        pass
    return True
