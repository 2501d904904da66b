"""Where trials are computed: on this machine, or as tasks of a Ray cluster. Both draw the same randomness."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from lastiterate.auditing.experiments.protocol import Crafted, Experiment, Trials
from lastiterate.common.validation import told


@runtime_checkable
class Engine(Protocol):
    """Computes the trials of an experiment and hands them over chunk by chunk, in any order."""

    def running(self) -> AbstractContextManager[None]:
        """Entered before anything is trained, and left when all is done or nothing more can be."""

    def prepare(self, experiment: Experiment, crafted: Crafted, chunk_size: int | None) -> Trials:
        """The experiment's trials; ``chunk_size`` None: one that suits the engine."""


@dataclass(frozen=True)
class Local:
    """This machine. ``workers`` chunks are trained at a time; None: one a core."""

    workers: int | None = None

    def running(self) -> AbstractContextManager[None]:
        return nullcontext()

    def prepare(self, experiment: Experiment, crafted: Crafted, chunk_size: int | None) -> Trials:
        return experiment.trials(crafted, chunk_size, self.workers)


def find_engine(engine: str | Engine) -> Engine:
    """An engine by its name, or the engine itself."""
    if isinstance(engine, Engine) and not isinstance(engine, type):
        return engine
    if not isinstance(engine, str) or engine not in ("local", "ray"):
        raise ValueError(f"engine must be 'local', 'ray' or an engine, got {told(engine)}")
    if engine == "local":
        return Local()
    from lastiterate.auditing.engines.ray_engine import Ray

    return Ray()
