"""The driver of Ray in a process of its own, because Ray ends the process in which it loses its cluster.

The processes talk over a socket. Whoever is left alone ends: the child, and all that it has begun on this machine, when
its parent is gone, however that came about.
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
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from threading import Lock, Thread
from time import monotonic
from typing import Any, TypeAlias

from lastiterate.auditing.engines.cluster_lost import ClusterLost
from lastiterate.auditing.engines.parcel import Parcel
from lastiterate.auditing.engines.ray_cluster import connect, disconnect, given_address
from lastiterate.auditing.engines.ray_driver import ConnectedDriver, Demand
from lastiterate.fields import Fields

Foreign: TypeAlias = Any  # what is sent through Ray

STARTING, JOINING = 180.0, 30.0  # seconds until a cluster must have been started, or joined
SILENCE = 180.0  # seconds without a word after which the process is given up; Ray itself waits 60 s for a lost head
_LEAVING = 20.0  # seconds until Ray must have shut down
_PROGRAM = "from lastiterate.auditing.engines.ray_process import main; main()"


class DriverProcess:
    """A ``Driver`` whose cluster is seen from a child process."""

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
                start_new_session=True,  # Ctrl-C is for us, and what it begins can be ended together
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
        """End the process, and what it has begun: Ray's own processes, if the cluster was started by it."""
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
        """What the child answers, one by one. What it raises is raised here, and its silence or its end as well."""
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
    """The child: do what is asked, one thing after the other, as long as the parent lives."""
    connection = Connection(int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)  # Ray's own processes must not keep it open
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
    """End this process and its group when the parent is gone, or has closed its end of the socket."""
    poller = select.poll()
    poller.register(descriptor, 0)  # nothing but its end
    while os.getppid() == parent and not poller.poll(500):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)
