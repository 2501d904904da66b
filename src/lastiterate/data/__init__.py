"""Data sets of images: the digits of scikit-learn, and loaders for the user's files. Nothing is downloaded."""

from __future__ import annotations

from lastiterate.data.dataset import Dataset
from lastiterate.data.files import Location, as_path, kind
from lastiterate.data.loaders import cifar10_place, digits, is_idx, load_cifar10, load_idx, load_npz

__all__ = ["Dataset", "digits", "load", "load_cifar10", "load_idx", "load_npz"]

_UNDERSTOOD = "the word digits, an .npz file, a folder of idx files (like MNIST), or a folder of CIFAR-10's own files"


def load(path: Location) -> Dataset:
    """Load an .npz file, a folder of idx files, the CIFAR-10 folder, or the embedded ``"digits"``."""
    if isinstance(path, str) and path == "digits":
        return digits()
    source = as_path(path)
    found = kind(source)
    if found is None:
        raise FileNotFoundError(f"path must be {_UNDERSTOOD}, but nothing is at {str(source)!r}")
    if found == "file" and source.suffix.lower() == ".npz":
        return load_npz(source)
    if found == "folder" and is_idx(source):
        return load_idx(source)
    if found == "folder" and cifar10_place(source):
        return load_cifar10(source)
    raise ValueError(f"path must be {_UNDERSTOOD}, got the {found} {str(source)!r}")
