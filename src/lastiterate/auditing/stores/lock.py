"""One process at a time writes to a store."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from lastiterate.data.files import BadFile

if TYPE_CHECKING:
    from pathlib import Path


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
