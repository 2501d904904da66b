"""What all commands that train share: where to train, and how to leave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from lastiterate.cli.errors import OptionError
from lastiterate.cli.options import choice, number_option, option
from lastiterate.cli.stopping import leaving_with
from lastiterate.wording import printable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
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


def resumable(store: Path) -> AbstractContextManager[None]:
    """Ctrl-C and SIGTERM say how to resume, and end the program at once."""
    return leaving_with(f"stopped; what was trained is in {printable(str(store))}: the same command resumes")
