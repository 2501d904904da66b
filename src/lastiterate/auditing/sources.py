"""The source of a user's code: of its file, and of the files beside it that it imports, however indirectly."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import TypeAlias

Code: TypeAlias = Callable[..., object]  # a function or a class

UNKNOWN = "unknown"
_PACKAGE = __name__.partition(".")[0]
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib"))


def is_installed(thing: Code) -> bool:
    """Whether a function or a class is of this package, of Python, or of any other package: not a user's own."""
    name = str(getattr(thing, "__module__", None) or "").partition(".")[0]
    file = _file(thing)
    if file is None:
        return name == _PACKAGE or (name in sys.stdlib_module_names and name != "__main__")
    return name == _PACKAGE or _is_installed(file)


def own_source(thing: Code) -> str:
    """A digest of the code that a function or a class runs; ``UNKNOWN`` where no file and no text of it is left."""
    file = _file(thing)
    if file is not None:
        sources = [path.read_text(encoding="utf-8", errors="replace") for path in sorted(neighbours(file))]
    else:
        try:
            sources = [inspect.getsource(thing)]
        except (OSError, TypeError):
            return UNKNOWN
    return hashlib.sha256("\0".join([_place(thing), *sources]).encode()).hexdigest()[:16]


def neighbours(file: Path) -> set[Path]:
    """The file and those beside it, or where the program starts, that it imports, and that these import."""
    found: set[Path] = set()
    waiting = [file.resolve()]
    while waiting:
        path = waiting.pop()
        if path not in found and not _is_installed(path):
            found.add(path)
            waiting += _imported(path)
    return found


def _imported(path: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, SyntaxError, ValueError):
        return
    roots = [path.parent, *(parent for parent in path.parents if str(parent) in sys.path)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files_of(roots, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            starts = [path.parents[node.level - 1]] if node.level else roots
            for name in [base, *(f"{base}.{alias.name}".strip(".") for alias in node.names)]:
                yield from _files_of(starts, name)


def _files_of(starts: list[Path], name: str) -> Iterator[Path]:
    for start in starts if name else []:
        where = start.joinpath(*name.split("."))
        for candidate in (where.with_suffix(".py"), where / "__init__.py"):
            if candidate.is_file():
                yield candidate.resolve()


def _file(thing: Code) -> Path | None:
    """Where it was written, if that is a file that is still there."""
    try:
        path = Path(inspect.getsourcefile(thing) or "")
    except TypeError:
        return None
    return path if path.is_file() else None


def _place(thing: Code) -> str:
    """Which of the functions of its file it is: several may go without a name, even in one line."""
    name = getattr(thing, "__qualname__", "")
    if not isinstance(thing, FunctionType) or thing.__name__ != "<lambda>":
        return name
    columns = [position[2] for position in thing.__code__.co_positions() if position[2]]
    return f"{name} {thing.__code__.co_firstlineno} {min(columns, default=0)}"


def _is_installed(file: Path) -> bool:
    # An environment may lie within the user's own folder, and Python's library within that.
    return "site-packages" in file.parts or str(file).startswith(_INSTALLED)
