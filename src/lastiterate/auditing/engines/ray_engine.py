"""The Ray engine: every chunk of trials is a Ray task, and only the driver writes the store.

Ray kills a process that loses its cluster, so a child process connects to the cluster. Parent and child talk over a
socket. If the parent ends for any reason, the child and all processes that it started on this machine end, too. The
tasks of a worker that dies are run again.
"""

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
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from threading import Thread
from time import monotonic

from lastiterate.auditing.engines import ray_driver
from lastiterate.auditing.engines import worker_fingerprint as node
from lastiterate.auditing.engines.ray_driver import ConnectedDriver, Demand, Parcel, WorkerDied, given_address, pack
from lastiterate.auditing.engines.ray_worker import import_ray
from lastiterate.auditing.experiments.protocol import Experiment, Trials
from lastiterate.auditing.identity import versions
from lastiterate.auditing.stores.audit_record import Crafted, ScoredTrials
from lastiterate.common.errors import ClusterLost, TrainerFailed
from lastiterate.common.progress import TrainingProgress
from lastiterate.common.types import BoolArray, Fields, Foreign, IntArray
from lastiterate.common.validation import integer, number

STARTING, JOINING = 180.0, 30.0  # longest time to start or to join a cluster, in seconds
SILENCE = 180.0  # longest time without a message from the child, in seconds; Ray itself waits 60 s for a lost head
_LEAVING = 20.0  # longest time for Ray to shut down, in seconds
_PROGRAM = "from lastiterate.auditing.engines.ray_engine import main; main()"


class DriverProcess:
    """Access to a cluster through a child process. It has the methods of ``ConnectedDriver``."""

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
        patience = STARTING if given in (None, "auto", "local") else JOINING
        try:
            list(self._ask(patience, "join", address))
        except BaseException as error:
            self.end(at_once=True)
            if isinstance(error, ClusterLost) and given is not None:
                raise ray_driver.not_running(given, error.args[0]) from None
            raise

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
        """End the child process and its process group. If the child started the cluster, this ends the cluster."""
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
                    raise ClusterLost(f"the cluster has not answered for {patience:.0f} seconds")
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
        return f"the process connected to the cluster ended with status {self._process.poll()}{told}"


def main() -> None:
    """Run the child process: answer one request after the other while the parent lives."""
    connection = Connection(int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)  # Ray's own processes must not keep the socket open
    Thread(target=_leave_with_parent, args=(connection.fileno(), os.getppid()), daemon=True).start()
    spoke = monotonic()

    def alive() -> None:
        nonlocal spoke
        if monotonic() - spoke > 1.0:
            spoke = monotonic()
            connection.send(("alive", None))

    driver = ConnectedDriver(alive)
    requests: Fields = {"join": ray_driver.connect, "resources": driver.resources, "reports": driver.reports}
    while True:
        request, arguments = connection.recv()
        if request == "end":
            import_ray().shutdown()  # this ends the cluster if this process started it
            return
        try:
            for item in driver.run(*arguments) if request == "run" else [requests[request](*arguments)]:
                connection.send(("item", item))
            connection.send(("done", None))
        except Exception as error:
            error.add_note(f"in the process of Ray's driver:\n{''.join(traceback.format_tb(error.__traceback__))}")
            connection.send(("raised", error))


def _leave_with_parent(descriptor: int, parent: int) -> None:
    """Kill this process and its group when the parent has ended or closed its end of the socket."""
    poller = select.poll()
    poller.register(descriptor, 0)  # report only the end of the connection
    while os.getppid() == parent and not poller.poll(500):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


_RUNNING: ContextVar[ConnectedDriver | DriverProcess] = ContextVar("lastiterate's driver of Ray")


@dataclass(frozen=True)
class Ray:
    """An engine that trains on a Ray cluster.

    All machines need the same lastiterate and the packages that a trainer imports, but not the trainer's own file.
    If this process is not connected to Ray yet, a child process connects: Ray kills a process that loses its cluster.

    Args:
        address: address of the cluster. By default, join the cluster of this machine, or start one if there is none.
        cpus: cores per task.
        gpus: GPUs per task; may be a fraction.
        retries: number of further attempts after a task's process has died. Lost nodes do not count as attempts. A task
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
        driver: ConnectedDriver | DriverProcess = ConnectedDriver()
        if not import_ray().is_initialized():
            given = given_address(self.address)
            if given is not None and given not in ("auto", "local"):
                ray_driver.check_answer(given)
            driver = DriverProcess(self.address)
        token, failed = _RUNNING.set(driver), True
        try:
            yield
            failed = False
        finally:
            _RUNNING.reset(token)
            if isinstance(driver, DriverProcess):
                driver.end(at_once=failed)

    def prepare(self, experiment: Experiment, crafted: Crafted, chunk_size: int | None) -> Trials:
        driver, demand = _RUNNING.get(), Demand(self.cpus, self.gpus, self.retries)
        have = driver.resources()
        if (slots := demand.slots(have)) < 1:
            cpus, gpus = (have.get(name, 0.0) for name in ("CPU", "GPU"))
            got = f"got cpus {self.cpus:g} and gpus {self.gpus:g}"
            raise ValueError(f"a task must need at most the {cpus:g} CPUs and {gpus:g} GPUs of the cluster, {got}")
        parcel = pack(experiment, crafted, chunk_size, slots)
        said: set[str] = set()
        for report in driver.reports(parcel, demand):
            if sentence := node.disagreement(parcel.program, report):
                raise ValueError(sentence)
            _compare_versions(report["versions"], f"node {report['node']}", said)
        if chunk_size is None:  # chosen by a worker, for the number of workers in the cluster
            try:
                (answer,) = driver.run(parcel, demand, "chunk_size", [()])
            except WorkerDied as died:
                raise TrainerFailed(died, "work before the first model") from None
            chunk_size = int(_value(answer))
            parcel = pack(experiment, crafted, chunk_size, slots)
        size = chunk_size

        def chunks(models: IntArray, present: BoolArray, progress: TrainingProgress | None) -> Iterator[ScoredTrials]:
            # When an audit is stopped, the remaining tasks end with the connection or by themselves. No task is
            # cancelled: Ray 2.60 crashes if a task ends while it is cancelled.
            parts = [slice(begin, begin + size) for begin in range(0, len(models), size)]
            calls: list[tuple[Foreign, ...]] = [(models[part], present[part]) for part in parts]
            try:
                for answer in driver.run(parcel, demand, "train", calls):
                    chunk: ScoredTrials = _value(answer)
                    _compare_versions(chunk.versions or {}, "a node", said)
                    if progress:
                        progress.advanced(len(chunk.models), experiment.run.steps, finished=True)
                    yield chunk
            except WorkerDied as died:
                raise TrainerFailed(died, _called(*calls[died.args[1]])) from None

        return Trials(size, chunks)


def _value(answer: tuple[str, Foreign]) -> Foreign:
    kind, content = answer
    if kind == "refused":
        raise ValueError(content)
    outcome, value = import_ray().cloudpickle.loads(content)
    if outcome == "raised":
        raise value
    return value


def _compare_versions(theirs: Mapping[str, str], where: str, said: set[str]) -> None:
    for name, version in versions().items():
        if name not in said and theirs.get(name, version) != version:
            said.add(name)
            differ = f"{where} has {name} {theirs[name]}, and this process {version}"
            print(f"warning: {differ}: scores may differ; the store keeps the versions of each chunk", file=sys.stderr)


def _called(models: IntArray, present: BoolArray) -> str:
    first, last = int(models.min()), int(models.max())
    worlds = "both worlds" if present.any() and not present.all() else f"world {'in' if present.any() else 'out'!r}"
    return f"model {first} of {worlds}" if first == last else f"models {first} to {last} of {worlds}"
