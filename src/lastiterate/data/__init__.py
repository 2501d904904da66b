"""Data sets of images: one that comes with scikit-learn, and loaders for the user's files. Nothing is downloaded."""

from __future__ import annotations

from lastiterate.data.dataset import Dataset
from lastiterate.data.files import Location, as_path, kind
from lastiterate.data.loaders import digits, is_cifar10, is_idx, load_cifar10, load_idx, load_npz

__all__ = ["Dataset", "digits", "load", "load_cifar10", "load_idx", "load_npz"]

_UNDERSTOOD = "the word digits, an .npz file, a folder of idx files as MNIST has, or a folder of CIFAR-10's own files"


def load(path: Location) -> Dataset:
    """Load the data set at a path, or the embedded ``"digits"`` (a folder of that name is ``"./digits"``).

    A path is an .npz file, a folder of idx files or a folder of CIFAR-10's files.
    """
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
    if found == "folder" and is_cifar10(source):
        return load_cifar10(source)
    raise ValueError(f"path must be {_UNDERSTOOD}, got the {found} {str(source)!r}")
