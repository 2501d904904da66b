"""Functions that run in Ray's workers. A worker keeps its task and compiled programs for its next chunk."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from lastiterate.auditing.engines.ray_cluster import import_ray
from lastiterate.auditing.experiments.protocol import Crafted, Experiment, Trials
from lastiterate.auditing.identity import versions
from lastiterate.auditing.stores.audit_record import ScoredTrials
from lastiterate.common.types import BoolArray, IntArray

AGREED: dict[str, str | None] = {}  # digests of this worker's imports, after they were found to match the driver's


@dataclass(frozen=True, eq=False)
class Task:
    """The task of a worker; ``sharers`` is the number of workers that share the trials."""

    experiment: Experiment
    crafted: Crafted
    chunk_size: int | None
    sharers: int


@dataclass(frozen=True)
class SentTask:
    """A reference to a task in the cluster's memory, cheap to send, and the resources of its workers.

    Attributes:
        double: whether JAX uses double precision in the process that sent the task.
    """

    reference: Any
    cpus: float
    gpus: float
    double: bool


def answer(function: str, sent: SentTask, arguments: tuple[Any, ...]) -> bytes:
    """Return the pickled result or exception of ``chunk_size`` or ``train``.

    Only the process that has the user's classes unpickles it.
    """
    ray = import_ray()
    try:
        return bytes(ray.cloudpickle.dumps(("returned", globals()[function](sent, *arguments))))
    except (Exception, SystemExit) as error:
        error.add_note(f"in a Ray worker:\n{''.join(traceback.format_tb(error.__traceback__))}")
        return _dump_error(ray, error)


def chunk_size(sent: SentTask) -> int:
    """Return the chunk size that suits the worker."""
    with _computing(sent) as trials:
        return trials.chunk_size


def train(sent: SentTask, models: IntArray, present: BoolArray) -> ScoredTrials:
    """Train one chunk. Return it with the package versions of this worker."""
    with _computing(sent) as trials:
        chunk = ScoredTrials.joined(list(trials.chunks(models.copy(), present.copy(), None)))
        return replace(chunk, versions=versions())


@contextmanager
def _computing(sent: SentTask) -> Iterator[Trials]:
    """Yield the trials, with the floating-point precision of the process that sent the task."""
    with _precision(sent.double):
        yield _trials(sent)


@lru_cache(maxsize=1)
def _trials(sent: SentTask) -> Trials:
    ray = import_ray()
    # XLA reads these when it starts. They limit its threads to the task's cores and its memory to the task's share.
    os.environ.setdefault("NPROC", str(max(1, int(sent.cpus))))
    if 0.0 < sent.gpus < 1.0:
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 * sent.gpus:.3f}")
    pickled = ray.get(sent.reference)
    try:
        task: Task = ray.cloudpickle.loads(pickled)
    except ImportError as error:
        raise ValueError(f"all machines of the cluster must have what the trainer imports: {error}") from None
    return task.experiment.trials(task.crafted, task.chunk_size, workers=1, sharers=task.sharers)


def _precision(double: bool) -> Any:
    if not double:
        return nullcontext()
    import jax

    return jax.enable_x64(True)


def _dump_error(ray: Any, error: BaseException) -> bytes:
    """Pickle an error for another process. If it cannot be pickled, pickle a RuntimeError with its message."""
    try:
        pickled = bytes(ray.cloudpickle.dumps(("raised", error)))
        ray.cloudpickle.loads(pickled)
    except Exception:
        told = RuntimeError(f"{type(error).__name__}: {error}")
        told.__notes__ = list(getattr(error, "__notes__", ()))
        return bytes(ray.cloudpickle.dumps(("raised", told)))
    return pickled
