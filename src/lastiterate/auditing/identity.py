"""The identity of an audit: all values that determine its scores, as plain values. A store keeps and compares them.

Functions and classes of this package are identified by name, and a user's code by its source.
"""

import copyreg
import functools
import hashlib
import math
import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pickle import PicklingError
from types import FunctionType, MethodType, ModuleType
from typing import TypeAlias

import numpy as np

from lastiterate.auditing.design import Design, OpenEnded
from lastiterate.auditing.user_code import Code, globals_of, is_installed, is_ours, own_source
from lastiterate.common.validation import number, one_of
from lastiterate.compare_analyses import run_fields
from lastiterate.mechanism import SAMPLINGS
from lastiterate.optimizer import SGD, Adam
from lastiterate.run import DPSGD

Plain: TypeAlias = "str | int | float | bool | list[Plain] | dict[str, Plain] | None"

VERSION = 1  # version of the format
_SIMPLE = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class Identity:
    """All values that two audits must share to have the same scores, as JSON types."""

    values: dict[str, Plain]
    unknown: tuple[str, ...] = ()  # code whose source is unknown; an audit with such code cannot be resumed

    def digest(self) -> str:
        return fingerprint(self.values)[:8]


def identify(run: DPSGD, problem: object, attack: object, design: Design, seed: int, **more: Plain) -> Identity:
    """Return the identity of an audit of this problem by this attack."""
    prints = _Prints()
    number: dict[str, Plain] = {} if isinstance(design, OpenEnded) else {"models": design.models}
    values: dict[str, Plain] = {
        "version": VERSION,
        "run": describe_run(run),
        "problem": prints.of(problem),
        "attack": prints.attack(attack),
        "design": {"kind": design.kind, **number},
        "seed": seed,
        **more,
    }
    return Identity(values, tuple(prints.unknown))


def describe_run(run: DPSGD) -> dict[str, Plain]:
    """Return a run as plain values, without default values and derived values."""
    described: dict[str, Plain] = {**run_fields(run), "clip_norm": run.clip_norm}
    described.pop("batches_per_epoch", None)
    if run.neighbours == SAMPLINGS[run.sampling].neighbours:
        described.pop("neighbours", None)
    if isinstance(optimizer := described.get("optimizer"), dict) and optimizer["name"] == SGD.name:
        del optimizer["name"]
    return described


def read_run(described: Mapping[str, object]) -> DPSGD:
    """Return the run that ``describe_run`` described."""
    given = dict(described)
    if given.get("sampling") == "shuffled":
        batches = 1.0 / number("sample_rate", given.get("sample_rate"), 1e-300, 1.0)
        given["batches_per_epoch"] = math.ceil(batches - max(1e-9, 1e-12 * batches))
    if isinstance(optimizer := given.get("optimizer"), dict):
        values = {name: value for name, value in optimizer.items() if name != "name"}
        kinds = {"sgd": SGD, "adam": Adam, "adamw": Adam}
        given["optimizer"] = kinds[one_of("optimizer", optimizer.get("name", "sgd"), kinds)](**values)
    return DPSGD(**given)  # type: ignore[arg-type]


def fingerprint(value: object) -> str:
    """Return a digest of a number, an array, a function, or an object that contains such values."""
    return _Prints().of(value)


class _Prints:
    """Digests of values, and a list of the code whose source could not be found."""

    def __init__(self) -> None:
        self.unknown: list[str] = []
        self._known: dict[int, tuple[object, bytes]] = {}  # keeping the object keeps its id from being reused
        self._sources: dict[int, tuple[object, str | None]] = {}

    def of(self, value: object) -> str:
        return self._digest(value).hex()[:16]

    def attack(self, attack: object) -> dict[str, Plain] | None:
        """Return an attack as its class and its fields."""
        if attack is None:
            return None
        plain: dict[str, Plain] = {"class": type(attack).__name__}
        if not is_installed(type(attack)):
            plain["class source"] = self.of(type(attack))
        for name, value in _fields(attack).items():
            plain[name] = value if isinstance(value, _SIMPLE) else self.of(value)
        return plain

    def _digest(self, value: object) -> bytes:
        for kind in (bool, int, float, complex, str, bytes):
            if isinstance(value, kind):
                return _hash(kind.__name__, kind.__repr__(value))
        if id(value) in self._known:
            return self._known[id(value)][1]
        self._known[id(value)] = value, _hash("itself", "")  # for a value that contains itself
        found = _hash(*self._parts(value))
        self._known[id(value)] = value, found
        return found

    def _parts(self, value: object) -> Iterator[str | bytes]:
        inner = self._digest
        if value is None:
            yield "None"
        elif isinstance(value, Mapping):
            yield "mapping"
            for key, item in value.items():
                yield from (inner(key), inner(item))
        elif isinstance(value, (list, tuple)):
            yield "list"
            yield from map(inner, value)
        elif isinstance(value, (set, frozenset)):
            yield "set"
            yield from sorted(map(inner, value))
        elif (array := _as_array(value)) is not None:
            yield f"array {array.dtype} {array.shape}"
            yield inner(array.tolist()) if array.dtype.hasobject else np.ascontiguousarray(array).tobytes()
        elif isinstance(value, functools.partial):
            yield "partial"
            yield inner([value.func, value.args, value.keywords, vars(value)])
        elif isinstance(value, MethodType):
            yield "method"
            yield inner([value.__func__, value.__self__])
        elif isinstance(value, FunctionType):
            yield from self._function(value)
        elif isinstance(value, type):
            yield "class"
            yield from self._class(value)
        elif isinstance(value, ModuleType):
            yield value.__name__ if is_installed(value) else self._source(value)
        elif not self._is_users(type(value)) and (wrapped := getattr(value, "__wrapped__", None)) is not None:
            yield inner(wrapped)  # jax.jit wraps a function this way
        elif not self._is_users(type(value)) and callable(value) and isinstance(getattr(value, "__name__", None), str):
            yield from self._compiled(value)
        else:
            yield "object"
            yield from self._class(type(value))
            yield inner(_fields(value))

    def _compiled(self, function: Code) -> Iterator[str | bytes]:
        yield function.__name__
        owner = getattr(function, "__self__", getattr(function, "__objclass__", None))
        if owner is not None and not isinstance(owner, ModuleType):
            yield self._digest(owner)
        elif not is_installed(function if owner is None else owner):
            yield self._source(function)

    def _function(self, function: FunctionType) -> Iterator[str | bytes]:
        yield "function"
        bound: list[object] = [function.__defaults__, function.__kwdefaults__]
        for cell in function.__closure__ or ():
            bound.append(None)
            with suppress(ValueError):  # the cell is empty
                bound[-1] = cell.cell_contents
        if is_installed(function):
            yield function.__qualname__ if function.__name__ == "<lambda>" else function.__name__
        else:
            yield self._source(function)
            bound += [vars(function), globals_of(function)]
        yield self._digest(bound)

    def _class(self, kind: type) -> Iterator[str | bytes]:
        yield kind.__name__
        for base in kind.__mro__:
            if not is_installed(base):
                yield self._source(base)

    def _is_users(self, kind: type) -> bool:
        return not is_installed(kind) and self._own_source(kind) is not None

    def _source(self, thing: Code | ModuleType) -> str:
        found = self._own_source(thing)
        if found is None and thing.__name__ not in self.unknown:
            self.unknown.append(thing.__name__)
        return found or "unknown"

    def _own_source(self, thing: Code | ModuleType) -> str | None:
        if id(thing) not in self._sources:
            self._sources[id(thing)] = thing, own_source(thing)
        return self._sources[id(thing)][1]


def _hash(*parts: str | bytes) -> bytes:
    """Digest texts, each with its length, so that texts cannot run together."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.digest()


def _as_array(value: object) -> np.ndarray | None:
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    if isinstance(value, type) or not hasattr(value, "__array__"):
        return None
    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
        value = value.detach().cpu()
    try:
        return np.asarray(value)
    except TypeError:  # PyTorch's bfloat16, or JAX's keys
        return np.asarray(value.double()) if hasattr(value, "double") else None


def _fields(value: object) -> dict[str, object]:
    if is_dataclass(value) and not isinstance(value, type) and is_ours(type(value)):
        return {field.name: getattr(value, field.name) for field in fields(value) if field.compare}
    held = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if hasattr(value, name) and name not in ("__dict__", "__weakref__"):
                held[name] = getattr(value, name)
    return held or {"state": _state(value)}


def _state(value: object) -> object:
    """Return the values from which pickle would rebuild an object of compiled code, or None."""
    registered = copyreg.dispatch_table.get(type(value))
    try:
        made = registered(value) if registered else value.__reduce_ex__(2)
    except (TypeError, ValueError, AttributeError, RuntimeError, PicklingError):
        return None
    return made[:3] if isinstance(made, tuple) else made


PACKAGES = ("lastiterate", "numpy", "scipy", "jax", "jaxlib", "torch", "transformers")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
