"""What all commands that train share: where to train, and how to leave."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from lastiterate.cli import values
from lastiterate.cli.errors import OptionError
from lastiterate.cli.options import option

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class EngineOptions:
    """Which engine trains."""

    engine: Annotated[
        str, option("--engine", values.one_of("local", "ray"), "local|ray", "Where to train (default: local).")
    ] = "local"
    address: Annotated[str | None, option("--address", None, "ADDRESS", "Of the Ray cluster.")] = None
    gpus: Annotated[float, option("--gpus", values.number, "NUMBER", "GPUs of each Ray task (default: 0).")] = 0.0

    def find(self) -> Any:
        """The engine that the options name."""
        if self.engine == "local":
            if self.address is not None or self.gpus:
                raise OptionError("--address and --gpus belong to --engine ray")
            return "local"
        from lastiterate.auditing.ray_engine import Ray

        return Ray(address=self.address, gpus=self.gpus)


def leave_resumable(store: Path) -> NoReturn:
    """Say how to resume, and leave at once: JAX, interrupted while it compiles, crashes when Python tidies up."""
    typer.echo(f"\nstopped; what was trained is in {store}: the same command resumes", err=True)
    os._exit(130)
