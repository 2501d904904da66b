"""A run that was found in the explorer, to be taken along: as a command and as Python."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass

import numpy as np

from lastiterate.run import DPSGD

# What need not be said.
_USUAL = {"sampling": "poisson", "group_size": "1", "neighbours": "add-remove", "min_separation": "1"}


def command_of(texts: Mapping[str, str], delta: str) -> str:
    """The command that answers the same; ``texts`` are those of options."""
    given = {name: text.strip() for name, text in texts.items() if text.strip() != _USUAL.get(name)}
    options = [f"--{name.replace('_', '-')} {shlex.quote(text)}" for name, text in {**given, "delta": delta}.items()]
    return " ".join(["lastiterate epsilon", *options])


def python_of(run: DPSGD, delta: float, contraction: float | None = None) -> str:
    """The same in Python. With a contraction there is the guarantee of convex losses, too."""
    lines = ["import lastiterate as li", "", f"run = {_made(run)}"]
    lines += [f"print(li.last_iterate(run).epsilon({delta!r}))  # a heuristic"]
    if contraction is None:
        return "\n".join([*lines, f"print(li.sentence(run, {delta!r}))"])
    lines += [f'curves = {{"convex": lambda run: li.convex(run, contraction={contraction!r})}}']
    return "\n".join([*lines, f"print(li.sentence(run, {delta!r}, curves))"])


def _made(value: object) -> str:
    """A dataclass of ours as the call that makes it; what is as usual is left out."""
    given = []
    for field in fields(value):  # type: ignore[arg-type]
        held = getattr(value, field.name)
        if field.default is MISSING or not _same(held, field.default):
            given.append(f"{field.name}={_plain(held)}")
    return f"li.{type(value).__name__}({', '.join(given)})"


def _same(one: object, other: object) -> bool:
    return type(one) is type(other) and bool(np.all(one == other))


def _plain(value: object) -> str:
    if is_dataclass(value):
        return _made(value)
    return repr(value.tolist()) if isinstance(value, np.ndarray) else repr(value)
