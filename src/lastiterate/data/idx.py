"""The idx files of MNIST and the data sets made in its image, such as Fashion-MNIST and KMNIST.

A file is a magic number (two zero bytes, a type, the number of axes), the length of each axis, and the data.
"""

from __future__ import annotations

import gzip
import math
import struct
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.arrays import NumberArray
from lastiterate.data.dataset import Dataset
from lastiterate.data.files import BadFile, Location, blaming, decoding, find, kind
from lastiterate.data.limits import Allowance, Readable, read_at_most

if TYPE_CHECKING:
    from pathlib import Path

_STEMS = {
    "x_train": ("train-images", "idx3-ubyte"),
    "y_train": ("train-labels", "idx1-ubyte"),
    "x_test": ("t10k-images", "idx3-ubyte"),
    "y_test": ("t10k-labels", "idx1-ubyte"),
}
_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MOST_AXES = 4
_GZIP = b"\x1f\x8b"


def load_idx(folder: Location) -> Dataset:
    """The four files of an MNIST-style folder, plain or gzip-compressed. The data set is named after the folder."""
    source = find(folder, "folder")
    allowance = Allowance()
    x_train, y_train, x_test, y_test = (_read(_choose(source, key), allowance) for key in _STEMS)
    with blaming(source):
        return Dataset.from_arrays(source.resolve().name or "idx", x_train, y_train, x_test, y_test)


def is_idx(folder: Path) -> bool:
    """Whether any of the four files is there."""
    return any(kind(folder / name) for key in _STEMS for name in _names(key))


def _names(key: str) -> list[str]:
    stem, ending = _STEMS[key]
    return [f"{stem}{separator}{ending}{packed}" for packed in ("", ".gz") for separator in "-."]


def _choose(folder: Path, key: str) -> Path:
    """The first name under which a file is there. Archives unpack to folders of these names, which are passed over."""
    there = {name: what for name in _names(key) if (what := kind(folder / name))}
    if not there:
        raise FileNotFoundError(f"{str(folder)!r} must hold one of {', '.join(_names(key))}, but none is there")
    return folder / next((name for name, what in there.items() if what == "file"), next(iter(there)))


def _read(path: Path, allowance: Allowance) -> NumberArray:
    with decoding(path, "an idx file, plain or gzip-compressed") as file:
        packed = file.read(2) == _GZIP  # whatever the name says: browsers unpack some files and not others
        file.seek(0)
        if not packed:
            return _parse(path, file, allowance)
        with gzip.GzipFile(fileobj=file) as unpacked:
            return _parse(path, unpacked, allowance)


def _parse(path: Path, stream: Readable, allowance: Allowance) -> NumberArray:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES or not 1 <= magic[3] <= _MOST_AXES:
        found = magic.hex(" ") or "an empty file"
        raise BadFile(f"{str(path)!r} must begin with the magic number of idx, such as 00 00 08 03, got {found}")
    dtype, axes = np.dtype(_TYPES[magic[2]]), magic[3]
    lengths = stream.read(4 * axes)
    if len(lengths) < 4 * axes:
        raise BadFile(f"{str(path)!r} must have the lengths of {axes} axes in its header, got a file that ends there")
    shape = struct.unpack(f">{axes}I", lengths)
    size = math.prod(shape) * dtype.itemsize
    allowance.spend(path, size, f"the shape {shape} in its header")
    data = read_at_most(stream, size + 1)
    if len(data) != size:
        found = "more" if len(data) > size else str(len(data))
        raise BadFile(f"{str(path)!r} must hold {size} bytes after its header, for the shape {shape}, got {found}")
    return np.frombuffer(data, dtype).reshape(shape)
