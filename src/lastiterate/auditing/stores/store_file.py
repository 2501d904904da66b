"""The file of a store: creation, connections, protection against changes by others, and the writer's lock."""

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
_LONGEST = 2**28  # largest value in bytes; the largest are runs in which every step differs
_LONG_ENOUGH = 60.0  # time limit for reading, in seconds
_SECONDS_A_BYTE = 1e-6  # addition to the time limit per byte of the file
_INSTRUCTIONS = 100_000  # SQLite instructions between two checks of the time limit
_SIDECARS = ("-wal", "-shm", "-journal")


def locate(path: Location) -> Path:
    """Return the store's path with links resolved, since SQLite puts its log beside the real file. Refuse a folder."""
    found = as_path(path)
    try:
        found = found.resolve() if found.is_symlink() else found
    except RuntimeError:  # a loop of links, in Python before 3.13
        raise BadFile(f"the store must be a file, got a link that leads back to itself, {str(found)!r}") from None
    if (what := kind(found)) not in (None, "file"):
        raise BadFile(f"the store must be a file, got the {what} {str(found)!r}")
    return found


def is_new(path: Path) -> bool:
    """Return whether the file is missing or empty."""
    return not path.exists() or path.stat().st_size == 0


def create(path: Path, contents: Contents) -> None:
    """Write the contents to a temporary file and rename it, so that the store is never incomplete."""
    neighbour = path.with_name(f".{path.name}.new")  # a fixed name is safe: this process holds the lock
    leftovers = [neighbour, neighbour.with_name(f"{neighbour.name}-journal")]
    with explaining(path):
        for leftover in leftovers:
            leftover.unlink(missing_ok=True)
        try:
            with closing(sqlite3.connect(neighbour, isolation_level=None)) as database:
                write(database, contents)
            for ending in _SIDECARS:  # left by a deleted store: SQLite would apply them to the new one
                path.with_name(path.name + ending).unlink(missing_ok=True)
            neighbour.replace(path)
        finally:
            for leftover in leftovers:
                leftover.unlink(missing_ok=True)


def connect_to_write(path: Path) -> sqlite3.Connection:
    """Open a connection for writing. Commits survive a crash, and readers do not block the writer."""
    database = _connect(path, "mode=rw")
    try:
        check_tables(path, database)
        # On file systems without WAL, SQLite keeps using a journal, which is as safe but slower.
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
    except BaseException:
        database.close()
        raise
    return database


def close_written(database: sqlite3.Connection) -> None:
    """Close a writer's connection. Merge the log into the store, so that one file can be copied or read anywhere."""
    with suppress(sqlite3.Error):  # a reader is connected or the disk is full: the next session merges the log
        database.execute("PRAGMA busy_timeout = 0")
        database.execute("PRAGMA journal_mode = DELETE")
    database.close()


def connect_to_read(path: Path, without_log: bool = False, *, repairs: bool = True) -> sqlite3.Connection:
    """Open a read-only connection that does not block a writer. Raise unless the file is an undamaged store.

    An incomplete write of a killed writer is rolled back first if ``repairs``, and refused otherwise.
    """
    if without_log:
        return _sound(path, _AS_IT_IS)
    # Python must not open the file itself: closing it would release SQLite's locks on the file.
    with closing(_connect(path, _AS_IT_IS)) as database, suppress(sqlite3.DatabaseError):
        check_kind(path, database)  # before SQLite creates files beside a foreign database
    # Without its log even an undamaged file may look damaged, hence the second check with the log.
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
    return _sound(path, _AS_IT_IS)  # a read-only folder: SQLite cannot lock there, and nobody writes


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open a connection that does not trust the content of the file."""
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
    """Interrupt queries that take longer than reading a file of this size can take."""
    until = monotonic() + _LONG_ENOUGH + path.stat().st_size * _SECONDS_A_BYTE
    database.set_progress_handler(lambda: monotonic() > until, _INSTRUCTIONS)


def _undo_half_a_write(path: Path) -> None:
    """Open the file for writing, so that SQLite rolls back the write of a writer killed between journal and log."""
    with closing(_connect(path, "mode=rw")) as database:
        database.execute("SELECT count(*) FROM sqlite_master").fetchone()


# Watching: detect that the file was removed, replaced or overwritten while an audit runs.

_HEAD = 65_536  # bytes at the beginning of the file; they describe the audit, so two stores differ there
_File: TypeAlias = tuple[int, int, int, int] | None
_Signature: TypeAlias = tuple[_File, _File]


class Watched:
    """The opened file and its state after the last write.

    The file stays open until ``close``: closing it sooner would release SQLite's locks.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._log = path, path.with_name(f"{path.name}-wal")
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._left = self._signature()
        self._head = self._beginning()

    def is_there(self) -> bool:
        """Return whether the path still leads to the file that was opened, and to its log."""
        (store, log), (store_now, log_now) = self._left, self._signature()
        kept = store is not None and store_now is not None and store[:2] == store_now[:2]
        return kept and (log is None or (log_now is not None and log[:2] == log_now[:2]))

    def is_as_left(self, contents: Callable[[], Contents]) -> bool:
        """Return whether nobody else has written to the file, or it holds these contents anyway."""
        if (now := self._signature()) == self._left:
            return True
        if not self.is_there():
            return False
        # The log hides changes of the file itself until the log is merged.
        changed = _size(now) != _size(self._left) or self._beginning() != self._head
        if not holds(self._path, contents(), without_log=changed):
            return False
        self.leave()
        return True

    def leave(self) -> None:
        """Remember the current state of the file as the expected one."""
        before, self._left = self._left, self._signature()
        if before[0] != self._left[0]:
            self._head = self._beginning()

    def fate(self) -> str:
        """Describe in words what has happened to the file."""
        store, now = self._left[0], _of(self._path)
        if now is None or store is None:
            return "was removed"
        return "was overwritten, or lost its log," if now[:2] == store[:2] else "was replaced by another file"

    def close(self) -> None:
        """Close the file. Call this after SQLite has closed it."""
        os.close(self._descriptor)

    def _signature(self) -> _Signature:
        """Return device, inode, size and time of the store and its log, which change with every write."""
        return _of(self._path), _of(self._log)

    def _beginning(self) -> bytes:
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        return os.read(self._descriptor, _HEAD)


def holds(path: Path, contents: Contents, *, without_log: bool = False) -> bool:
    """Return whether the store holds exactly these contents.

    Args:
        path: path of the store.
        contents: the expected contents.
        without_log: ignore the log, which hides changes of the file until the log is merged.
    """
    try:
        with closing(connect_to_read(path, without_log)) as database:
            return read(path, database).same_as(contents)
    except (BadFile, OSError, sqlite3.Error):
        return False


def rescue(path: Path, shown: Path, fate: str, contents: Contents) -> StoreLost:
    """Write the contents to a new file: beside the store, in the current folder, or in the temporary folder.

    Return the error to raise, which names the new file.
    """
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
    """Yield one unused file name per writable folder."""
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


# Lock: one process at a time writes to a store.


class WriterLock:
    """A lock held by the one process that writes to a store. The operating system releases it when the process ends.

    The lock is a file beside the store, because SQLite's own locks would block readers.
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
            os.close(self._descriptor)  # the last owner deleted the lock file after this process opened it

    def release(self) -> None:
        """Let the next process write."""
        with suppress(OSError):  # Windows does not delete open files: a remaining lock file is harmless
            self._path.unlink()
        os.close(self._descriptor)

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except FileNotFoundError:
            return False


def _take(descriptor: int) -> bool:
    """Return whether this process got the lock. True on file systems without locks: no trial is stored twice anyway."""
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
