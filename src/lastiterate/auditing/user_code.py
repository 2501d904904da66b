"""Source digests and imports of a user's code: its file, and the user's files that it imports, also indirectly."""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TypeAlias

Code: TypeAlias = Callable[..., object]  # a function or a class

_OURS = Path(__file__).resolve().parents[1]
_INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib"))
_MADE_AT_RUN_TIME = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class statement makes such types, C code mostly others


def is_ours(thing: Code) -> bool:
    """Return whether a function or a class belongs to this package."""
    file = _file(thing)
    return file is not None and file.is_relative_to(_OURS)


def is_installed(thing: Code | ModuleType) -> bool:
    """Return whether a module, function or class belongs to this package, Python or another package, not to a user."""
    file = _file(thing)
    if file is not None:
        return _is_installed(file)
    if isinstance(thing, ModuleType):
        compiled = getattr(thing, "__file__", None)
        return (
            thing.__name__ in sys.builtin_module_names if compiled is None else _is_installed(Path(compiled).resolve())
        )
    if isinstance(thing, FunctionType):
        return thing.__code__.co_filename.startswith("<frozen ")  # Python's own; the rest comes from exec or a session
    name = getattr(thing, "__module__", None) or ""
    compiled = getattr(sys.modules.get(name), "__file__", None)
    if compiled is not None:
        return _is_installed(Path(compiled).resolve())
    if name == "builtins":  # also the module of classes that exec makes
        return isinstance(thing, type) and not thing.__flags__ & _MADE_AT_RUN_TIME
    return name in sys.builtin_module_names


def own_source(thing: Code | ModuleType) -> str | None:
    """Return a digest of the code of a user's module, function or class; None if neither file nor text exists.

    Folder and name of the file do not count.
    """
    file = _file(thing)
    if file is not None:
        others = sorted(path.name.encode() + _digest(path.read_bytes()) for path in neighbours(file) - {file})
        line = str(thing.__code__.co_firstlineno) if isinstance(thing, FunctionType) else ""
        parts = [line.encode(), _digest(file.read_bytes()), *others]
    else:
        try:
            parts = [inspect.getsource(thing.__code__ if isinstance(thing, FunctionType) else thing).encode()]
        except (OSError, TypeError):
            return None
    return _digest(b"\0".join([_place(thing).encode(), *parts])).hex()[:16]


def globals_of(function: FunctionType) -> dict[str, object]:
    """Return the globals that a function of an interactive session uses; empty for a function in a file.

    The digest of the file covers the globals of a function in a file.
    """
    if _file(function) is not None:
        return {}
    known = function.__globals__
    return {name: known[name] for name in sorted(set(_names(function.__code__))) if name in known}


def neighbours(file: Path) -> set[Path]:
    """Return the file and the user's files that it imports, directly or indirectly."""
    found: set[Path] = set()
    waiting = [file.resolve()]
    while waiting:
        path = waiting.pop()
        if path not in found and not _is_installed(path):
            found.add(path)
            waiting += _imported(path)
    return found


def loaded_modules(file: Path) -> list[ModuleType]:
    """Return the loaded modules of a file and of the user's files that it imports."""
    files = neighbours(file)
    held = [(module, getattr(module, "__file__", None)) for module in list(sys.modules.values())]
    return [module for module, place in held if isinstance(place, str) and Path(place).resolve() in files]


def _imported(path: Path) -> Iterator[Path]:
    """Yield the files of a file's imports, from its folder and from Python's path."""
    package = (path.parent.parent if path.name == "__init__.py" else path.parent) / "__init__.py"
    if package.is_file():
        yield package
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    roots = [path.parent, *(Path(entry or ".").resolve() for entry in sys.path)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files_of(roots, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            starts = [path.parents[min(node.level, len(path.parents)) - 1]] if node.level else roots
            for alias in node.names:
                yield from _files_of(starts, f"{base}.{alias.name}".strip("."))


def _files_of(starts: list[Path], name: str) -> Iterator[Path]:
    """Yield the files of the module of this name and of its packages, from the first folder that has them."""
    for start in starts:
        if _is_installed(start):
            continue
        where, found = start, False
        for part in name.split("."):
            where = where / part
            for candidate in (where.with_name(f"{part}.py"), where / "__init__.py"):
                if candidate.is_file():
                    found = True
                    yield candidate.resolve()
        if found:
            return


def _file(thing: Code | ModuleType) -> Path | None:
    """Return the source file of the code, if it still exists."""
    try:
        path = Path(inspect.getsourcefile(thing) or "")
    except TypeError:
        return None
    return path.resolve() if path.is_file() else None


def _place(thing: Code | ModuleType) -> str:
    """Return the qualified name in the file; for a lambda also its column, because lambdas can share a line."""
    name = getattr(thing, "__qualname__", "")
    if not isinstance(thing, FunctionType) or thing.__name__ != "<lambda>":
        return name
    columns = [position[2] for position in thing.__code__.co_positions() if position[2]]
    return f"{name} {min(columns, default=0)}"


def _names(code: CodeType) -> Iterator[str]:
    """Yield the global names that a function and its inner functions may use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_installed(path: Path) -> bool:
    # The user's folder may contain an environment with site-packages and Python's library.
    return bool({"site-packages", "dist-packages"} & set(path.parts)) or any(
        path.is_relative_to(folder) for folder in (_OURS, *_INSTALLED)
    )


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


# Imports: the name of a user's module encodes its path. ``/home/me/json.py`` becomes the module
# ``lastiterate.auditing.user_code._2fhome_2fme_2fjson_2epy``. It cannot collide with a module of Python, and other
# processes can unpickle its objects, however they are started.

__path__: list[str] = []  # makes this module a package

_ENCODED = re.compile(rb"_([0-9a-f]{2})")


def import_file(file: Path) -> ModuleType:
    """Run a Python file as a module. Files beside it can be imported from now on.

    Later imports inside a function, or in a process that the trainer starts, work too. The folder comes last on the
    path, while ``python file.py`` puts it first: a ``numpy.py`` in it must not replace the numpy of this package.
    """
    path = file.resolve()
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.append(folder)
    importlib.invalidate_caches()
    name = _name(path)
    sys.modules.pop(name, None)  # the file may have changed
    return importlib.import_module(name)


def is_python(file: Path) -> bool:
    """Return whether Python would import this file as a module, judged by its suffix."""
    return spec_from_file_location("any", file) is not None


def _name(path: Path) -> str:
    encoded = "".join(chr(byte) if chr(byte).isalnum() and byte < 128 else f"_{byte:02x}" for byte in os.fsencode(path))
    return f"{__name__}.{encoded}"


class _Finder:
    """A finder of users' files by their encoded module names."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, encoded = fullname.rpartition(".")
        if package != __name__:
            return None
        decoded = _ENCODED.sub(lambda found: bytes.fromhex(found[1].decode()), encoded.encode())
        return spec_from_file_location(fullname, os.fsdecode(decoded))


sys.meta_path.append(_Finder)
