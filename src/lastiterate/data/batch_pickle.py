"""Reads the pickles of CIFAR-10 without trusting them.

A pickle is a program. Here it gets inert stand-ins for the few NumPy names that such a file asks for, which only
keep what they are told; the array is then made by us, from bytes that were checked. Every other name is refused.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.arrays import UInt8Array
from lastiterate.data.files import BadFile, decoding
from lastiterate.data.inert_pickle import Inert, read_inert
from lastiterate.data.limits import read_file

if TYPE_CHECKING:
    from pathlib import Path

    from lastiterate.data.limits import Allowance


def read_batch(path: Path, allowance: Allowance) -> tuple[UInt8Array, UInt8Array]:
    """The array ``data``, uint8 of shape [n, m], and the list ``labels`` as an array."""
    with decoding(path, "a pickled batch of CIFAR-10") as file:
        batch = read_inert(read_file(file, path, allowance), path, _STAND_INS, allowance)
        if type(batch) is not dict:
            raise BadFile(f"{str(path)!r} must hold a dictionary, got {_type_of(batch)}")
        # Python 2 wrote the original's texts as bytes.
        data, labels = (batch.get(key, batch.get(key.encode())) for key in ("data", "labels"))
        if type(labels) is not list:
            raise BadFile(f"{str(path)!r} must hold a list as labels, got {_type_of(labels)}")
        if not all(type(label) is int and 0 <= label <= 255 for label in labels):
            raise BadFile(f"{str(path)!r} must hold class numbers as labels, got a list with something else in it")
        return _array(path, data), np.array(labels, dtype=np.uint8)


class _Array(Inert):
    __slots__ = ()


class _Dtype(Inert):
    __slots__ = ()


class _Bytes(Inert):
    """How Python 3 spells bytes in an old protocol: a text and how to encode it."""

    __slots__ = ()


_STAND_INS: dict[tuple[str, str], type[Inert]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): Inert,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Bytes,
}


def _array(path: Path, value: object) -> UInt8Array:
    """The array that a stand-in was told about: ``(version, shape, dtype, is_fortran, bytes)``."""
    if not isinstance(value, _Array):
        raise BadFile(f"{str(path)!r} must hold an array as data, got {_type_of(value)}")
    _, shape, dtype, is_fortran, content = value.state
    if not isinstance(dtype, _Dtype) or dtype.arguments[0] not in ("u1", b"u1"):
        raise BadFile(f"{str(path)!r} must hold uint8 as data, got another type")
    if isinstance(content, _Bytes):
        text, encoding = content.arguments
        content = text.encode("latin1") if encoding in ("latin1", b"latin1") else None
    if type(content) is not bytes or not _is_shape(shape) or math.prod(shape) != len(content):
        raise BadFile(f"{str(path)!r} must hold data with two axes and a byte for each element, got others")
    return np.frombuffer(content, np.uint8).reshape(shape, order="F" if is_fortran else "C")


def _is_shape(shape: object) -> bool:
    return type(shape) is tuple and len(shape) == 2 and all(type(axis) is int and 0 <= axis < 2**31 for axis in shape)


def _type_of(value: object) -> str:
    """The type alone: a hostile value could take forever to print."""
    return "nothing" if value is None else "something else" if isinstance(value, Inert) else type(value).__name__
