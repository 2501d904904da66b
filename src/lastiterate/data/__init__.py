"""Data sets of images or features: the digits of scikit-learn, and loaders of files. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

from lastiterate.data.dataset import Dataset
from lastiterate.data.files import Location, as_path, kind
from lastiterate.data.loaders import cifar10_place, digits, is_idx, load_cifar10, load_idx, load_npz

__all__ = ["Dataset", "digits", "load", "load_cifar10", "load_idx", "load_npz"]

_UNDERSTOOD = "the word digits, an .npz file, a folder of idx files (like MNIST), or a folder of CIFAR-10's own files"


def load(path: Location, feature_norm: float | None = None) -> Dataset:
    """Load an .npz file, a folder of idx files, the CIFAR-10 folder, or the embedded ``"digits"``.

    An .npz file may hold features instead of images. ``feature_norm`` is then a public bound on their norm.
    """
    embedded = isinstance(path, str) and path == "digits"
    source = Path("digits") if embedded else as_path(path)
    found = kind(source)
    if found == "file" and source.suffix.lower() == ".npz" and not embedded:
        return load_npz(source, feature_norm)
    if feature_norm is not None and (embedded or found):
        raise ValueError(
            f"feature_norm is for features in an .npz file, got {feature_norm!r:.200} with {source!r:.200}"
        )
    if embedded:
        return digits()
    if found is None:
        raise FileNotFoundError(f"path must be {_UNDERSTOOD}, but nothing is at {str(source)!r}")
    if found == "folder" and is_idx(source):
        return load_idx(source)
    if found == "folder" and cifar10_place(source):
        return load_cifar10(source)
    raise ValueError(f"path must be {_UNDERSTOOD}, got the {found} {str(source)!r}")
