"""Files that users name: found, opened and decoded, or refused in one sentence that names the file."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

Location: TypeAlias = str | os.PathLike[str]
Kind: TypeAlias = Literal["file", "folder", "device"]


class BadFile(ValueError):
    """A file that is not what it should be. The message is a whole sentence."""


def as_path(value: Location) -> Path:
    """A path that an operating system could know, whether or not something is there."""
    try:
        path = Path(value)
        os.fsencode(path)
        if value == "" or "\0" in str(path):
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(f"path must be the path of a file or folder, got {value!r}") from None
    return path


def kind(path: Path) -> Kind | None:
    """What is at this path; None if nothing is."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise BadFile(f"{str(path)!r} could not be read: {error.strerror}") from None
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "device"


def find(value: Location, wanted: Kind) -> Path:
    """The path of a file or folder that exists."""
    path = as_path(value)
    found = kind(path)
    if found is None:
        raise FileNotFoundError(f"{str(path)!r} must be a {wanted}, but nothing is there")
    if found != wanted:
        raise BadFile(f"{str(path)!r} must be a {wanted}, got a {found}")
    return path


@contextmanager
def decoding(path: Path, wanted: str) -> Iterator[BufferedReader]:
    """The open file. Whatever a decoder raises on damaged bytes becomes one sentence that says what was ``wanted``."""
    find(path, "file")
    try:
        with path.open("rb") as file:
            yield file
    except BadFile:
        raise
    except MemoryError:
        raise BadFile(f"{str(path)!r} must fit into memory, got more than there is") from None
    except Exception as error:  # zipfile, zlib, lzma, gzip, pickle and NumPy promise no common base
        if isinstance(error, OSError) and error.strerror:
            raise BadFile(f"{str(path)!r} could not be read: {error.strerror}") from None
        raise BadFile(f"{str(path)!r} must be {wanted}, got a file that is damaged or something else") from None


@contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Name the file in errors about the arrays that were read from it."""
    try:
        yield
    except ValueError as error:
        raise BadFile(f"{str(path)!r} cannot be used: {error}") from None
    except MemoryError:
        raise BadFile(f"{str(path)!r} must fit into memory as float32, got more than there is") from None
