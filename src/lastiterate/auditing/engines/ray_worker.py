"""What runs in Ray's workers. Jobs are sent once and kept with what was compiled, for the worker's next chunk."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from lastiterate.auditing.job import Job, Trials
from lastiterate.auditing.engines.ray_cluster import import_ray
from lastiterate.auditing.stores.trials import StoredTrials
from lastiterate.values import Array


@dataclass(frozen=True)
class SentJob:
    """A job in the cluster's memory, and what its workers may use. As it holds a reference, it is cheap to send.

    Attributes:
        double: whether JAX computes in double precision where the job comes from.
    """

    reference: Any
    cpus: float
    gpus: float
    double: bool


def send(job: Job, cpus: float, gpus: float) -> SentJob:
    """Put a job into the cluster's memory. A user's own module goes along, as other machines do not have it."""
    ray = import_ray()
    by_value = {module for module in map(_users_module, (job.problem, job.attack)) if module}
    for module in by_value:
        ray.cloudpickle.register_pickle_by_value(module)
    try:
        pickled = ray.cloudpickle.dumps(job)  # bytes: arrays that Ray itself unpickles cannot be written to
    except (TypeError, pickle.PicklingError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"the trainer must be one that can be sent to other processes: {reason}") from None
    finally:
        for module in by_value:
            ray.cloudpickle.unregister_pickle_by_value(module)
    jax = sys.modules.get("jax")
    return SentJob(ray.put(pickled), cpus, gpus, jax is not None and bool(jax.config.x64_enabled))


def chunk_size(sent: SentJob) -> int:
    """The chunk size that suits the worker."""
    with _computing(sent) as trials:
        return trials.chunk_size


def train(sent: SentJob, models: Array, present: Array) -> StoredTrials:
    """One chunk."""
    with _computing(sent) as trials:
        parts = list(trials.chunks(models, present, None))
    names = ("models", "present", "scores", "accuracies", "seconds")
    return StoredTrials(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@contextmanager
def _computing(sent: SentJob) -> Iterator[Trials]:
    """The trials, as precise as where the job comes from; errors tell where in the worker they arose."""
    try:
        with _precision(sent.double):
            yield _trials(sent)
    except Exception as error:
        error.add_note(f"in a Ray worker:\n{''.join(traceback.format_tb(error.__traceback__))}")
        raise


@lru_cache(maxsize=1)
def _trials(sent: SentJob) -> Trials:
    ray = import_ray()
    # Read by XLA when it starts: no more threads of its own than the task has cores, no more memory than its share.
    os.environ.setdefault("NPROC", str(max(1, int(sent.cpus))))
    if 0.0 < sent.gpus < 1.0:
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 * sent.gpus:.3f}")
    job: Job = ray.cloudpickle.loads(ray.get(sent.reference))
    return job.trials(1)


def _precision(double: bool) -> Any:
    if not double:
        return nullcontext()
    import jax

    return jax.enable_x64(True)


def _users_module(thing: Any) -> ModuleType | None:
    """The module of a trainer or an attack, if it is not an installed one. What is in __main__ goes along anyway."""
    name = str(getattr(thing, "__module__", None) or type(thing).__module__)
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    installed = file is None or "site-packages" in file or name.partition(".")[0] == "lastiterate"
    return None if installed or name == "__main__" else module
