"""How much a file may become in memory. A small one can unpack to any size, and a short text describe a giant.

There is one limit, and one way to raise it: the environment variable ``LASTITERATE_MAX_BYTES``. What takes several
times its length once it is parsed gets a share of it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from lastiterate.data.files import BadFile
from lastiterate.values import written_integer

if TYPE_CHECKING:
    from io import BufferedReader
    from pathlib import Path

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
