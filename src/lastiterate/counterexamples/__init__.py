"""The paper's counterexamples, one file each: runs whose last iterate leaks more than the heuristic predicts.

A file gives ``TITLE``, ``STORY``, ``TAKES``, ``DEFAULTS``, ``probe(setting, track)`` and ``chart(found)``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from lastiterate.counterexamples.probe import Probe, Setting
    from lastiterate.plot.style import Track

NAMES = ("zeroing", "quadratic", "shift", "malicious")


class Counterexample(Protocol):
    """What each file gives."""

    TITLE: str
    STORY: str  # what happens in it, in plain words
    TAKES: tuple[str, ...]  # the fields of ``Setting`` that only it knows
    DEFAULTS: Setting

    def probe(self, setting: Setting, track: Track = ...) -> Probe:
        """Analyse the example, run it, and attack its last iterates."""

    def chart(self, found: Probe) -> Any:
        """The picture of what was found, an altair chart."""


def find(name: str) -> Counterexample:
    """The counterexample of this name."""
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")
    return cast("Counterexample", import_module(f"lastiterate.counterexamples.{name}"))
