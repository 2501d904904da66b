"""NumPy archives, the form in which most small data sets are passed around.

What an archive says about itself is not believed: not the sizes in the directory of the zip file, and not the shape in
the header of an array, before so many bytes have been read.
"""

from __future__ import annotations

import math
from io import BytesIO
from typing import TYPE_CHECKING
from zipfile import ZIP_DEFLATED, ZIP_LZMA, ZIP_STORED, ZipFile

import numpy as np
from numpy.lib import format as npy

from lastiterate.arrays import NumberArray
from lastiterate.data.dataset import Dataset
from lastiterate.data.files import BadFile, Location, as_path, blaming, decoding
from lastiterate.data.limits import Allowance, Readable, read_at_most

if TYPE_CHECKING:
    from io import BufferedReader
    from pathlib import Path

KEYS = ("x_train", "y_train", "x_test", "y_test")
_SIP = 4096  # bytes
_LONGEST_HEADER = 10_000  # NumPy's own limit
_LARGEST_DIRECTORY = 2**24  # of the zip file, at about 60 bytes an array


def load_npz(path: Location) -> Dataset:
    """The arrays ``x_train, y_train, x_test, y_test`` of an .npz file; it may hold others. Nothing is unpickled.

    Images and labels as :meth:`Dataset.from_arrays` takes them. The data set is named after the file.
    """
    source = as_path(path)
    allowance = Allowance()
    with decoding(source, "an .npz archive of numeric arrays") as file:
        if file.peek(6).startswith(npy.MAGIC_PREFIX):
            raise BadFile(f"{str(source)!r} must be an .npz archive, got a single array")
        with ZipFile(_Cautious(file)) as archive:
            names = {name.removesuffix(".npy"): name for name in archive.namelist()}
            missing = [key for key in KEYS if key not in names]
            if missing:
                raise BadFile(f"{str(source)!r} must hold {', '.join(KEYS)}, got no {', '.join(missing)}")
            x_train, y_train, x_test, y_test = (_read(source, archive, names[key], allowance) for key in KEYS)
    with blaming(source):
        return Dataset.from_arrays(source.stem, x_train, y_train, x_test, y_test)


class _Cautious:
    """A file of which nobody gets much at once: zipfile reads the whole directory of an archive, however long."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        found = self._file.read(min(size, _LARGEST_DIRECTORY + 1) if size >= 0 else _LARGEST_DIRECTORY + 1)
        if len(found) > _LARGEST_DIRECTORY:
            raise ValueError
        return found


def _read(path: Path, archive: ZipFile, name: str, allowance: Allowance) -> NumberArray:
    """One array."""
    method = archive.getinfo(name).compress_type
    if method not in (ZIP_STORED, ZIP_DEFLATED, ZIP_LZMA):
        raise ValueError
    with archive.open(name) as opened:
        stream: Readable = _InSips(opened) if method == ZIP_LZMA else opened
        shape, by_columns, dtype = _header(stream)
        size = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or not dtype.itemsize:
            raise ValueError
        allowance.spend(path, size, f"the shape {shape} of {dtype} for {name!r}")
        data = read_at_most(stream, size + 1)  # to the end, where the checksum is compared
    if len(data) != size:
        raise ValueError
    return np.frombuffer(data, dtype).reshape(shape, order="F" if by_columns else "C")


class _InSips:
    """LZMA is unpacked as far as it was read, however much that becomes: 4 KiB become less than 32 MiB."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream

    def read(self, size: int, /) -> bytes:
        return self._stream.read(min(size, _SIP))


def _header(stream: Readable) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type, from a header whose length was checked before it was read."""
    start = stream.read(len(npy.MAGIC_PREFIX) + 2)
    width = 2 if start.endswith(b"\1\0") else 4
    length = stream.read(width)
    if int.from_bytes(length, "little") > _LONGEST_HEADER:
        raise ValueError
    whole = BytesIO(start + length + stream.read(int.from_bytes(length, "little")))
    version = npy.read_magic(whole)
    reads = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    return reads[version](whole)
