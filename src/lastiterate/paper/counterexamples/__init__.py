"""The paper's counterexamples, one module each: runs whose last iterate leaks more than the heuristic predicts."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from lastiterate.common.types import Track
from lastiterate.common.validation import one_of

if TYPE_CHECKING:
    from lastiterate.paper.counterexamples.setting import Probe, Setting

NAMES = ("zeroing", "quadratic", "shift", "malicious")


class Counterexample(Protocol):
    """Interface of the module of a counterexample. ``probe`` analyses the run, trains it and attacks last iterates."""

    TAKES: tuple[str, ...]  # the fields of ``Setting`` that only this counterexample uses
    DEFAULTS: Setting

    def probe(self, setting: Setting, track: Track = ...) -> Probe: ...


def find(name: str) -> Counterexample:
    """Return the module of the counterexample ``name``."""
    one_of("name", name, NAMES)
    return cast("Counterexample", import_module(f"lastiterate.paper.counterexamples.{name}"))
