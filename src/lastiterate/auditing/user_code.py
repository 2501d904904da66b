"""Imports of a user's Python files, and digests of a user's code and of the user's files that it imports."""

import ast
import hashlib
import importlib
import inspect
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
_MADE_AT_RUN_TIME = 1 << 9  # Py_TPFLAGS_HEAPTYPE, set for classes defined in Python and for few classes of C code


def is_ours(thing: Code) -> bool:
    """Return whether a function or a class belongs to this package."""
    file = _file(thing)
    return file is not None and file.is_relative_to(_OURS)


def is_installed(thing: Code | ModuleType) -> bool:
    """Return whether code belongs to Python or an installed package, and not to a user."""
    file = _file(thing)
    if file is not None:
        return _is_installed(file)
    if isinstance(thing, FunctionType):
        return thing.__code__.co_filename.startswith("<frozen ")  # else the code has no file and is a user's
    is_module = isinstance(thing, ModuleType)
    name = thing.__name__ if is_module else getattr(thing, "__module__", None) or ""
    compiled = getattr(thing if is_module else sys.modules.get(name), "__file__", None)
    if compiled is not None:
        return _is_installed(Path(compiled).resolve())
    if name == "builtins" and not is_module:  # classes that exec makes are in builtins, too
        return isinstance(thing, type) and not thing.__flags__ & _MADE_AT_RUN_TIME
    return name in sys.builtin_module_names


def own_source(thing: Code | ModuleType) -> str | None:
    """Return a digest of a user's code that does not depend on its path, or None if the source is not available."""
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
    """Return the globals that a function uses, or an empty dictionary if a file's digest already covers them."""
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


def _imported(path: Path) -> Iterator[Path]:
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
    try:
        path = Path(inspect.getsourcefile(thing) or "")
    except TypeError:
        return None
    return path.resolve() if path.is_file() else None


def _place(thing: Code | ModuleType) -> str:
    name = getattr(thing, "__qualname__", "")
    if not isinstance(thing, FunctionType) or thing.__name__ != "<lambda>":
        return name
    columns = [position[2] for position in thing.__code__.co_positions() if position[2]]
    return f"{name} {min(columns, default=0)}"


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_installed(path: Path) -> bool:
    # The user's folder may contain a virtual environment with installed packages and Python's library.
    return bool({"site-packages", "dist-packages"} & set(path.parts)) or any(
        path.is_relative_to(folder) for folder in (_OURS, *_INSTALLED)
    )


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


# Imports: ``/home/me/json.py`` becomes the module ``lastiterate.auditing.user_code./home/me/json``. This name cannot
# collide with a module of Python, and any other process can unpickle objects of the module.

__path__: list[str] = []  # makes this module a package


def import_file(file: Path) -> ModuleType:
    """Import a Python file as a module. Its folder is added to ``sys.path``."""
    path = file.resolve()
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.append(folder)  # at the end, so that a ``numpy.py`` in the folder does not replace NumPy
    importlib.invalidate_caches()
    name = f"{__name__}.{str(path).removesuffix('.py').replace('%', '%25').replace('.', '%2e')}"
    sys.modules.pop(name, None)  # the file may have changed
    return importlib.import_module(name)


def is_python(file: Path) -> bool:
    """Return whether the file's suffix is one that Python can import."""
    return spec_from_file_location("any", file) is not None


class _Finder:
    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, encoded = fullname.rpartition(".")
        if package != __name__:
            return None
        decoded = encoded.replace("%2e", ".").replace("%25", "%")
        return spec_from_file_location(fullname, f"{decoded}.py" if Path(f"{decoded}.py").is_file() else decoded)


sys.meta_path.append(_Finder)
