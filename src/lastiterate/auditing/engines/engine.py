"""The protocol of engines, and the local engine. All engines use the same random numbers."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from lastiterate.auditing.experiments.protocol import Experiment, Trials
from lastiterate.auditing.stores.audit_record import Crafted
from lastiterate.common.errors import BadArgument
from lastiterate.common.validation import told


@runtime_checkable
class Engine(Protocol):
    """An engine computes the trials of an experiment in chunks, in any order."""

    def running(self) -> AbstractContextManager[None]:
        """Return a context manager that surrounds the training."""

    def prepare(self, experiment: Experiment, crafted: Crafted, chunk_size: int | None) -> Trials:
        """Return the experiment's trials. If ``chunk_size`` is None, the engine chooses one."""


@dataclass(frozen=True)
class Local:
    """An engine that trains on this machine, ``workers`` chunks at a time (by default one per core)."""

    workers: int | None = None

    def running(self) -> AbstractContextManager[None]:
        return nullcontext()

    def prepare(self, experiment: Experiment, crafted: Crafted, chunk_size: int | None) -> Trials:
        return experiment.trials(crafted, chunk_size, self.workers)


def find_engine(engine: str | Engine) -> Engine:
    """Return the engine with this name. Return an engine object unchanged."""
    if isinstance(engine, Engine) and not isinstance(engine, type):
        return engine
    if not isinstance(engine, str) or engine not in ("local", "ray"):
        raise BadArgument("engine", f"must be 'local', 'ray' or an engine, got {told(engine)}")
    if engine == "local":
        return Local()
    from lastiterate.auditing.engines.ray_engine import Ray

    return Ray()
