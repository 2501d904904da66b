"""Users' files as modules that nobody else's name can collide with, and that other processes find by their name.

The module of ``/home/me/json.py`` is called ``lastiterate.auditing.trainer_files._2fhome_2fme_2fjson_2epy``: its name
says where it is. So a trainer may be called like any module of Python, and what it pickles by name can be unpickled in
a process that it starts, whatever the way in which processes are started.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

__path__: list[str] = []  # what makes this module one that others can be in

_ENCODED = re.compile(rb"_([0-9a-f]{2})")


def import_file(file: Path) -> ModuleType:
    """Run a Python file as a module. What is beside it can be imported from now on, as if it were run by Python.

    It can even later, inside a function or by a process that the trainer starts. But the folder comes last on the path,
    where ``python file.py`` puts it first: a ``numpy.py`` in it must not become the numpy of this package.
    """
    path = file.resolve()
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.append(folder)
    importlib.invalidate_caches()
    name = _name(path)
    sys.modules.pop(name, None)  # it may have changed
    return importlib.import_module(name)


def is_python(file: Path) -> bool:
    """Whether Python would take this for a module, which it tells by the end of the name."""
    return spec_from_file_location("any", file) is not None


def _name(path: Path) -> str:
    encoded = "".join(chr(byte) if chr(byte).isalnum() and byte < 128 else f"_{byte:02x}" for byte in os.fsencode(path))
    return f"{__name__}.{encoded}"


class _Finder:
    """Finds the files by the names that they have here."""

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
