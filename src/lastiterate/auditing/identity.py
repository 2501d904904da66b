"""Which audit is this? All that determines its scores, as declared plain values, which a store keeps and compares.

Our own code counts by the names of what it offers, so that a sentence may be reworded, a function moved or Python
renewed, and stores are still resumed. A user's code counts by its source: any change of it may change the scores.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import math
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pickle import PicklingError
from types import CellType, FunctionType, MethodType, ModuleType
from typing import TypeAlias

import numpy as np

from lastiterate.auditing.design import Design, OpenEnded, kind_name
from lastiterate.auditing.user_code import Code, globals_of, is_installed, is_ours, own_source
from lastiterate.common.validation import number, one_of
from lastiterate.compare_analyses import run_fields
from lastiterate.optimizer import SGD, Adam, is_sgd
from lastiterate.run import DPSGD, USUAL_NEIGHBOURS

Plain: TypeAlias = "str | int | float | bool | list[Plain] | dict[str, Plain] | None"

VERSION = 1  # of what is compared; a change of meaning gets a new number and a way to read the old one
_SIMPLE = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class Identity:
    """What two audits must have in common to have the same scores.

    Attributes:
        values: all of it, as what JSON has.
        unknown: what has no source, in words: such an audit cannot be told from another, and is not resumed.
    """

    values: dict[str, Plain]
    unknown: tuple[str, ...] = ()

    def digest(self) -> str:
        """A few letters that tell it from others, for names of files."""
        return fingerprint(self.values)[:8]


def identify(run: DPSGD, problem: object, attack: object, design: Design, seed: int, **more: Plain) -> Identity:
    """The identity of an audit of this problem by this attack."""
    prints = _Prints()
    kind: dict[str, Plain] = {"kind": kind_name(design)}
    number: dict[str, Plain] = {} if isinstance(design, OpenEnded) else {"models": design.models}
    values: dict[str, Plain] = {
        "version": VERSION,
        "run": describe_run(run),
        "problem": prints.of(problem),
        "attack": prints.attack(attack),
        "design": kind | number,
        "seed": seed,
        **more,
    }
    return Identity(values, tuple(prints.unknown))


def describe_run(run: DPSGD) -> dict[str, Plain]:
    """A run as plain values, as stores have always had it.

    SGD has no name: stores had it before there were other optimizers. Neighbours that are the default of the sampling,
    and batches per epoch, which follow from the sample rate, are left out.
    """
    described: dict[str, Plain] = {**run_fields(run), "clip_norm": run.clip_norm}
    described.pop("batches_per_epoch", None)
    if run.neighbours == USUAL_NEIGHBOURS[run.sampling]:
        described.pop("neighbours", None)
    if is_sgd(run.optimizer) and isinstance(sgd := described["optimizer"], dict):
        described["optimizer"] = {name: value for name, value in sgd.items() if name != "name"}
    return described


def read_run(described: Mapping[str, object]) -> DPSGD:
    """The run that was described; what former versions called add-remove is zero-out with some samplings."""
    given = dict(described)
    if given.get("neighbours") == "add-remove":
        del given["neighbours"]  # the default, or zero-out
    if given.get("sampling") == "shuffled":
        batches = 1.0 / number("sample_rate", given.get("sample_rate"), 1e-300, 1.0)
        given["batches_per_epoch"] = math.ceil(batches - max(1e-9, 1e-12 * batches))
    if isinstance(optimizer := given.get("optimizer"), dict):
        values = {name: value for name, value in optimizer.items() if name != "name"}
        kinds = {"sgd": SGD, "adam": Adam, "adamw": Adam}
        given["optimizer"] = kinds[one_of("optimizer", optimizer.get("name", "sgd"), kinds)](**values)
    return DPSGD(**given)  # type: ignore[arg-type]


def fingerprint(value: object) -> str:
    """A digest of values: numbers, arrays, functions, and whatever contains them."""
    return _Prints().of(value)


class _Prints:
    """Digests of values, and a list of the code whose source could not be found."""

    def __init__(self) -> None:
        self.unknown: list[str] = []
        self._known: dict[int, tuple[object, bytes]] = {}  # with the object, so that no other gets its id
        self._sources: dict[int, tuple[object, str | None]] = {}

    def of(self, value: object) -> str:
        return self._digest(value).hex()[:16]

    def attack(self, attack: object) -> dict[str, Plain] | None:
        """An attack by its class and its fields; "class" is no name that a field can have."""
        if attack is None:
            return None
        plain: dict[str, Plain] = {"class": type(attack).__name__}
        if not is_installed(type(attack)):
            plain["class source"] = self.of(type(attack))
        for name, value in _fields(attack).items():
            plain[name] = value if isinstance(value, _SIMPLE) else self.of(value)
        return plain

    def _digest(self, value: object) -> bytes:
        """Of one value. What it consists of counts by the digests of its parts, so that none runs into the next."""
        for kind in (bool, int, float, complex, str, bytes):
            if isinstance(value, kind):
                return _hash(kind.__name__, kind.__repr__(value))
        if id(value) in self._known:
            return self._known[id(value)][1]
        self._known[id(value)] = value, _hash("itself", "")  # what is met again while its own parts are looked at
        found = _hash(*self._parts(value))
        self._known[id(value)] = value, found
        return found

    def _parts(self, value: object) -> Iterator[str | bytes]:
        """What distinguishes a value from others: texts, and the digests of what it holds."""
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
            yield inner(wrapped)  # as jax.jit leaves a function
        elif not self._is_users(type(value)) and callable(value) and isinstance(getattr(value, "__name__", None), str):
            yield from self._compiled(value)
        else:
            yield "object"
            yield from self._class(type(value))
            yield inner(_fields(value))

    def _compiled(self, function: Code) -> Iterator[str | bytes]:
        """By its name, and what it is a method of."""
        yield function.__name__
        owner = getattr(function, "__self__", getattr(function, "__objclass__", None))
        if owner is not None and not isinstance(owner, ModuleType):
            yield self._digest(owner)
        elif not is_installed(function if owner is None else owner):
            yield self._source(function)

    def _function(self, function: FunctionType) -> Iterator[str | bytes]:
        yield "function"
        bound: list[object] = [function.__defaults__, function.__kwdefaults__]
        bound += [_content(cell) for cell in function.__closure__ or ()]
        if is_installed(function):
            yield function.__qualname__ if function.__name__ == "<lambda>" else function.__name__
        else:
            yield self._source(function)
            bound += [vars(function), globals_of(function)]
        yield self._digest(bound)

    def _class(self, kind: type) -> Iterator[str | bytes]:
        """A class by its name, and those that it is made of by their sources, where they are the user's."""
        yield kind.__name__
        for base in kind.__mro__:
            if not is_installed(base):
                yield self._source(base)

    def _is_users(self, kind: type) -> bool:
        """Whether a class is a user's that was written in Python."""
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
    """A digest of texts, in which none runs into the next."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.digest()


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was put into it yet
        return None


def _as_array(value: object) -> np.ndarray | None:
    """An array of NumPy, JAX or PyTorch; None: it is none, or one that NumPy cannot hold."""
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
    """What an object holds. Our own dataclasses say by ``compare`` which of their fields matter."""
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
    """What an object of compiled code would be made of again; None where it cannot say."""
    registered = copyreg.dispatch_table.get(type(value))
    try:
        made = registered(value) if registered else value.__reduce_ex__(2)
    except (TypeError, ValueError, AttributeError, RuntimeError, PicklingError):
        return None
    return made[:3] if isinstance(made, tuple) else made


# Versions of what scores may depend on, as installed where a model is trained.

PACKAGES = ("lastiterate", "numpy", "scipy", "jax", "jaxlib", "torch", "transformers")


def versions() -> dict[str, str]:
    """Python's version, and those of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
