"""What all commands that train share: where to train, and how to leave."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from lastiterate.cli.errors import STOPPED, OptionError
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
    """Ctrl-C and SIGTERM say how to resume, and end the program at once.

    By a handler of the signal, since an exception that arises within a callback of JAX is lost.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # Not those that are ignored, as Ctrl-C is in the background of a script.
    replaced = [number for number, by in before.items() if by in (signal.default_int_handler, signal.SIG_DFL)]
    for number in replaced:
        signal.signal(number, lambda received, frame: leave_resumable(store, 128 + received))
    try:
        yield
    except KeyboardInterrupt:
        leave_resumable(store)
    finally:
        for number in replaced:
            signal.signal(number, before[number])


def leave_resumable(store: Path, status: int = STOPPED) -> NoReturn:
    """Say how to resume, and leave at once: JAX, interrupted while it compiles, crashes when Python tidies up."""
    typer.echo(f"\nstopped; what was trained is in {store}: the same command resumes", err=True)
    os._exit(status)
