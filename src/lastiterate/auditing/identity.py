"""Which audit is this? All that determines its scores, as declared plain values, which a store keeps and compares.

Our own code counts by the names of what it offers, so that a sentence may be reworded, a function moved or Python
renewed, and stores are still resumed. A user's code counts by its source: any change of it may change the scores.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TypeAlias

import numpy as np

from lastiterate.answers import run_fields
from lastiterate.auditing.design import Design, OneModel
from lastiterate.auditing.sources import UNKNOWN, Code, is_installed, own_source
from lastiterate.optimizer import SGD
from lastiterate.run import DPSGD

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
    kind: dict[str, Plain] = {"kind": "one-model" if isinstance(design, OneModel) else "paired"}
    values: dict[str, Plain] = {
        "version": VERSION,
        "run": describe_run(run),
        "problem": prints.of(problem),
        "attack": prints.attack(attack),
        "design": kind | {"models": design.models},
        "seed": seed,
        **more,
    }
    return Identity(values, tuple(prints.unknown))


def describe_run(run: DPSGD) -> dict[str, Plain]:
    """A run as plain values."""
    return {**run_fields(run), "clip_norm": run.clip_norm}


def read_run(described: Mapping[str, object]) -> DPSGD:
    """The run that was described."""
    given = dict(described)
    if isinstance(sgd := given.get("optimizer"), dict):
        given["optimizer"] = SGD(**sgd)
    return DPSGD(**given)  # type: ignore[arg-type]


def fingerprint(value: object) -> str:
    """A digest of values: numbers, arrays, functions, and whatever contains them."""
    return _Prints().of(value)


class _Prints:
    """Digests, and a list of the functions whose source could not be found."""

    def __init__(self) -> None:
        self.unknown: list[str] = []

    def of(self, value: object) -> str:
        digest = hashlib.sha256()
        self._add(digest.update, value, {})
        return digest.hexdigest()[:16]

    def attack(self, attack: object) -> dict[str, Plain] | None:
        """An attack by its name and its fields; one of the user's by its source, too."""
        if attack is None:
            return None
        plain: dict[str, Plain] = {
            name: value if isinstance(value, _SIMPLE) else self.of(value) for name, value in _fields(attack).items()
        }
        if not is_installed(type(attack)):
            plain["source"] = self._source(type(attack))
        return {"name": type(attack).__name__, **plain}

    def _source(self, thing: Code) -> str:
        found = own_source(thing)
        if found == UNKNOWN:
            self.unknown.append(getattr(thing, "__name__", type(thing).__name__))
        return found

    def _add(self, add: Callable[[bytes], None], value: object, seen: dict[int, object]) -> None:
        if isinstance(value, (*_SIMPLE, complex, bytes)):
            add(repr(value).encode())
            return
        if id(value) in seen:
            return
        seen[id(value)] = value  # kept alive, so that no other object gets its id
        inner = functools.partial(self._add, add, seen=seen)
        if isinstance(value, Mapping):
            for key, item in value.items():
                inner(key)
                inner(item)
        elif isinstance(value, (list, tuple)):
            add(f"{len(value)}".encode())
            for item in value:
                inner(item)
        elif (array := _as_array(value)) is not None:
            add(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        elif isinstance(value, functools.partial):
            inner([value.func, value.args, value.keywords])
        elif isinstance(value, MethodType):
            inner([value.__func__, value.__self__])
        elif isinstance(value, FunctionType):
            add((value.__name__ if is_installed(value) else self._source(value)).encode())
            inner([value.__defaults__, value.__kwdefaults__])
            inner([cell.cell_contents for cell in value.__closure__ or ()])
        elif isinstance(value, (type, BuiltinFunctionType, np.ufunc)):
            add(value.__name__.encode())
        elif (wrapped := getattr(value, "__wrapped__", None)) is not None:  # as jax.jit leaves a function
            inner(wrapped)
        elif isinstance(value, (set, frozenset)):
            inner(sorted(map(repr, value)))
        else:
            add(type(value).__name__.encode())
            if callable(value) and not is_installed(type(value)):
                add(self._source(type(value)).encode())
            inner(_fields(value))
            if not hasattr(value, "__dict__") and type(value).__repr__ is not object.__repr__:
                add(repr(value).encode())


def _as_array(value: object) -> np.ndarray | None:
    """An array of NumPy, JAX or PyTorch; None: it is none."""
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(value) if hasattr(value, "__array__") and not isinstance(value, type) else None


def _fields(value: object) -> dict[str, object]:
    """What an object holds; of a dataclass, the fields that are compared."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value) if field.compare}
    return dict(getattr(value, "__dict__", {}))
