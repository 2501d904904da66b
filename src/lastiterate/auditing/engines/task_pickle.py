"""Pickled tasks for a cluster, with the user's modules and the digests that workers must match."""

from __future__ import annotations

import pickle
import pickletools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import FunctionType, MethodType, ModuleType

from lastiterate.auditing.engines import worker_fingerprint as node
from lastiterate.auditing.engines.ray_cluster import import_ray
from lastiterate.auditing.engines.ray_worker import Task
from lastiterate.auditing.user_code import is_installed, neighbours
from lastiterate.common.types import Fields


@dataclass(frozen=True, eq=False)
class Parcel:
    """A pickled task as plain values, which any process can send to the cluster.

    Attributes:
        pickled: the task as bytes, because arrays that Ray itself unpickles are read-only.
        program: the program that workers must match, a ``node.report`` with the ``folders`` of the user's modules and
            the working directory, for machines that have these folders too.
        double: whether JAX uses double precision in this process.
    """

    pickled: bytes
    program: Fields
    double: bool


def pack(task: Task) -> Parcel:
    """Pickle a task to be sent. The user's own modules are pickled by value, as other machines do not have them."""
    cloudpickle = import_ray().cloudpickle
    things = _unwrapped(list(vars(task.experiment).values()))
    by_value = {module.__name__: module for module in map(_users_module, things) if module}
    for module in by_value.values():
        cloudpickle.register_pickle_by_value(module)
    try:
        pickled = bytes(cloudpickle.dumps(task))
    except (TypeError, pickle.PicklingError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"the trainer must be one that can be sent to other processes: {reason}") from None
    finally:
        for module in by_value.values():
            cloudpickle.unregister_pickle_by_value(module)
    jax = sys.modules.get("jax")
    program = _program(pickled, {"__main__", *by_value})
    return Parcel(pickled, program, jax is not None and bool(jax.config.x64_enabled))


def _program(pickled: bytes, by_value: set[str]) -> Fields:
    """Return digests of this package and of the user's files that a worker imports from its own disk."""
    told = {argument for _, argument, _ in pickletools.genops(pickled) if isinstance(argument, str)}
    files = {name: file for name in told if (file := _users_file(name))}
    sent = {file for name, file in files.items() if name in by_value}
    imported = {_module_name(file): file for known in files.values() for file in neighbours(known) - sent}
    folders = {str(_root(file)) for name, file in {**imported, **files}.items() if name != "__main__"}
    return {
        **_ourselves(),
        "modules": {name: node.digest_of_file(file) for name, file in sorted(imported.items())},
        "folders": sorted(folders),
        "cwd": str(Path.cwd()),
    }


@cache
def _ourselves() -> Fields:
    """Return the report of this package, as it is when it is first sent."""
    return node.report([])


def _unwrapped(things: list[object]) -> Iterator[object]:
    """Yield the objects, with each ``functools.partial`` and each bound method replaced by its parts."""
    while things:
        thing = things.pop()
        if isinstance(thing, partial):
            things += [thing.func, *thing.args, *thing.keywords.values()]
        elif isinstance(thing, MethodType):
            things += [thing.__func__, thing.__self__]
        else:
            yield thing


def _users_module(thing: object) -> ModuleType | None:
    """Return the module of a trainer or an attack if it is the user's own, except __main__, which is always sent."""
    written = thing if isinstance(thing, (FunctionType, type)) else type(thing)
    name = written.__module__
    return None if name == "__main__" or is_installed(written) else sys.modules.get(name)


def _users_file(name: str) -> Path | None:
    """Return the file of a loaded module if it is the user's own."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None or file is None or is_installed(module):
        return None
    return Path(file).resolve() if Path(file).suffix == ".py" and Path(file).is_file() else None


def _module_name(file: Path) -> str:
    """Return the name under which a file is imported from the folder of its outermost package."""
    path = file.parent if file.name == "__init__.py" else file.with_suffix("")
    return ".".join(path.relative_to(_root(file)).parts)


def _root(file: Path) -> Path:
    """Return the folder that a file is imported from, which contains its outermost package."""
    folder = file.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder
