"""CIFAR-10 as its authors publish it, in the Python version (pickles) and in the binary version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lastiterate.arrays import UInt8Array
from lastiterate.data.batch_pickle import read_batch
from lastiterate.data.dataset import Dataset
from lastiterate.data.files import BadFile, Location, blaming, decoding, find, kind
from lastiterate.data.limits import Allowance, read_file

if TYPE_CHECKING:
    from pathlib import Path

CLASSES = 10
_PIXELS = 3 * 32 * 32  # the red plane, then green, then blue
_TRAIN = [f"data_batch_{number}" for number in range(1, 6)]
_TEST = "test_batch"
_PLACES = [("", ""), ("", ".bin"), ("cifar-10-batches-py", ""), ("cifar-10-batches-bin", ".bin")]


def load_cifar10(folder: Location) -> Dataset:
    """CIFAR-10 from the folder of its files or the one around it. Pickles are read without running what is in them."""
    source = find(folder, "folder")
    place = _place(source)
    if place is None:
        raise FileNotFoundError(f"{str(source)!r} must hold {_TRAIN[0]} or {_TRAIN[0]}.bin, but neither is there")
    inner, ending = place
    allowance = Allowance()
    batches = [_read(find(inner / (name + ending), "file"), allowance) for name in [*_TRAIN, _TEST]]
    with blaming(source):
        x_train, y_train = (np.concatenate(parts) for parts in zip(*batches[:-1], strict=True))
        return Dataset.from_arrays("cifar10", x_train, y_train, *batches[-1], classes=CLASSES)


def is_cifar10(folder: Path) -> bool:
    """Whether any of the files is there, in one of the two versions."""
    return _place(folder) is not None


def _place(folder: Path) -> tuple[Path, str] | None:
    """Where the files are and how their names end."""
    for inner, ending in _PLACES:
        if any(kind(folder / inner / (name + ending)) for name in [*_TRAIN, _TEST]):
            return folder / inner, ending
    return None


def _read(path: Path, allowance: Allowance) -> tuple[UInt8Array, UInt8Array]:
    """Images of shape [n, 32, 32, 3] and their labels."""
    rows, labels = _read_binary(path, allowance) if path.suffix == ".bin" else read_batch(path, allowance)
    if rows.shape[1] != _PIXELS or not len(rows):
        raise BadFile(f"{str(path)!r} must hold images of {_PIXELS} bytes, got data of shape {rows.shape}")
    if len(labels) != len(rows):
        raise BadFile(f"{str(path)!r} must hold one label for each of its {len(rows)} images, got {len(labels)}")
    if labels.max() >= CLASSES:
        raise BadFile(f"{str(path)!r} must hold labels in 0..{CLASSES - 1}, got {labels.max()}")
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels


def _read_binary(path: Path, allowance: Allowance) -> tuple[UInt8Array, UInt8Array]:
    """Each image is a byte for its label, then its pixels."""
    with decoding(path, "a binary batch of CIFAR-10") as file:
        content = np.frombuffer(read_file(file, path, allowance), np.uint8)
    if not content.size or content.size % (1 + _PIXELS):
        raise BadFile(
            f"{str(path)!r} must hold a multiple of {1 + _PIXELS} bytes, {1 + _PIXELS} an image, got {content.size}"
        )
    records = content.reshape(-1, 1 + _PIXELS)
    return records[:, 1:], records[:, 0]
