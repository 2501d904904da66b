"""Files that users name: found, opened and decoded, or refused in one sentence that names the file."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from lastiterate.common.validation import written_integer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader
    from pathlib import Path

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


# How much a file may become in memory. A small one can unpack to any size, and a short text describe a giant.
#
# There is one limit, and one way to raise it: the environment variable ``LASTITERATE_MAX_BYTES``. What takes several
# times its length once it is parsed gets a share of it.

VARIABLE = "LASTITERATE_MAX_BYTES"
USUAL = 2**30  # twice EMNIST, the largest of the data sets that the loaders are for
PARSED = 16  # a file that is parsed into Python's objects may have a 16th: each byte becomes up to 24
TEXTS = 4  # a file of texts may have a quarter: it is copied a few times
LINE = 256  # a line or a text may have a 256th: a tokenizer may make a token of each byte, with 150 bytes about it
_PIECE = 2**20


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes: ...


def most_bytes(share: int = 1) -> int:
    """The limit, or a share of it."""
    text = os.environ.get(VARIABLE)
    most = USUAL if text is None else written_integer(text)
    if most is None or most < 1:
        raise ValueError(f"{VARIABLE} must be a number of bytes, at least 1, got {text!r}")
    return most // share


def too_large(what: str, share: int = 1, got: str = "more", unit: str = "bytes") -> BadFile:
    """The sentence; ``what`` begins it and ends with a verb, as in ``'x.npz' must unpack to``."""
    part = {1: "", 4: "a quarter of "}.get(share, f"a {share}th of ")
    return BadFile(
        f"{what} at most {most_bytes(share):,} {unit}, {part}the limit {VARIABLE}, got {got}: set that environment "
        "variable to allow more"
    )


class Allowance:
    """What may still be read of a file, or of all the files of a data set."""

    def __init__(self) -> None:
        self._left = most_bytes()

    def spend(self, path: Path, count: int, got: str = "more") -> None:
        """Say that so many bytes will be needed for this file, before they are taken."""
        self._left -= count
        if self._left < 0:
            raise too_large(f"{str(path)!r} must unpack to", got=got)


def read_at_most(stream: Readable, limit: int) -> bytearray:
    """So many bytes of a stream or all that it has; in pieces, so that no memory is taken for what is not there."""
    data = bytearray()
    while piece := stream.read(min(_PIECE, limit - len(data))):
        data += piece
    return data


def read_all(stream: Readable, source: Path, share: int = 1) -> bytearray:
    """All of a stream, unless that is more than the share of the limit."""
    data = read_at_most(stream, most_bytes(share) + 1)
    if len(data) > most_bytes(share):
        raise too_large(f"{str(source)!r} must unpack to", share)
    return data


def read_file(file: BufferedReader, path: Path, allowance: Allowance) -> bytearray:
    """All of a file that is as large as it says."""
    size = os.fstat(file.fileno()).st_size
    allowance.spend(path, size, f"{size:,}")
    return read_at_most(file, size)
