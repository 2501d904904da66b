"""Where trials are computed: on this machine, or as tasks of a Ray cluster. Both draw the same randomness."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from lastiterate.auditing.job import Job, Trials


class Engine(Protocol):
    """Computes the trials of a job and hands them over chunk by chunk, in any order."""

    def running(self) -> AbstractContextManager[None]:
        """Entered before anything is trained, and left when all is done or nothing more can be."""

    def prepare(self, job: Job) -> Trials:
        """The job's trials, with the chunk size that the job says, or else one that suits the engine."""


@dataclass(frozen=True)
class Local:
    """This machine. ``workers`` chunks are trained at a time; None: one a core."""

    workers: int | None = None

    def running(self) -> AbstractContextManager[None]:
        return nullcontext()

    def prepare(self, job: Job) -> Trials:
        return job.trials(self.workers)


def find_engine(engine: str | Engine) -> Engine:
    """An engine by its name, or the engine itself."""
    if not isinstance(engine, str):
        return engine
    if engine == "local":
        return Local()
    if engine == "ray":
        from lastiterate.auditing.engines.ray_engine import Ray

        return Ray()
    raise ValueError(f"engine must be 'local' or 'ray', got {engine!r}")
