"""Functions that find, open and decode users' files, with a limit on their size in memory.

Every error is one sentence that names the file. A small file can unpack to any size, and a short header can describe a
huge array, so all readers share one limit. The environment variable ``LASTITERATE_MAX_BYTES`` changes the limit. If
parsing needs more memory than the file has bytes, the limit is divided by ``PARSED``, ``TEXTS`` or ``LINE``.
"""

import math
import os
import pickletools
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

from lastiterate.common.types import UInt8Array
from lastiterate.common.validation import told, written_integer

Location: TypeAlias = str | os.PathLike[str]
Kind: TypeAlias = Literal["file", "folder", "device"]


_LONGEST_PATH = 4096  # characters; no operating system opens longer paths


class BadFile(ValueError):
    """Error for a file that cannot be read or has unusable content. The message is a whole sentence."""


def as_path(value: Location) -> Path:
    """Return the value as a path. Raise an error if the operating system does not allow such a path."""
    try:
        path = Path(value)
        os.fsencode(path)
        if value == "" or "\0" in str(path) or len(str(path)) > _LONGEST_PATH:
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(f"path must be the path of a file or folder, got {told(value)}") from None
    return path


def kind(path: Path) -> Kind | None:
    """Return whether a file, a folder or a device is at this path, or None if nothing is there."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise BadFile(f"{str(path)!r} could not be read: {error.strerror}") from None
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "device"


def find(value: Location, wanted: Kind) -> Path:
    """Return the path of an existing file or folder. Raise an error if it does not exist or is not ``wanted``."""
    path = as_path(value)
    found = kind(path)
    if found is None:
        raise FileNotFoundError(f"{str(path)!r} must be a {wanted}, but nothing is there")
    if found != wanted:
        raise BadFile(f"{str(path)!r} must be a {wanted}, got a {found}")
    return path


@contextmanager
def decoding(path: Path, wanted: str) -> Iterator[BufferedReader]:
    """Open the file. If decoding fails, raise a BadFile that says which content was ``wanted``."""
    find(path, "file")
    try:
        with path.open("rb") as file:
            yield file
    except BadFile:
        raise
    except MemoryError:
        raise BadFile(f"{str(path)!r} must fit into memory, got a larger file") from None
    except Exception as error:  # zipfile, zlib, lzma, gzip, pickle and NumPy have no common base
        if isinstance(error, OSError) and error.strerror:
            raise BadFile(f"{str(path)!r} could not be read: {error.strerror}") from None
        raise BadFile(f"{str(path)!r} must be {wanted}, got a file that is damaged or something else") from None


@contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Add the name of the file to errors about its arrays."""
    try:
        yield
    except ValueError as error:
        raise BadFile(f"{str(path)!r} cannot be used: {error}") from None
    except MemoryError:
        raise BadFile(f"{str(path)!r} must fit into memory as float32, got larger data") from None


# Size limit: the memory that a file may take once it is unpacked or parsed.

VARIABLE = "LASTITERATE_MAX_BYTES"
USUAL = 2**30  # twice the size of EMNIST, the largest data set that the loaders are meant for
# Divisors of the limit for content that takes more memory than the file.
PARSED = 16  # a file that is parsed into Python objects: each byte becomes up to 24 bytes
TEXTS = 4  # a file of texts, which are copied a few times
LINE = 256  # one line or text: each byte may become a token of about 150 bytes
_PIECE = 2**20


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes: ...


def most_bytes(share: int = 1) -> int:
    """Return the limit in bytes, divided by ``share``."""
    text = os.environ.get(VARIABLE)
    most = USUAL if text is None else written_integer(text)
    if most is None or most < 1:
        raise ValueError(f"{VARIABLE} must be a number of bytes, at least 1, got {text!r}")
    return most // share


def too_large(what: str, share: int = 1, got: str = "more", unit: str = "bytes") -> BadFile:
    """Return the error for a file above the limit. ``what`` begins the message: ``'x.npz' must unpack to``."""
    part = {1: "", 4: "a quarter of "}.get(share, f"a {share}th of ")
    return BadFile(
        f"{what} at most {most_bytes(share):,} {unit}, {part}the limit {VARIABLE}, got {got}: set that environment "
        "variable to allow more"
    )


class Allowance:
    """The number of bytes that may still be read from a file, or from all files of a data set."""

    def __init__(self) -> None:
        self._left = most_bytes()

    def spend(self, path: Path, count: int, got: str = "more") -> None:
        """Subtract ``count`` bytes from the allowance. Raise an error if fewer bytes are left."""
        self._left -= count
        if self._left < 0:
            raise too_large(f"{str(path)!r} must unpack to", got=got)


def read_at_most(stream: Readable, limit: int) -> bytearray:
    """Read at most ``limit`` bytes of a stream. Memory is reserved only for bytes that exist."""
    data = bytearray()
    while piece := stream.read(min(_PIECE, limit - len(data))):
        data += piece
    return data


def read_all(stream: Readable, source: Path, share: int = 1) -> bytearray:
    """Read a whole stream. Raise an error if it is larger than the limit divided by ``share``."""
    data = read_at_most(stream, most_bytes(share) + 1)
    if len(data) > most_bytes(share):
        raise too_large(f"{str(source)!r} must unpack to", share)
    return data


def read_file(file: BufferedReader, path: Path, allowance: Allowance) -> bytearray:
    """Subtract the size of a file from the allowance, then read the whole file."""
    size = os.fstat(file.fileno()).st_size
    allowance.spend(path, size, f"{size:,}")
    return read_at_most(file, size)


# A safe reader of pickles. Python's own reader runs a pickle as a program: it calls any function that the pickle names,
# hashes any key (deeply nested tuples take forever, or exhaust the stack), and reserves memory for the largest index in
# the memo. This reader accepts only plain values: numbers, texts, lists, tuples, dictionaries with texts as keys, and
# objects of a few permitted names, which only store their arguments.

_BYTES_AN_OPCODE = 1024  # more than any opcode needs; CIFAR-10 has 180,000 opcodes, the default limit allows a million
_VALUES = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
_VALUES |= {"UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
_OLD_TEXTS = {"STRING", "BINSTRING", "SHORT_BINSTRING"}  # texts of Python 2, read as bytes
_PUT, _GET = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}, {"GET", "BINGET", "LONG_BINGET"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Inert:
    """A harmless replacement for a class in a pickle. It only stores its arguments and its state."""

    __slots__ = ("arguments", "state")

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None  # unchecked content of the file


_Kind = TypeVar("_Kind")


class _Machine:
    """The state of the reader: a stack, the marks in the stack, and a memo."""

    def __init__(self, path: Path) -> None:
        self.stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._path = path

    def read(self, content: bytearray, allowance: Allowance) -> object:
        """Return the content of a pickle. A damaged pickle can raise any exception, such as IndexError."""
        for opcode, argument, _ in pickletools.genops(bytes(content)):
            allowance.spend(self._path, _BYTES_AN_OPCODE)
            if opcode.name == "STOP":
                break
            self.step(opcode.name, argument)
        return self.stack.pop()

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        match name:
            case "PROTO" | "FRAME":
                pass
            case _ if name in _VALUES:
                stack.append(argument)
            case _ if name in _OLD_TEXTS:
                stack.append(argument.encode("latin1"))
            case _ if name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            case "MARK":
                self._marks.append(len(stack))
            case _ if name in _PUT:
                self._memo[len(self._memo) if name == "MEMOIZE" else argument] = stack[-1]
            case _ if name in _GET:
                stack.append(self._memo[argument])
            case _ if name in _TUPLES:
                stack.append(tuple(self._taken(_TUPLES[name])))
            case "TUPLE":
                stack.append(tuple(self._taken()))
            case "EMPTY_LIST" | "LIST":
                stack.append(self._taken() if name == "LIST" else [])
            case "EMPTY_DICT" | "DICT":
                items = self._taken() if name == "DICT" else []
                stack.append({})
                self._fill(items)
            case "APPEND" | "APPENDS":
                items = self._taken(1 if name == "APPEND" else None)
                _require(stack[-1], list).extend(items)
            case "SETITEM" | "SETITEMS":
                self._fill(self._taken(2 if name == "SETITEM" else None))
            case "GLOBAL":
                stack.append(self._named(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                stack.append(self._named(*self._taken(2)))
            case "REDUCE":
                kind, arguments = self._taken(2)
                if kind not in _STAND_INS.values():
                    raise TypeError
                stack.append(kind(*_require(arguments, tuple)))
            case "BUILD":
                state = stack.pop()
                if not isinstance(stack[-1], Inert):
                    raise TypeError
                stack[-1].state = state
            case _:
                raise ValueError

    def _named(self, module: object, name: object) -> type[Inert]:
        names = _require(module, str), _require(name, str)
        if names not in _STAND_INS:
            asked = f"{module}.{name}"[:100]
            raise BadFile(f"{str(self._path)!r} must be a pickle of plain arrays, got a pickle that calls {asked!r}")
        return _STAND_INS[names]

    def _fill(self, items: list[Any]) -> None:
        keys, values, target = items[::2], items[1::2], _require(self.stack[-1], dict)
        if not all(type(key) in (str, bytes) for key in keys):
            raise TypeError
        target.update(zip(keys, values, strict=True))

    def _taken(self, count: int | None = None) -> list[Any]:
        """Pop ``count`` values from the stack. If ``count`` is None, pop all values after the last mark."""
        begin = self._marks.pop() if count is None else len(self.stack) - count
        if begin < 0:
            raise IndexError
        items = self.stack[begin:]
        del self.stack[begin:]
        return items


def _require(value: Any, kind: type[_Kind]) -> _Kind:
    if type(value) is not kind:
        raise TypeError
    return value


# CIFAR-10's pickles: the NumPy classes that they name are replaced by ``Inert``, which runs no code. The array is built
# from checked bytes.


def read_batch(path: Path, allowance: Allowance) -> tuple[UInt8Array, UInt8Array]:
    """Return the images, uint8 of shape [n, m], and the labels of a CIFAR-10 batch."""
    with decoding(path, "a pickled batch of CIFAR-10") as file:
        batch = _Machine(path).read(read_file(file, path, allowance), allowance)
        if type(batch) is not dict:
            raise BadFile(f"{str(path)!r} must hold a dictionary, got {_type_of(batch)}")
        # In the original files, which Python 2 wrote, keys are bytes.
        data, labels = (batch.get(key, batch.get(key.encode())) for key in ("data", "labels"))
        if type(labels) is not list:
            raise BadFile(f"{str(path)!r} must hold a list as labels, got {_type_of(labels)}")
        if not all(type(label) is int and 0 <= label <= 255 for label in labels):
            raise BadFile(f"{str(path)!r} must hold class numbers as labels, got a list with other values")
        return _array(path, data), np.array(labels, dtype=np.uint8)


class _Array(Inert):
    __slots__ = ()


class _Dtype(Inert):
    __slots__ = ()


class _Bytes(Inert):
    """Bytes as Python 3 writes them in old pickle protocols: a text and its encoding."""

    __slots__ = ()


_STAND_INS: dict[tuple[str, str], type[Inert]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): Inert,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Bytes,
}


def _array(path: Path, value: object) -> UInt8Array:
    """Build the array from its pickled state: ``(version, shape, dtype, is_fortran, bytes)``."""
    if not isinstance(value, _Array):
        raise BadFile(f"{str(path)!r} must hold an array as data, got {_type_of(value)}")
    _, shape, dtype, is_fortran, content = value.state
    if not isinstance(dtype, _Dtype) or dtype.arguments[0] not in ("u1", b"u1"):
        raise BadFile(f"{str(path)!r} must hold uint8 as data, got another type")
    if isinstance(content, _Bytes):
        text, encoding = content.arguments
        content = text.encode("latin1") if encoding in ("latin1", b"latin1") else None
    is_shape = type(shape) is tuple and len(shape) == 2 and all(type(n) is int and 0 <= n < 2**31 for n in shape)
    if type(content) is not bytes or not is_shape or math.prod(shape) != len(content):
        raise BadFile(f"{str(path)!r} must hold data with two axes and one byte per element, got other data")
    return np.frombuffer(content, np.uint8).reshape(shape, order="F" if is_fortran else "C")


def _type_of(value: object) -> str:
    """Return the name of the type. A hostile value itself may take forever to print."""
    return "nothing" if value is None else "something else" if isinstance(value, Inert) else type(value).__name__
