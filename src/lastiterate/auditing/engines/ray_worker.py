"""What runs in Ray's workers. Tasks are sent once and kept with what was compiled, for the worker's next chunk."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any

from lastiterate.arrays import BoolArray, IntArray
from lastiterate.auditing.engines.ray_cluster import import_ray
from lastiterate.auditing.experiments.protocol import Crafted, Experiment, Trials
from lastiterate.auditing.sources import is_installed
from lastiterate.auditing.stores.trials import ScoredTrials


@dataclass(frozen=True, eq=False)
class Task:
    """What a worker is told; ``sharers`` is how many workers share the trials."""

    experiment: Experiment
    crafted: Crafted
    chunk_size: int | None
    sharers: int


@dataclass(frozen=True)
class SentTask:
    """A task in the cluster's memory, and what its workers may use. As it holds a reference, it is cheap to send.

    Attributes:
        double: whether JAX computes in double precision where the task comes from.
    """

    reference: Any
    cpus: float
    gpus: float
    double: bool


def send(task: Task, cpus: float, gpus: float) -> SentTask:
    """Put a task into the cluster's memory. A user's own modules go along, as other machines do not have them."""
    ray = import_ray()
    by_value = {module for module in map(_users_module, vars(task.experiment).values()) if module}
    for module in by_value:
        ray.cloudpickle.register_pickle_by_value(module)
    try:
        pickled = ray.cloudpickle.dumps(task)  # bytes: arrays that Ray itself unpickles cannot be written to
    except (TypeError, pickle.PicklingError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"the trainer must be one that can be sent to other processes: {reason}") from None
    finally:
        for module in by_value:
            ray.cloudpickle.unregister_pickle_by_value(module)
    jax = sys.modules.get("jax")
    return SentTask(ray.put(pickled), cpus, gpus, jax is not None and bool(jax.config.x64_enabled))


def chunk_size(sent: SentTask) -> int:
    """The chunk size that suits the worker."""
    with _computing(sent) as trials:
        return trials.chunk_size


def train(sent: SentTask, models: IntArray, present: BoolArray) -> ScoredTrials:
    """One chunk."""
    with _computing(sent) as trials:
        return ScoredTrials.joined(list(trials.chunks(models, present, None)))


@contextmanager
def _computing(sent: SentTask) -> Iterator[Trials]:
    """The trials, as precise as where the task comes from; errors tell where in the worker they arose."""
    try:
        with _precision(sent.double):
            yield _trials(sent)
    except Exception as error:
        error.add_note(f"in a Ray worker:\n{''.join(traceback.format_tb(error.__traceback__))}")
        raise


@lru_cache(maxsize=1)
def _trials(sent: SentTask) -> Trials:
    ray = import_ray()
    # Read by XLA when it starts: no more threads of its own than the task has cores, no more memory than its share.
    os.environ.setdefault("NPROC", str(max(1, int(sent.cpus))))
    if 0.0 < sent.gpus < 1.0:
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 * sent.gpus:.3f}")
    task: Task = ray.cloudpickle.loads(ray.get(sent.reference))
    return task.experiment.trials(task.crafted, task.chunk_size, workers=1, sharers=task.sharers)


def _precision(double: bool) -> Any:
    if not double:
        return nullcontext()
    import jax

    return jax.enable_x64(True)


def _users_module(thing: object) -> ModuleType | None:
    """The module of a trainer or an attack, if it is a user's own. What is in __main__ goes along anyway."""
    written = thing if isinstance(thing, (FunctionType, type)) else type(thing)
    name = written.__module__
    return None if name == "__main__" or is_installed(written) else sys.modules.get(name)
