"""Files that users name: finding, opening and decoding them, and a limit on their size in memory.

Every refusal is one sentence that names the file. A small file can unpack to any size, and a short header can describe
a huge array, so that all readers share one limit. The environment variable ``LASTITERATE_MAX_BYTES`` changes the limit.
Content that grows when it is parsed gets a share of the limit.
"""

from __future__ import annotations

import math
import os
import pickletools
import stat
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np

from lastiterate.common.types import UInt8Array
from lastiterate.common.validation import written_integer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader
    from pathlib import Path

Location: TypeAlias = str | os.PathLike[str]
Kind: TypeAlias = Literal["file", "folder", "device"]


class BadFile(ValueError):
    """Error for a file with unusable content. The message is a whole sentence."""


def as_path(value: Location) -> Path:
    """Return a path that is valid for the operating system, even if nothing is there."""
    try:
        path = Path(value)
        os.fsencode(path)
        if value == "" or "\0" in str(path):
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(f"path must be the path of a file or folder, got {value!r}") from None
    return path


def kind(path: Path) -> Kind | None:
    """Return the kind of thing at this path; None if nothing is there."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise BadFile(f"{str(path)!r} could not be read: {error.strerror}") from None
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "device"


def find(value: Location, wanted: Kind) -> Path:
    """Return the path of a file or folder that exists."""
    path = as_path(value)
    found = kind(path)
    if found is None:
        raise FileNotFoundError(f"{str(path)!r} must be a {wanted}, but nothing is there")
    if found != wanted:
        raise BadFile(f"{str(path)!r} must be a {wanted}, got a {found}")
    return path


@contextmanager
def decoding(path: Path, wanted: str) -> Iterator[BufferedReader]:
    """Open the file. Every error of a decoder on damaged bytes becomes a BadFile that says what was ``wanted``."""
    find(path, "file")
    try:
        with path.open("rb") as file:
            yield file
    except BadFile:
        raise
    except MemoryError:
        raise BadFile(f"{str(path)!r} must fit into memory, got more than there is") from None
    except Exception as error:  # zipfile, zlib, lzma, gzip, pickle and NumPy have no common base
        if isinstance(error, OSError) and error.strerror:
            raise BadFile(f"{str(path)!r} could not be read: {error.strerror}") from None
        raise BadFile(f"{str(path)!r} must be {wanted}, got a file that is damaged or something else") from None


@contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Name the file in errors about the arrays that were read from it."""
    try:
        yield
    except ValueError as error:
        raise BadFile(f"{str(path)!r} cannot be used: {error}") from None
    except MemoryError:
        raise BadFile(f"{str(path)!r} must fit into memory as float32, got more than there is") from None


# Size limit: the memory that a file may take once it is unpacked or parsed.

VARIABLE = "LASTITERATE_MAX_BYTES"
USUAL = 2**30  # twice the size of EMNIST, the largest data set that the loaders are meant for
PARSED = 16  # a file parsed into Python objects may have a 16th: each byte becomes up to 24
TEXTS = 4  # a file of texts may have a quarter: the texts are copied a few times
LINE = 256  # a line or a text may have a 256th: each byte may become a token of about 150 bytes
_PIECE = 2**20


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes: ...


def most_bytes(share: int = 1) -> int:
    """Return the limit, or a share of it."""
    text = os.environ.get(VARIABLE)
    most = USUAL if text is None else written_integer(text)
    if most is None or most < 1:
        raise ValueError(f"{VARIABLE} must be a number of bytes, at least 1, got {text!r}")
    return most // share


def too_large(what: str, share: int = 1, got: str = "more", unit: str = "bytes") -> BadFile:
    """Return the error for a file above the limit; ``what`` begins the message, as in ``'x.npz' must unpack to``."""
    part = {1: "", 4: "a quarter of "}.get(share, f"a {share}th of ")
    return BadFile(
        f"{what} at most {most_bytes(share):,} {unit}, {part}the limit {VARIABLE}, got {got}: set that environment "
        "variable to allow more"
    )


class Allowance:
    """The number of bytes that may still be read of a file, or of all the files of a data set."""

    def __init__(self) -> None:
        self._left = most_bytes()

    def spend(self, path: Path, count: int, got: str = "more") -> None:
        """Take ``count`` bytes for this file from the allowance, before they are read. Raise if too few are left."""
        self._left -= count
        if self._left < 0:
            raise too_large(f"{str(path)!r} must unpack to", got=got)


def read_at_most(stream: Readable, limit: int) -> bytearray:
    """Read ``limit`` bytes of a stream, or all if it has fewer, in pieces, so that no memory is reserved in advance."""
    data = bytearray()
    while piece := stream.read(min(_PIECE, limit - len(data))):
        data += piece
    return data


def read_all(stream: Readable, source: Path, share: int = 1) -> bytearray:
    """Read a whole stream. Raise if it is larger than the share of the limit."""
    data = read_at_most(stream, most_bytes(share) + 1)
    if len(data) > most_bytes(share):
        raise too_large(f"{str(source)!r} must unpack to", share)
    return data


def read_file(file: BufferedReader, path: Path, allowance: Allowance) -> bytearray:
    """Read a whole file, after its size has been taken from the allowance."""
    size = os.fstat(file.fileno()).st_size
    allowance.spend(path, size, f"{size:,}")
    return read_at_most(file, size)


# Reads what a pickle says, and does nothing of what it asks for.
#
# Python's own reader runs a pickle as a program: it calls whatever is named, hashes whatever is a key (for a nest of
# tuples that takes forever, or all of the stack), and takes memory for the largest place in a memo. Here is a reader
# for plain values: numbers, texts, lists, tuples, dictionaries with texts as keys, and objects of a few permitted
# names, which only keep what they are told.

_BYTES_AN_OPCODE = 1024  # more than any of them takes; CIFAR-10 has 180,000 of them, and the usual limit is a million
_VALUES = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
_VALUES |= {"UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
_OLD_TEXTS = {"STRING", "BINSTRING", "SHORT_BINSTRING"}  # of Python 2: bytes
_PUT, _GET = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}, {"GET", "BINGET", "LONG_BINGET"}
_OBJECTS = {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Inert:
    """A stand-in that stores its arguments and its state."""

    __slots__ = ("arguments", "state")

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None  # whatever the file says


Permitted = Mapping[tuple[str, str], type[Inert]]  # by module and name


def read_inert(content: bytes | bytearray, path: Path, permitted: Permitted, allowance: Allowance) -> object:
    """Return the content of a pickle.

    Raises BadFile for names that are not permitted. A damaged pickle raises other exceptions, such as IndexError.
    """
    machine = _Machine(path, permitted)
    for opcode, argument, _ in pickletools.genops(bytes(content)):
        allowance.spend(path, _BYTES_AN_OPCODE)
        if opcode.name == "STOP":
            break
        machine.step(opcode.name, argument)
    return machine.stack.pop()


class _Machine:
    """The state of the reader: a stack, the marks in the stack, and a memo."""

    def __init__(self, path: Path, permitted: Permitted) -> None:
        self.stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._path, self._permitted = path, permitted

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _OLD_TEXTS:
            stack.append(argument.encode("latin1"))
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name in _PUT:
            self._memo[len(self._memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in _GET:
            stack.append(self._memo[argument])
        elif name in _OBJECTS:
            self._object(name, argument)
        elif name not in ("PROTO", "FRAME"):
            self._container(name)

    def _container(self, name: str) -> None:
        stack = self.stack
        if name in _TUPLES:
            count = _TUPLES[name]
            stack.append(tuple(self._taken(len(stack) - count)))
        elif name == "TUPLE":
            stack.append(tuple(self._taken(self._marks.pop())))
        elif name in ("EMPTY_LIST", "LIST"):
            stack.append(self._taken(self._marks.pop()) if name == "LIST" else [])
        elif name in ("EMPTY_DICT", "DICT"):
            items = self._taken(self._marks.pop()) if name == "DICT" else []
            stack.append({})
            self._fill(items)
        elif name in ("APPEND", "APPENDS"):
            items = self._taken(self._marks.pop() if name == "APPENDS" else len(stack) - 1)
            if type(stack[-1]) is not list:
                raise TypeError
            stack[-1].extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            self._fill(self._taken(self._marks.pop() if name == "SETITEMS" else len(stack) - 2))
        else:
            raise ValueError

    def _object(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name == "GLOBAL":
            stack.append(self._named(*argument.split(" ", 1)))
        elif name == "STACK_GLOBAL":
            stack.append(self._named(*self._taken(len(stack) - 2)))
        elif name == "REDUCE":
            kind, arguments = self._taken(len(stack) - 2)
            if kind not in self._permitted.values() or type(arguments) is not tuple:
                raise TypeError
            stack.append(kind(*arguments))
        else:
            state = stack.pop()
            if not isinstance(stack[-1], Inert):
                raise TypeError
            stack[-1].state = state

    def _named(self, module: object, name: object) -> type[Inert]:
        if type(module) is not str or type(name) is not str:
            raise TypeError
        if (module, name) not in self._permitted:
            asked = f"{module}.{name}"[:100]
            raise BadFile(f"{str(self._path)!r} must be a pickle of plain arrays, got one that asks for {asked!r}")
        return self._permitted[module, name]

    def _fill(self, items: list[Any]) -> None:
        keys, values, target = items[::2], items[1::2], self.stack[-1]
        if type(target) is not dict or not all(type(key) in (str, bytes) for key in keys):
            raise TypeError
        target.update(zip(keys, values, strict=True))

    def _taken(self, begin: int) -> list[Any]:
        if begin < 0:
            raise IndexError
        items = self.stack[begin:]
        del self.stack[begin:]
        return items


# Reads the pickles of CIFAR-10 without trusting them.
#
# A pickle is a program. Here it gets inert stand-ins for the few NumPy names that such a file asks for, which only
# keep what they are told; the array is then made by us, from bytes that were checked. Every other name is refused.


def read_batch(path: Path, allowance: Allowance) -> tuple[UInt8Array, UInt8Array]:
    """Return the array ``data``, uint8 of shape [n, m], and the list ``labels`` as an array."""
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
    """Bytes as Python 3 writes them in an old protocol: a text and its encoding."""

    __slots__ = ()


_STAND_INS: dict[tuple[str, str], type[Inert]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): Inert,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Bytes,
}


def _array(path: Path, value: object) -> UInt8Array:
    """Build the array from the state of a stand-in: ``(version, shape, dtype, is_fortran, bytes)``."""
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
    """Return the name of the type alone: a hostile value could take forever to print."""
    return "nothing" if value is None else "something else" if isinstance(value, Inert) else type(value).__name__
