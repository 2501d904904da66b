"""A task as it goes to a cluster: pickled where the user's modules are, with what its workers must agree on."""

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
    """Plain values, for whichever process talks to the cluster.

    Attributes:
        pickled: the task, as bytes: arrays that Ray itself unpickles cannot be written to.
        program: what workers must be, as ``node.report`` says it, with the ``folders`` that the user's modules are in
            and the working directory, for machines that have these too.
        double: whether JAX computes in double precision here.
    """

    pickled: bytes
    program: Fields
    double: bool


def pack(task: Task) -> Parcel:
    """A task to be sent. A user's own modules go along, as other machines do not have them."""
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
    """Digests of this package and of the user's files that a worker would import by itself."""
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
    """This package as it is when it is first sent."""
    return node.report([])


def _unwrapped(things: list[object]) -> Iterator[object]:
    """Trainers and attacks, and what they were made of by ``functools.partial`` or are methods of."""
    while things:
        thing = things.pop()
        if isinstance(thing, partial):
            things += [thing.func, *thing.args, *thing.keywords.values()]
        elif isinstance(thing, MethodType):
            things += [thing.__func__, thing.__self__]
        else:
            yield thing


def _users_module(thing: object) -> ModuleType | None:
    """The module of a trainer or an attack, if it is a user's own. What is in __main__ goes along anyway."""
    written = thing if isinstance(thing, (FunctionType, type)) else type(thing)
    name = written.__module__
    return None if name == "__main__" or is_installed(written) else sys.modules.get(name)


def _users_file(name: str) -> Path | None:
    """The file of a module that is loaded, if it is a user's own."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None or file is None or is_installed(module):
        return None
    return Path(file).resolve() if Path(file).suffix == ".py" and Path(file).is_file() else None


def _module_name(file: Path) -> str:
    """By which name a file is imported, from the folder that its outermost package is in."""
    path = file.parent if file.name == "__init__.py" else file.with_suffix("")
    return ".".join(path.relative_to(_root(file)).parts)


def _root(file: Path) -> Path:
    """The folder that a file is imported from: that of its outermost package."""
    folder = file.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder
