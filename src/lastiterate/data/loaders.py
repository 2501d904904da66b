"""Loaders of image data sets: CIFAR-10, MNIST-style idx folders, NumPy archives, and the digits of scikit-learn.

CIFAR-10 is read in its Python version (pickles) and in its binary version. Pickles are read without running their code.
A size that a zip directory or an array header states is not trusted: no memory is reserved before bytes are read.
"""

import gzip
import math
import struct
from importlib import import_module
from io import BufferedReader, BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_LZMA, ZIP_STORED, ZipFile

import numpy as np
from numpy.lib import format as npy

from lastiterate.common.errors import install_hint
from lastiterate.common.types import IntArray, NumberArray, UInt8Array
from lastiterate.common.validation import number
from lastiterate.data.dataset import Dataset
from lastiterate.data.files import (
    Allowance,
    BadFile,
    Location,
    Readable,
    as_path,
    blaming,
    decoding,
    find,
    kind,
    read_at_most,
    read_batch,
    read_file,
)

CLASSES = 10
_PIXELS = 3 * 32 * 32  # the red, then the green, then the blue values
_TRAIN = [f"data_batch_{number}" for number in range(1, 6)]
_TEST = "test_batch"
_PLACES = [("", ""), ("", ".bin"), ("cifar-10-batches-py", ""), ("cifar-10-batches-bin", ".bin")]


def load_cifar10(folder: Location) -> Dataset:
    """Load CIFAR-10 from its folder or from the parent folder. Pickles are read without running their code."""
    source = find(folder, "folder")
    place = cifar10_place(source)
    if place is None:
        raise FileNotFoundError(f"{str(source)!r} must hold {_TRAIN[0]} or {_TRAIN[0]}.bin, but neither is there")
    inner, ending = place
    allowance = Allowance()
    batches = [_read_cifar10(find(inner / (name + ending), "file"), allowance) for name in [*_TRAIN, _TEST]]
    with blaming(source):
        x_train, y_train = (np.concatenate(parts) for parts in zip(*batches[:-1], strict=True))
        return Dataset.from_arrays("cifar10", x_train, y_train, *batches[-1], classes=CLASSES)


def cifar10_place(folder: Path) -> tuple[Path, str] | None:
    """Return the folder of CIFAR-10's files and the ending of their names, or None if there are no such files."""
    for inner, ending in _PLACES:
        if any(kind(folder / inner / (name + ending)) for name in [*_TRAIN, _TEST]):
            return folder / inner, ending
    return None


def _read_cifar10(path: Path, allowance: Allowance) -> tuple[UInt8Array, UInt8Array]:
    rows, labels = _read_binary(path, allowance) if path.suffix == ".bin" else read_batch(path, allowance)
    if rows.shape[1] != _PIXELS or not len(rows):
        raise BadFile(f"{str(path)!r} must hold images of {_PIXELS} bytes, got data of shape {rows.shape}")
    if len(labels) != len(rows):
        raise BadFile(f"{str(path)!r} must hold one label for each of its {len(rows)} images, got {len(labels)}")
    if labels.max() >= CLASSES:
        raise BadFile(f"{str(path)!r} must hold labels in 0..{CLASSES - 1}, got {labels.max()}")
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels


def _read_binary(path: Path, allowance: Allowance) -> tuple[UInt8Array, UInt8Array]:
    """Return images and labels of a binary batch. Each record is one byte for the label, then the pixels."""
    with decoding(path, "a binary batch of CIFAR-10") as file:
        content = np.frombuffer(read_file(file, path, allowance), np.uint8)
    if not content.size or content.size % (1 + _PIXELS):
        raise BadFile(
            f"{str(path)!r} must hold a multiple of {1 + _PIXELS} bytes, the size of one image, got {content.size}"
        )
    records = content.reshape(-1, 1 + _PIXELS)
    return records[:, 1:], records[:, 0]


# idx files: the format of MNIST, Fashion-MNIST and KMNIST. A file is a magic number (two zero bytes, a type, the number
# of axes), the length of each axis, and the data.

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
    """Load the four idx files of a folder, plain or gzip, as for MNIST. The data set is named after the folder."""
    source = find(folder, "folder")
    allowance = Allowance()
    x_train, y_train, x_test, y_test = (_read(_choose(source, key), allowance) for key in _STEMS)
    with blaming(source):
        return Dataset.from_arrays(source.resolve().name or "idx", x_train, y_train, x_test, y_test)


def is_idx(folder: Path) -> bool:
    """Return whether any of the four idx files is in the folder."""
    return any(kind(folder / name) for key in _STEMS for name in _names(key))


def _names(key: str) -> list[str]:
    stem, ending = _STEMS[key]
    return [f"{stem}{separator}{ending}{packed}" for packed in ("", ".gz") for separator in "-."]


def _choose(folder: Path, key: str) -> Path:
    """Return the first existing file, or else the first folder, because archives may unpack to folders."""
    there = {name: what for name in _names(key) if (what := kind(folder / name))}
    if not there:
        raise FileNotFoundError(f"{str(folder)!r} must hold one of {', '.join(_names(key))}, but none is there")
    return folder / next((name for name, what in there.items() if what == "file"), next(iter(there)))


def _read(path: Path, allowance: Allowance) -> NumberArray:
    with decoding(path, "an idx file, plain or gzip-compressed") as file:
        packed = file.read(2) == _GZIP  # the ending .gz is not reliable: browsers unpack some files
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
        raise BadFile(f"{str(path)!r} must have the lengths of {axes} axes in its header, got a header that ends early")
    shape = struct.unpack(f">{axes}I", lengths)
    size = math.prod(shape) * dtype.itemsize
    allowance.spend(path, size, f"the shape {shape} in its header")
    data = read_at_most(stream, size + 1)
    if len(data) != size:
        found = "more" if len(data) > size else str(len(data))
        raise BadFile(f"{str(path)!r} must hold {size} bytes after its header, for the shape {shape}, got {found}")
    return np.frombuffer(data, dtype).reshape(shape)


# NumPy archives: .npz files. The sizes and shapes that they state are not trusted.

KEYS = ("x_train", "y_train", "x_test", "y_test")
_SIP = 4096  # bytes of one read
_LONGEST_HEADER = 10_000  # NumPy's own limit
_LARGEST_DIRECTORY = 2**24  # bytes of the directory of a zip file, which needs about 60 bytes per array


def load_npz(path: Location, feature_norm: float | None = None) -> Dataset:
    """Load the arrays ``x_train, y_train, x_test, y_test`` of an .npz file. Nothing is unpickled.

    Other arrays are ignored. The arrays must have the form that :meth:`Dataset.from_arrays` accepts: images, or with a
    ``feature_norm`` features. The data set is named after the file.
    """
    source = as_path(path)
    if feature_norm is not None:
        number("feature_norm", feature_norm, 0.0, open_low=True)
    allowance = Allowance()
    with decoding(source, "an .npz archive of numeric arrays") as file:
        if file.peek(6).startswith(npy.MAGIC_PREFIX):
            raise BadFile(f"{str(source)!r} must be an .npz archive, got a single array")
        with ZipFile(_Cautious(file)) as archive:
            names = {name.removesuffix(".npy"): name for name in archive.namelist()}
            missing = [key for key in KEYS if key not in names]
            if missing:
                raise BadFile(f"{str(source)!r} must hold {', '.join(KEYS)}, got no {', '.join(missing)}")
            x_train, y_train, x_test, y_test = (_read_npz(source, archive, names[key], allowance) for key in KEYS)
    with blaming(source):
        return Dataset.from_arrays(source.stem, x_train, y_train, x_test, y_test, feature_norm=feature_norm)


class _Cautious:
    """A file that limits the size of each read, because zipfile reads the whole directory of an archive at once."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        found = self._file.read(min(size, _LARGEST_DIRECTORY + 1) if size >= 0 else _LARGEST_DIRECTORY + 1)
        if len(found) > _LARGEST_DIRECTORY:
            raise ValueError
        return found


def _read_npz(path: Path, archive: ZipFile, name: str, allowance: Allowance) -> NumberArray:
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
        data = read_at_most(stream, size + 1)  # one byte more, because zipfile checks the checksum only at the end
    if len(data) != size:
        raise ValueError
    return np.frombuffer(data, dtype).reshape(shape, order="F" if by_columns else "C")


class _InSips:
    """A stream that returns at most 4 KiB per read, because LZMA can expand 4 KiB of input into 32 MiB in one read."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream

    def read(self, size: int, /) -> bytes:
        return self._stream.read(min(size, _SIP))


def _header(stream: Readable) -> tuple[tuple[int, ...], bool, np.dtype]:
    start = stream.read(len(npy.MAGIC_PREFIX) + 2)
    width = 2 if start.endswith(b"\1\0") else 4
    length = stream.read(width)
    if int.from_bytes(length, "little") > _LONGEST_HEADER:
        raise ValueError
    whole = BytesIO(start + length + stream.read(int.from_bytes(length, "little")))
    version = npy.read_magic(whole)
    reads = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    return reads[version](whole)


# Digits: 1,797 handwritten digits of 8 by 8 pixels, which come with scikit-learn.

TEST_IMAGES = 360  # a fifth
_SEED = 0


def digits() -> Dataset:
    """Return the digits: 1,437 images for training and 360 for testing. The split is fixed and stratified by class."""
    try:
        bunch = import_module("sklearn.datasets").load_digits()
    except ImportError:
        raise ValueError(
            f"the digits need scikit-learn, which could not be imported: {install_hint('audit')}"
        ) from None
    images, labels = (bunch.images / 16).astype(np.float32), bunch.target
    train, test = _split(labels)
    return Dataset.from_arrays("digits", images[train], labels[train], images[test], labels[test], classes=10)


def _split(labels: IntArray) -> tuple[IntArray, IntArray]:
    """Return the indices of the training and of the test images, in shuffled order.

    The split uses raw random bits, which are the same in all versions of NumPy. Permutations are not.
    """
    choice, order = np.random.PCG64(_SEED).random_raw((2, len(labels)))
    quantile = np.empty(len(labels))  # quantile of the random choice among the images of the same class
    for label in np.unique(labels):
        same = np.flatnonzero(labels == label)
        quantile[same[np.argsort(choice[same])]] = (np.arange(len(same)) + 0.5) / len(same)
    tested = np.zeros(len(labels), dtype=bool)
    tested[np.argsort(quantile, kind="stable")[:TEST_IMAGES]] = True
    shuffled = np.argsort(order)
    return shuffled[~tested[shuffled]], shuffled[tested[shuffled]]
