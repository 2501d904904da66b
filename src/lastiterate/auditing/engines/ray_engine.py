"""The Ray engine: every chunk of trials is a Ray task, and only the driver writes the store.

Ray ends the process that loses its cluster, so the connection to the cluster is in a child process. The two processes
talk over a socket. If the parent ends for any reason, the child ends with all processes it started on this machine.
A worker that dies costs only time.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from threading import Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

from lastiterate.auditing.engines import worker_fingerprint as node
from lastiterate.auditing.engines.ray_cluster import check_answer, connect, disconnect, given_address, import_ray
from lastiterate.auditing.engines.ray_driver import ConnectedDriver, Demand, Driver, WorkerDied
from lastiterate.auditing.engines.ray_worker import Task
from lastiterate.auditing.engines.task_pickle import Parcel, pack
from lastiterate.auditing.experiments.protocol import Crafted, Experiment, Trials
from lastiterate.auditing.identity import versions
from lastiterate.auditing.stores.audit_record import ScoredTrials
from lastiterate.common.errors import ClusterLost, TrainerFailed
from lastiterate.common.types import BoolArray, Fields, IntArray
from lastiterate.common.validation import integer, number

if TYPE_CHECKING:
    from lastiterate.common.progress import TrainingProgress


# Driver process: a child process that is connected to the Ray cluster.

Foreign: TypeAlias = Any  # objects sent through Ray

STARTING, JOINING = 180.0, 30.0  # longest time to start or to join a cluster, in seconds
SILENCE = 180.0  # longest time without a message from the child, in seconds; Ray itself waits 60 s for a lost head
_LEAVING = 20.0  # longest time for Ray to shut down, in seconds
_PROGRAM = "from lastiterate.auditing.engines.ray_engine import main; main()"


class DriverProcess:
    """A ``Driver`` that reaches the cluster through a child process."""

    def __init__(self, address: str | None) -> None:
        self._connection, theirs = Pipe()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                start_new_session=True,  # only the parent gets Ctrl-C, and the child's process group can be killed
            )
        given = given_address(address)
        try:
            self._join(address, given)
        except BaseException:
            self.end(at_once=True)
            raise

    def _join(self, address: str | None, given: str | None) -> None:
        patience = STARTING if given in (None, "auto", "local") else JOINING
        try:
            for _ in self._ask(patience, "join", address):
                pass
        except ClusterLost as lost:
            if given is None:
                raise
            raise ValueError(f"address must be of a Ray cluster that runs, got {given!r}: {lost.args[0]}") from None

    def resources(self) -> dict[str, float]:
        (found,) = self._ask(SILENCE, "resources")
        return dict(found)

    def reports(self, parcel: Parcel, demand: Demand) -> list[Fields]:
        (found,) = self._ask(SILENCE, "reports", parcel, demand)
        return list(found)

    def run(
        self, parcel: Parcel, demand: Demand, function: str, calls: list[tuple[Foreign, ...]]
    ) -> Iterator[tuple[str, Foreign]]:
        yield from self._ask(SILENCE, "run", parcel, demand, function, calls)

    def end(self, at_once: bool) -> None:
        """End the child process and its process group, which has Ray's own processes if it started the cluster."""
        if not at_once:
            with suppress(OSError, EOFError):
                self._connection.send(("end", ()))
                self._connection.poll(_LEAVING)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._connection.close()
        self._said.close()

    def _ask(self, patience: float, request: str, *arguments: Foreign) -> Iterator[Foreign]:
        """Yield the child's answers and raise its exceptions. Raise ``ClusterLost`` if it ends or stays silent."""
        try:
            self._connection.send((request, arguments))
            while True:
                if not self._connection.poll(patience):
                    raise ClusterLost(f"it has not answered for {patience:.0f} seconds")
                kind, value = self._connection.recv()
                if kind == "raised":
                    raise value
                if kind == "done":
                    return
                if kind == "item":
                    yield value
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise ClusterLost(self._last_words()) from None

    def _last_words(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LEAVING)
        self._said.seek(0)
        text = self._said.read().decode(errors="replace")
        errors = re.findall(r"^\[[^\]]* [EFC] [^\]]*\] (?:\([^)]*\) )?\S+:\d+:\s*(.*?)(?:\. |\.?$)", text, re.MULTILINE)
        told = f": {errors[-1].strip()}" if errors else ""
        return f"the process that was connected to it ended with status {self._process.poll()}{told}"


def main() -> None:
    """Run the child process: answer one request after the other while the parent lives."""
    connection = Connection(int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)  # Ray's own processes must not keep the socket open
    Thread(target=_leave_with_parent, args=(connection.fileno(), os.getppid()), daemon=True).start()
    child = _Child(connection)
    while True:
        request, arguments = connection.recv()
        if request == "end":
            disconnect()
            return
        try:
            for item in child.answers(request, arguments):
                child.send("item", item)
            child.send("done")
        except Exception as error:
            error.add_note(f"in the process of Ray's driver:\n{''.join(traceback.format_tb(error.__traceback__))}")
            child.send("raised", error)


class _Child:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = Lock()
        self._spoke = monotonic()
        self._driver = ConnectedDriver(self._alive)

    def answers(self, request: str, arguments: tuple[Foreign, ...]) -> Iterator[Foreign]:
        if request == "join":
            connect(*arguments)
        elif request == "run":
            yield from self._driver.run(*arguments)
        else:
            yield getattr(self._driver, request)(*arguments)

    def send(self, kind: str, value: object = None) -> None:
        with self._lock:
            self._connection.send((kind, value))

    def _alive(self) -> None:
        if monotonic() - self._spoke > 1.0:
            self._spoke = monotonic()
            self.send("alive")


def _leave_with_parent(descriptor: int, parent: int) -> None:
    """Kill this process and its group when the parent has ended or closed its end of the socket."""
    poller = select.poll()
    poller.register(descriptor, 0)  # report only that the socket was closed
    while os.getppid() == parent and not poller.poll(500):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


_RUNNING: ContextVar[Driver] = ContextVar("lastiterate's driver of Ray")


@dataclass(frozen=True)
class Ray:
    """An engine that trains on a Ray cluster.

    All machines need the same lastiterate and the packages that a trainer imports, but not the trainer's own file.
    Unless this process is connected to Ray already, a child process connects, because losing the cluster ends it.

    Args:
        address: address of the cluster; None joins the cluster of this machine, or starts one if there is none.
        cpus: cores per task.
        gpus: GPUs per task; may be a fraction.
        retries: number of further attempts when a task's process ends by itself. Lost nodes do not count, and a task
            that raises an exception is not tried again.
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
        if chunk_size is None:  # chosen by a worker, for the number of workers in the cluster
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

    Few tasks are started ahead. When an audit is stopped, the remaining tasks end with the connection or, if this
    process was connected before, by themselves. No task is cancelled: Ray 2.60 crashes if a cancelled task just ends.
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
    """Return what a worker's function returned, or raise what it raised."""
    kind, content = answer
    if kind == "refused":
        raise ValueError(content)
    outcome, value = import_ray().cloudpickle.loads(content)
    if outcome == "raised":
        raise value
    return value


def _compare_versions(theirs: Mapping[str, str], where: str, said: set[str]) -> None:
    """Warn once per package if its version differs from that of this process: scores may depend on it."""
    for name, version in versions().items():
        if name not in said and theirs.get(name, version) != version:
            said.add(name)
            print(
                f"warning: {where} has {name} {theirs[name]}, and this process {version}: scores may differ; the store "
                "keeps the versions of each chunk",
                file=sys.stderr,
            )


def _called(models: IntArray, present: BoolArray) -> str:
    """Name the models of a chunk for an error message."""
    first, last = int(models.min()), int(models.max())
    worlds = "both worlds" if present.any() and not present.all() else f"world {'in' if present.any() else 'out'!r}"
    return f"model {first} of {worlds}" if first == last else f"models {first} to {last} of {worlds}"
