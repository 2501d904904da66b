"""Ray: every chunk is a task. A worker that dies costs time and nothing else; the driver alone writes the store."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lastiterate.arrays import BoolArray, IntArray
from lastiterate.auditing.engines import node
from lastiterate.auditing.engines.parcel import Parcel, pack
from lastiterate.auditing.engines.ray_cluster import check_answer, given_address, import_ray
from lastiterate.auditing.engines.ray_driver import ConnectedDriver, Demand, Driver, WorkerDied
from lastiterate.auditing.engines.ray_process import DriverProcess
from lastiterate.auditing.engines.ray_worker import Task
from lastiterate.auditing.experiments.protocol import Crafted, Experiment, Trials
from lastiterate.auditing.stores.trials import ScoredTrials
from lastiterate.auditing.versions import versions
from lastiterate.trainer_failure import TrainerFailed
from lastiterate.values import integer, number

if TYPE_CHECKING:
    from lastiterate.training_progress import TrainingProgress

_RUNNING: ContextVar[Driver] = ContextVar("lastiterate's driver of Ray")


@dataclass(frozen=True)
class Ray:
    """A Ray cluster. Its machines need the same lastiterate and what a trainer imports, but not the trainer's own file.

    Unless this process is connected to Ray already, a child process is, so that a cluster that is lost ends that one.

    Args:
        address: of the cluster; None joins the one that this machine belongs to, or else starts one on this machine.
        cpus: cores a task.
        gpus: GPUs a task; may be a fraction.
        retries: how often a task is tried again when its process ends by itself. Lost nodes do not count, and what a
            task raises is final.
    """

    address: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    retries: int = 3

    def __post_init__(self) -> None:
        number("cpus", self.cpus, 0.0)
        number("gpus", self.gpus, 0.0)
        for name, value in (("cpus", self.cpus), ("gpus", self.gpus)):
            if value > 1.0 and value != int(value):
                raise ValueError(f"{name} must be in [0, 1] or a whole number, got {value}")
        integer("retries", self.retries, 0)

    @contextmanager
    def running(self) -> Iterator[None]:
        if import_ray().is_initialized():
            with _used(ConnectedDriver()):
                yield
            return
        given = given_address(self.address)
        if given is not None and given not in ("auto", "local"):
            check_answer(given)
        process = DriverProcess(self.address)
        at_once = True
        try:
            with _used(process):
                yield
            at_once = False
        finally:
            process.end(at_once)

    def prepare(self, experiment: Experiment, crafted: Crafted, chunk_size: int | None) -> Trials:
        driver, demand = _RUNNING.get(), Demand(self.cpus, self.gpus, self.retries)
        slots = self._check_fit(driver.resources(), demand)
        task = Task(experiment, crafted, chunk_size, slots)
        parcel = pack(task)
        said: set[str] = set()
        for report in driver.reports(parcel, demand):
            if sentence := node.disagreement(parcel.program, report):
                raise ValueError(sentence)
            _compare_versions(report["versions"], f"node {report['node']}", said)
        if chunk_size is None:  # chosen where chunks will be trained, for as many workers as there are
            try:
                (answer,) = driver.run(parcel, demand, "chunk_size", [()])
            except WorkerDied as died:
                raise TrainerFailed(died, "what comes before the first model") from None
            chunk_size = int(_value(answer))
            parcel = pack(replace(task, chunk_size=chunk_size))
        return RayTrials(driver, demand, parcel, experiment.run.steps, chunk_size, said)

    def _check_fit(self, have: dict[str, float], demand: Demand) -> int:
        if (slots := demand.slots(have)) < 1:
            cpus, gpus = (have.get(name, 0.0) for name in ("CPU", "GPU"))
            raise ValueError(
                f"a task must fit into the cluster, which has {cpus:g} CPUs and {gpus:g} GPUs, "
                f"got cpus {self.cpus:g} and gpus {self.gpus:g}"
            )
        return slots


@dataclass(frozen=True, eq=False)
class RayTrials:
    """An experiment's trials, computed in the cluster.

    Few tasks are begun ahead, and none is cancelled: those that are left when an audit is stopped end with the
    connection or, if the process had that before, by themselves. To cancel a task that just ends crashes Ray 2.60.
    """

    driver: Driver
    demand: Demand
    parcel: Parcel
    steps: int
    chunk_size: int
    said: set[str] = field(default_factory=set)

    def chunks(self, models: IntArray, present: BoolArray, progress: TrainingProgress | None) -> Iterator[ScoredTrials]:
        parts = [slice(begin, begin + self.chunk_size) for begin in range(0, len(models), self.chunk_size)]
        calls: list[tuple[Any, ...]] = [(models[part], present[part]) for part in parts]
        try:
            for answer in self.driver.run(self.parcel, self.demand, "train", calls):
                chunk: ScoredTrials = _value(answer)
                _compare_versions(chunk.versions or {}, "a node", self.said)
                if progress:
                    progress.advanced(len(chunk.models), self.steps, finished=True)
                yield chunk
        except WorkerDied as died:
            raise TrainerFailed(died, _called(*calls[died.call])) from None


@contextmanager
def _used(driver: Driver) -> Iterator[None]:
    token = _RUNNING.set(driver)
    try:
        yield
    finally:
        _RUNNING.reset(token)


def _value(answer: tuple[str, Any]) -> Any:
    """What a worker's function returned, or what it raised, as if that had been raised here."""
    kind, content = answer
    if kind == "refused":
        raise ValueError(content)
    outcome, value = import_ray().cloudpickle.loads(content)
    if outcome == "raised":
        raise value
    return value


def _compare_versions(theirs: Mapping[str, str], where: str, said: set[str]) -> None:
    """Warn, once for each package, of other versions than those of this process: scores may depend on them."""
    for name, version in versions().items():
        if name not in said and theirs.get(name, version) != version:
            said.add(name)
            print(
                f"warning: {where} has {name} {theirs[name]}, and this process {version}: scores may differ; the store "
                "keeps the versions of each chunk",
                file=sys.stderr,
            )


def _called(models: IntArray, present: BoolArray) -> str:
    """What the models of a chunk are called where their training fails."""
    first, last = int(models.min()), int(models.max())
    worlds = "both worlds" if present.any() and not present.all() else f"world {'in' if present.any() else 'out'!r}"
    return f"model {first} of {worlds}" if first == last else f"models {first} to {last} of {worlds}"
