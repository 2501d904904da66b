"""Ray: every chunk is a task. A worker that dies costs time and nothing else; the driver alone writes the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lastiterate.arrays import BoolArray, IntArray
from lastiterate.auditing.engines import ray_worker
from lastiterate.auditing.engines.ray_cluster import connected, import_ray
from lastiterate.auditing.experiments.protocol import Crafted, Experiment, Trials
from lastiterate.auditing.stores.trials import ScoredTrials
from lastiterate.values import integer, number

if TYPE_CHECKING:
    from lastiterate.training_progress import TrainingProgress


@dataclass(frozen=True)
class Ray:
    """A Ray cluster. Its machines need lastiterate and what a user's trainer imports, but not the trainer's own file.

    Args:
        address: of the cluster; None joins the one that this machine belongs to, or else starts one on this machine.
        cpus: cores a task.
        gpus: GPUs a task; may be a fraction.
        retries: how often a task is tried again when its worker dies. What a task itself raises is final.
    """

    address: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    retries: int = 100

    def __post_init__(self) -> None:
        number("cpus", self.cpus, 0.0)
        number("gpus", self.gpus, 0.0)
        for name, value in (("cpus", self.cpus), ("gpus", self.gpus)):
            if value > 1.0 and value != int(value):
                raise ValueError(f"{name} must be in [0, 1] or a whole number, got {value}")
        integer("retries", self.retries, 0)

    def running(self) -> AbstractContextManager[None]:
        return connected(self.address)

    def prepare(self, experiment: Experiment, crafted: Crafted, chunk_size: int | None) -> Trials:
        self._check_fit()
        task = ray_worker.Task(experiment, crafted, chunk_size, self.slots())
        if chunk_size is None:  # chosen where chunks will be trained, for as many workers as there are
            sent = ray_worker.send(task, self.cpus, self.gpus)
            chunk_size = int(self.result(self.task(ray_worker.chunk_size).remote(sent)))
        return RayTrials(self, replace(task, chunk_size=chunk_size), chunk_size)

    def task(self, function: Any) -> Any:
        """A function, as something that Ray calls where there is room."""
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_retries": self.retries}
        return import_ray().remote(**options)(function)

    def result(self, reference: Any) -> Any:
        """What a task returned, or what it raised, as if that had been raised here."""
        ray = import_ray()
        try:
            return ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            reason = str(error).strip().partition("\n")[0]
            raise OSError(f"Ray gave up on a task, which it tries {1 + self.retries} times: {reason}") from None

    def slots(self) -> int:
        """How many tasks run at a time, in a cluster that may grow and shrink."""
        have = import_ray().cluster_resources()
        needed = {"CPU": self.cpus, "GPU": self.gpus}
        return int(min((have.get(name, 0.0) / each for name, each in needed.items() if each), default=1.0))

    def _check_fit(self) -> None:
        if self.slots() < 1:
            cpus, gpus = (import_ray().cluster_resources().get(name, 0.0) for name in ("CPU", "GPU"))
            raise ValueError(
                f"a task must fit into the cluster, which has {cpus:g} CPUs and {gpus:g} GPUs, "
                f"got cpus {self.cpus:g} and gpus {self.gpus:g}"
            )


@dataclass(frozen=True, eq=False)
class RayTrials:
    """An experiment's trials, computed in the cluster.

    Few tasks are begun ahead, and none is cancelled: those that are left when an audit is stopped end with the
    connection or, if the process had that before, by themselves. To cancel a task that just ends crashes Ray 2.60.
    """

    engine: Ray
    task: ray_worker.Task
    chunk_size: int

    def chunks(self, models: IntArray, present: BoolArray, progress: TrainingProgress | None) -> Iterator[ScoredTrials]:
        sent = ray_worker.send(self.task, self.engine.cpus, self.engine.gpus)
        train, wait = self.engine.task(ray_worker.train), import_ray().wait
        parts = [slice(begin, begin + self.chunk_size) for begin in range(0, len(models), self.chunk_size)]
        parts.reverse()
        waiting: list[Any] = []
        while parts or waiting:
            while parts and len(waiting) <= self.engine.slots():
                part = parts.pop()
                waiting.append(train.remote(sent, models[part], present[part]))
            (done,), waiting = wait(waiting, num_returns=1)
            chunk: ScoredTrials = self.engine.result(done)
            if progress:
                progress.advanced(len(chunk.models), self.task.experiment.run.steps, finished=True)
            yield chunk
