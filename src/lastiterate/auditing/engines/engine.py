"""The protocol of engines and the local engine. All engines draw the same randomness."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from lastiterate.auditing.experiments.protocol import Crafted, Experiment, Trials
from lastiterate.common.validation import told


@runtime_checkable
class Engine(Protocol):
    """An engine, which computes the trials of an experiment chunk by chunk, in any order."""

    def running(self) -> AbstractContextManager[None]:
        """Return a context that is entered before training and left after it, also after a failure."""

    def prepare(self, experiment: Experiment, crafted: Crafted, chunk_size: int | None) -> Trials:
        """Return the experiment's trials. If ``chunk_size`` is None, the engine chooses one."""


@dataclass(frozen=True)
class Local:
    """An engine that trains on this machine, ``workers`` chunks at a time; None: one per core."""

    workers: int | None = None

    def running(self) -> AbstractContextManager[None]:
        return nullcontext()

    def prepare(self, experiment: Experiment, crafted: Crafted, chunk_size: int | None) -> Trials:
        return experiment.trials(crafted, chunk_size, self.workers)


def find_engine(engine: str | Engine) -> Engine:
    """Return the engine of this name, or the engine itself."""
    if isinstance(engine, Engine) and not isinstance(engine, type):
        return engine
    if not isinstance(engine, str) or engine not in ("local", "ray"):
        raise ValueError(f"engine must be 'local', 'ray' or an engine, got {told(engine)}")
    if engine == "local":
        return Local()
    from lastiterate.auditing.engines.ray_engine import Ray

    return Ray()
