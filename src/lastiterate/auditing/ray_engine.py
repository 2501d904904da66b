"""Ray: every chunk is a task. A worker that dies costs time and nothing else; the driver alone writes the store."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from lastiterate.auditing.job import Job, TrialChunk, Trials
from lastiterate.values import Array, integer, number

if TYPE_CHECKING:
    from lastiterate.training.progress import TrainingProgress


@dataclass(frozen=True)
class Ray:
    """A Ray cluster.

    Args:
        address: of the cluster; None joins the one that this machine belongs to, or else starts one on this machine.
        cpus: cores a task.
        gpus: GPUs a task; may be a fraction.
        retries: how often a task is tried again when its worker dies.
    """

    address: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    retries: int = 100

    def __post_init__(self) -> None:
        number("cpus", self.cpus, 0.0)
        number("gpus", self.gpus, 0.0)
        integer("retries", self.retries, 0)

    def prepare(self, job: Job) -> Trials:
        return job.trials(1)

    def chunks(
        self, job: Job, trials: Trials, models: Array, present: Array, progress: TrainingProgress | None
    ) -> Iterator[TrialChunk]:
        ray = _connect(self.address)
        task = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=self.retries)(_train)
        size = trials.chunk_size
        shared = ray.put(replace(job, chunk_size=size))
        slots = _slots(ray, self)
        parts = [slice(begin, begin + size) for begin in range(0, len(models), size)]
        waiting: list[Any] = []
        try:
            for part in parts:
                waiting.append(task.remote(shared, models[part], present[part]))
                if len(waiting) >= 3 * slots:
                    yield _finished(ray, waiting, job, progress)
            while waiting:
                yield _finished(ray, waiting, job, progress)
        finally:
            for reference in waiting:
                ray.cancel(reference, force=True)


def _finished(ray: Any, waiting: list[Any], job: Job, progress: TrainingProgress | None) -> TrialChunk:
    (done, *_), _ = ray.wait(waiting, num_returns=1)
    waiting.remove(done)
    chunk: TrialChunk = ray.get(done)
    if progress:
        progress.advanced(len(chunk.models), job.run.steps, finished=True)
    return chunk


def _connect(address: str | None) -> Any:
    try:
        import ray
    except ImportError:
        raise ValueError('engine "ray" needs ray, which is not installed: pip install "lastiterate[ray]"') from None
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        except ConnectionError as error:
            raise ValueError(f"no Ray cluster answers at address {address!r}: {error}") from None
    return ray


def _slots(ray: Any, engine: Ray) -> int:
    """How many tasks run at a time."""
    resources = ray.cluster_resources()
    limits = [resources.get("CPU", 1) / engine.cpus] if engine.cpus else []
    limits += [resources.get("GPU", 0) / engine.gpus] if engine.gpus else []
    slots = int(min(limits, default=1))
    if slots < 1:
        raise ValueError(
            f"the cluster has {resources}, too little for a task of {engine.cpus} cpus, {engine.gpus} gpus"
        )
    return slots


def _train(job: Job, models: Array, present: Array) -> TrialChunk:
    """One chunk, in a worker; what it compiled it keeps for the next one."""
    parts = list(_trials(_Same(job)).chunks(models, present, None))
    names = ("models", "present", "scores", "accuracies", "seconds")
    return TrialChunk(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


class _Same:
    """A job, equal to any other copy of it: a worker gets a new copy with every task."""

    def __init__(self, job: Job) -> None:
        from lastiterate.auditing.describe import fingerprint

        self.job = job
        self._key = fingerprint([job.run, job.problem, job.attack, job.facts, job.seed, job.chunk_size])

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._key == self._key


@lru_cache(maxsize=1)
def _trials(same: _Same) -> Trials:
    return same.job.trials(1)
