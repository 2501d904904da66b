"""All that determines an audit's scores, as plain values: what a store keeps, and compares before it resumes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from types import CodeType
from typing import Any

import numpy as np

from lastiterate.answers import run_fields
from lastiterate.auditing.user_trainer import SEED_NUMBERING
from lastiterate.optimizer import SGD
from lastiterate.run import DPSGD


def specification(run: DPSGD, problem: Any, attack: Any, models: int, seed: int, data: str) -> dict[str, Any]:
    """The specification of an audit; two audits with equal ones have equal scores."""
    return {
        "run": describe_run(run),
        "data": data,
        "problem": fingerprint(problem),
        "attack": describe_attack(attack),
        "models": models,
        "seed": seed,
        **({"trainer_seeds": SEED_NUMBERING} if callable(problem) else {}),
    }


def store_name(name: str, described: dict[str, Any]) -> str:
    """The file of an audit with this specification; another one's has another name."""
    return f"{name}-{fingerprint(described)[:8]}.sqlite"


def describe_run(run: DPSGD) -> dict[str, Any]:
    """A run as plain values."""
    return {**run_fields(run), "clip_norm": run.clip_norm}


def read_run(described: dict[str, Any]) -> DPSGD:
    """The run that was described."""
    given = dict(described)
    if given.get("optimizer"):
        given["optimizer"] = SGD(**given["optimizer"])
    return DPSGD(**given)


def describe_attack(attack: Any) -> dict[str, Any] | None:
    """An attack by its name and fields; arrays are represented by their fingerprints."""
    if attack is None:
        return None
    values = {f.name: getattr(attack, f.name) for f in fields(attack)} if is_dataclass(attack) else vars(attack)
    plain = {
        name: value if isinstance(value, (str, int, float, bool, type(None))) else fingerprint(value)
        for name, value in values.items()
    }
    return {"name": type(attack).__name__, **plain}


def fingerprint(value: Any) -> str:
    """A digest of arrays, functions, and what contains them. Functions count by their code and what they close over."""
    digest = hashlib.sha256()
    _add(digest.update, value, {})
    return digest.hexdigest()[:16]


def _add(add: Callable[[bytes], None], value: Any, seen: dict[int, Any]) -> None:
    if isinstance(value, (str, int, float, bool, complex, bytes, type(None))):
        add(repr(value).encode())
        return
    if id(value) in seen:
        return
    seen[id(value)] = value  # kept alive, so that no other object gets its id
    add(type(value).__qualname__.encode())
    if isinstance(value, dict):
        for key, item in value.items():
            _add(add, key, seen)
            _add(add, item, seen)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _add(add, item, seen)
    elif hasattr(value, "detach") or hasattr(value, "__array__"):
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        add(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    elif isinstance(value, CodeType):
        add(value.co_code)
        _add(add, [item for item in value.co_consts if not isinstance(item, frozenset)], seen)
        _add(add, value.co_names, seen)
    elif hasattr(value, "__code__"):
        add(f"{value.__module__}.{value.__qualname__}".encode())
        _add(add, value.__code__, seen)
        _add(add, value.__defaults__, seen)
        _add(add, [cell.cell_contents for cell in value.__closure__ or ()], seen)
    elif is_dataclass(value) and not isinstance(value, type):
        _add(add, {f.name: getattr(value, f.name) for f in fields(value) if f.compare}, seen)
    elif hasattr(value, "__wrapped__"):
        _add(add, value.__wrapped__, seen)
    elif hasattr(value, "__func__"):
        _add(add, value.__func__, seen)
        _add(add, value.__self__, seen)
    elif isinstance(value, type) or (callable(value) and hasattr(value, "__name__")):
        add(f"{value.__module__}.{getattr(value, '__qualname__', value.__name__)}".encode())
    elif hasattr(value, "__dict__"):
        _add(add, vars(value), seen)
        if callable(value):
            _add(add, type(value).__call__, seen)
