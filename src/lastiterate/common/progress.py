"""Progress on stderr: bars on a terminal, which disappear when the work is done, and otherwise a line every 15 seconds.

Bars import rich, but only if they are shown.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

PATIENCE = 1.0  # seconds before the bar appears


def make_bar(*columns: ProgressColumn) -> Progress:
    """Return a bar that has not started yet. If no columns are given, rich's default columns are used."""
    from rich.console import Console
    from rich.progress import Progress

    return Progress(*columns, console=Console(stderr=True), transient=True)


# Progress lines, for logs: a thread prints what the program does, however long a single step takes.

VARIABLE = "LASTITERATE_PROGRESS"  # environment variable: seconds between two lines, or 0 for none
_USUAL = "15"

_activity = ""  # description of the current work; nothing is printed if it is empty


def tell(activity: str) -> None:
    """Set the description of the current work. An empty text turns progress lines off."""
    global _activity
    _activity = activity


@contextmanager
def lines() -> Iterator[None]:
    """Print a line such as ``[30 s] training: 12 of 512 models`` every 15 seconds, unless stderr is a terminal."""
    text = os.environ.get(VARIABLE, _USUAL)
    if not text.isdecimal() or len(text) > 9:
        raise ValueError(f"{VARIABLE} must be a whole number of seconds, or 0 for no lines, got {text[:200]!r}")
    tell("working")
    if not int(text) or sys.stderr is None or sys.stderr.isatty():
        yield
        return
    stream, began, finished = sys.stderr, monotonic(), Event()

    def show() -> None:
        while not finished.wait(int(text)):
            if _activity:
                with suppress(OSError, ValueError):  # stderr is full or closed
                    print(f"[{monotonic() - began:.0f} s] {_activity}", file=stream, flush=True)

    thread = Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join(1.0)  # nobody may be reading stderr


# Training progress: models, steps, rate and time left, shown once training has taken longer than ``PATIENCE``.

_REDRAW = 0.1  # seconds between redraws


class TrainingProgress:
    """A thread-safe counter of model-steps with a bar. If ``show`` is None, it is shown if stderr is a terminal."""

    def __init__(self, models: int, steps: int, show: bool | None = None) -> None:
        self.models, self.steps = models, steps
        self.models_done = self.model_steps_done = 0
        self.note = ""  # text at the end of the bar
        self._show = sys.stderr.isatty() if show is None else show
        self._began = monotonic()
        self._drawn = 0.0
        self._bar: Progress | None = None
        self._lock = Lock()

    def __enter__(self) -> TrainingProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tell("working")
        if self._bar is not None:
            self._bar.stop()

    @property
    def is_shown(self) -> bool:
        """True if the bar is shown."""
        return self._bar is not None

    @property
    def rate(self) -> float:
        """Model-steps per second so far, including the time for compilation."""
        return self.model_steps_done / max(monotonic() - self._began, 1e-9)

    def advanced(self, models: int, steps: int, finished: bool) -> None:
        """Record that ``models`` models advanced by ``steps`` steps, and whether they are finished."""
        with self._lock:
            self.model_steps_done += models * steps
            self.models_done += models if finished else 0
            now = monotonic()
            tell(f"training: {self._words}")
            if self._show and now - self._began > PATIENCE and now - self._drawn > _REDRAW:
                self._draw()
                self._drawn = now

    def _draw(self) -> None:
        if self._bar is None:
            self._bar = _training_bar(self.models * self.steps)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=self.model_steps_done, words=self._words)

    @property
    def _words(self) -> str:
        done = f"{self.models_done}/{self.models} models of {self.steps} steps"
        return f"{done}, {self.rate:,.0f} model-steps/s{self.note}"


def _training_bar(total: int) -> Progress:
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = TextColumn("training"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[words]}")
    bar = make_bar(*columns, TimeRemainingColumn())
    bar.add_task("training", total=total, words="")
    return bar
