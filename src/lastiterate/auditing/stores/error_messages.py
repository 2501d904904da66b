"""Error messages of a store: errors of SQLite and of the operating system as one sentence each."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lastiterate.common.errors import DISK_ERRORS, DiskTrouble
from lastiterate.data.files import BadFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def explaining(path: Path) -> Iterator[None]:
    """Convert errors of SQLite and the system to ``BadFile`` or ``DiskTrouble``, except ``IntegrityError``."""
    try:
        yield
    except sqlite3.IntegrityError:
        raise
    except sqlite3.Error as error:
        raise _told(path, error) from None
    except UnicodeDecodeError:
        raise BadFile(damaged(path)) from None
    except OSError as error:
        if not error.strerror:  # one of our errors, which is a sentence already
            raise
        blamed = f"{error.strerror} {str(error.filename)!r}" if error.filename else str(error)
        sentence = f"the store {str(path)!r} cannot be used: {blamed}"
        raise (DiskTrouble if error.errno in DISK_ERRORS else BadFile)(sentence) from None


@contextmanager
def checking(path: Path) -> Iterator[None]:
    """Convert errors raised by values of a wrong shape or type to a ``BadFile`` that says the store is damaged."""
    try:
        yield
    except BadFile:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError):
        raise BadFile(damaged(path)) from None


def damaged(path: Path) -> str:
    """Return the error message for a damaged store."""
    return f"the store {str(path)!r} is damaged: restore it from a copy or name another one"


def _told(path: Path, error: sqlite3.Error) -> BadFile | DiskTrouble:
    store = f"the store {str(path)!r}"
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF  # the low byte is the kind
    if code == sqlite3.SQLITE_FULL:
        return DiskTrouble(f"the disk of {store} is full: make room, then run the same command again")
    if code == sqlite3.SQLITE_IOERR:
        return DiskTrouble(
            f"{store} cannot be read or written ({error}): see that its disk works and has room, then run the same "
            "command again"
        )
    return BadFile(_sentence(path, store, code, error))


def _sentence(path: Path, store: str, code: int, error: sqlite3.Error) -> str:
    match code:
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return f"{store} must be writable, got one that is protected or was opened for reading only"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return f"another process keeps {store} busy: try again when it has finished"
        case sqlite3.SQLITE_CANTOPEN:
            return (
                f"{store} cannot be opened: the file must be readable and, after an interruption, its folder writable"
            )
        case sqlite3.SQLITE_INTERRUPT:
            return f"{store} takes longer to be read than any that lastiterate has written: name another one"
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_ERROR | sqlite3.SQLITE_TOOBIG:
            return damaged(path)
        case _:
            return f"{store} cannot be used: {error}"
