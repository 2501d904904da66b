"""What all commands that train share: where to train, and how to leave."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from lastiterate.cli.errors import OptionError
from lastiterate.cli.options import choice, number_option, option

if TYPE_CHECKING:
    from pathlib import Path

    from lastiterate.auditing.engines.engine import Engine


@dataclass(frozen=True)
class EngineOptions:
    """Which engine trains."""

    engine: Annotated[str, choice("--engine", ("local", "ray"), "Where to train (default: local).")] = "local"
    address: Annotated[str | None, option("--address", None, "ADDRESS", "Of the Ray cluster.")] = None
    gpus: Annotated[float, number_option("--gpus", "GPUs of each Ray task (default: 0).")] = 0.0

    def find(self) -> str | Engine:
        """The engine that the options name."""
        if self.engine == "local":
            if self.address is not None or self.gpus:
                raise OptionError("--address and --gpus belong to --engine ray")
            return "local"
        from lastiterate.auditing.engines.ray_engine import Ray

        return Ray(address=self.address, gpus=self.gpus)


@contextmanager
def resumable(store: Path) -> Iterator[None]:
    """Ctrl-C says how to resume, and ends the program at once.

    By a handler of the signal, since an exception that arises within a callback of JAX is lost.
    """
    before = signal.getsignal(signal.SIGINT)
    replaced = before is signal.default_int_handler  # not ignored, as in the background of a script
    if replaced:
        signal.signal(signal.SIGINT, lambda number, frame: leave_resumable(store))
    try:
        yield
    except KeyboardInterrupt:
        leave_resumable(store)
    finally:
        if replaced:
            signal.signal(signal.SIGINT, before)


def leave_resumable(store: Path) -> NoReturn:
    """Say how to resume, and leave at once: JAX, interrupted while it compiles, crashes when Python tidies up."""
    typer.echo(f"\nstopped; what was trained is in {store}: the same command resumes", err=True)
    os._exit(130)
