"""The paper's counterexamples, one file each: runs whose last iterate leaks more than the heuristic predicts.

Each file defines ``TAKES``, ``DEFAULTS`` and ``probe(setting, track)``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from lastiterate.common.validation import one_of

if TYPE_CHECKING:
    from lastiterate.common.types import Track
    from lastiterate.paper.counterexamples.setting import Probe, Setting

NAMES = ("zeroing", "quadratic", "shift", "malicious")


class Counterexample(Protocol):
    """Interface of the file of a counterexample."""

    TAKES: tuple[str, ...]  # the fields of ``Setting`` that only this counterexample uses
    DEFAULTS: Setting

    def probe(self, setting: Setting, track: Track = ...) -> Probe:
        """Analyse the example, run it, and attack its last iterates."""


def find(name: str) -> Counterexample:
    """Return the counterexample of this name."""
    one_of("name", name, NAMES)
    return cast("Counterexample", import_module(f"lastiterate.paper.counterexamples.{name}"))
