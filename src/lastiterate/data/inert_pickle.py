"""Reads what a pickle says, and does nothing of what it asks for.

Python's own reader runs a pickle as a program: it calls whatever is named, hashes whatever is a key (for a nest of
tuples that takes forever, or all of the stack), and takes memory for the largest place in a memo. Here is a reader for
plain values: numbers, texts, lists, tuples, dictionaries with texts as keys, and objects of a few permitted names,
which only keep what they are told.
"""

from __future__ import annotations

import pickletools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lastiterate.data.files import BadFile

if TYPE_CHECKING:
    from pathlib import Path

    from lastiterate.data.limits import Allowance

_BYTES_AN_OPCODE = 1024  # more than any of them takes; CIFAR-10 has 180,000 of them, and the usual limit is a million
_VALUES = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
_VALUES |= {"UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
_OLD_TEXTS = {"STRING", "BINSTRING", "SHORT_BINSTRING"}  # of Python 2: bytes
_PUT, _GET = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}, {"GET", "BINGET", "LONG_BINGET"}
_OBJECTS = {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Inert:
    """Keeps its arguments and its state."""

    __slots__ = ("arguments", "state")

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None  # whatever the file says


Permitted = Mapping[tuple[str, str], type[Inert]]  # by module and name


def read_inert(content: bytes | bytearray, path: Path, permitted: Permitted, allowance: Allowance) -> object:
    """What a pickle holds. Raises whatever comes, such as IndexError, where it is damaged; BadFile for other names."""
    machine = _Machine(path, permitted)
    for opcode, argument, _ in pickletools.genops(bytes(content)):
        allowance.spend(path, _BYTES_AN_OPCODE)
        if opcode.name == "STOP":
            break
        machine.step(opcode.name, argument)
    return machine.stack.pop()


class _Machine:
    """A stack, the marks in it, and a memo."""

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
