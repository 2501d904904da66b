"""Where trials are computed: on this machine, or as tasks of a Ray cluster. Both draw the same randomness."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lastiterate.auditing.job import Job, TrialChunk, Trials
from lastiterate.values import Array

if TYPE_CHECKING:
    from lastiterate.training.progress import TrainingProgress


class Engine(Protocol):
    """Computes the trials of a job and hands them over chunk by chunk, in any order."""

    def prepare(self, job: Job) -> Trials:
        """The job's trials here, which also chooses the chunk size."""

    def chunks(
        self, job: Job, trials: Trials, models: Array, present: Array, progress: TrainingProgress | None
    ) -> Iterator[TrialChunk]: ...


@dataclass(frozen=True)
class Local:
    """This machine. ``workers`` chunks are trained at a time; None: one a core."""

    workers: int | None = None

    def prepare(self, job: Job) -> Trials:
        return job.trials(self.workers)

    def chunks(
        self, job: Job, trials: Trials, models: Array, present: Array, progress: TrainingProgress | None
    ) -> Iterator[TrialChunk]:
        return trials.chunks(models, present, progress)


def find_engine(engine: str | Engine) -> Engine:
    """An engine by its name, or the engine itself."""
    if not isinstance(engine, str):
        return engine
    if engine == "local":
        return Local()
    if engine == "ray":
        from lastiterate.auditing.ray_engine import Ray

        return Ray()
    raise ValueError(f"engine must be 'local' or 'ray', got {engine!r}")
