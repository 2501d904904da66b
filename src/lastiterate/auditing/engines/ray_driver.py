"""The driver of a Ray cluster: it compares the nodes' programs, starts tasks, and retries lost tasks.

A task that lost its node is retried up to ``NODE_LOSSES`` times. A task whose process ends by itself (an exit, a crash
or a lack of memory) is retried a few times; then ``WorkerDied`` names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol, TypeAlias

from lastiterate.auditing.engines import worker_fingerprint as node
from lastiterate.auditing.engines.ray_cluster import first_line, import_ray
from lastiterate.auditing.engines.ray_worker import SentTask
from lastiterate.auditing.engines.task_pickle import Parcel
from lastiterate.common.errors import ClusterLost
from lastiterate.common.types import Fields

Foreign: TypeAlias = Any  # Ray itself, and objects sent through Ray

NODE_LOSSES = 100  # most lost nodes of one task
NO_ROOM = 60.0  # longest time without any node with room for a task, in seconds
ANSWER = 60.0  # longest time for a node to report its program or to send a result, in seconds
_LOOK = 5.0  # seconds between two checks of the nodes


@dataclass(frozen=True)
class Demand:
    """The resources of a task, and the number of retries when its process ends by itself."""

    cpus: float
    gpus: float
    retries: int

    def slots(self, have: dict[str, float]) -> int:
        """Return how many tasks run at a time with these resources."""
        needed = {"CPU": self.cpus, "GPU": self.gpus}
        return int(min((have.get(name, 0.0) / each for name, each in needed.items() if each), default=1.0))


class WorkerDied(RuntimeError):
    """Error for a task whose process ended at every attempt; ``call`` is the index of the task."""

    def __init__(self, reason: str, call: int) -> None:
        super().__init__(reason, call)
        self.call = call

    def __str__(self) -> str:
        return str(self.args[0])


class Driver(Protocol):
    """Access to a cluster, from this process or through another one."""

    def resources(self) -> dict[str, float]:
        """Return the resources of the cluster."""

    def reports(self, parcel: Parcel, demand: Demand) -> list[Fields]:
        """Return a report of the program on every node that has room for a task."""

    def run(
        self, parcel: Parcel, demand: Demand, function: str, calls: list[tuple[Foreign, ...]]
    ) -> Iterator[tuple[str, Foreign]]:
        """Yield the workers' answers to these calls of a function of ``ray_worker``, in any order."""


@dataclass(eq=False)
class ConnectedDriver:
    """The driver in a process that is connected to Ray. It calls ``alive`` about once a second while it waits."""

    alive: Callable[[], None] = lambda: None
    _looked: float = field(default_factory=monotonic, init=False)
    _had_room: float = field(default_factory=monotonic, init=False)

    def resources(self) -> dict[str, float]:
        return dict(import_ray().cluster_resources())

    def reports(self, parcel: Parcel, demand: Demand) -> list[Fields]:
        ray = import_ray()
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ray.cloudpickle.register_pickle_by_value(node)
        probe = ray.remote(num_cpus=0, max_retries=0)(node.probe)
        fitting = [each for each in ray.nodes() if each["Alive"] and demand.slots(each["Resources"]) >= 1]
        places = [NodeAffinitySchedulingStrategy(each["NodeID"], soft=False) for each in fitting]
        names, folders = list(parcel.program["modules"]), parcel.program["folders"]
        waiting = [probe.options(scheduling_strategy=place).remote(names, folders) for place in places]
        found, began = [], monotonic()
        while waiting and monotonic() - began < ANSWER:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=1.0)
            self.alive()
            for reference in done:
                try:
                    found.append(ray.get(reference))
                except ray.exceptions.RayError:  # the node is lost; later tasks on it check the program themselves
                    continue
        return found

    def run(
        self, parcel: Parcel, demand: Demand, function: str, calls: list[tuple[Foreign, ...]]
    ) -> Iterator[tuple[str, Foreign]]:
        ray = import_ray()
        ray.cloudpickle.register_pickle_by_value(node)
        sent = SentTask(ray.put(parcel.pickled), demand.cpus, demand.gpus, parcel.double)
        remote = ray.remote(num_cpus=demand.cpus, num_gpus=demand.gpus, max_retries=0)(node.call)
        left = list(reversed(range(len(calls))))
        deaths, losses = [0] * len(calls), [0] * len(calls)
        waiting: dict[Foreign, int] = {}
        self._had_room = monotonic()
        while left or waiting:
            while left and len(waiting) <= max(1, demand.slots(self.resources())):
                call = left.pop()
                waiting[remote.remote(parcel.program, function, sent, *calls[call])] = call
            done, _ = ray.wait(list(waiting), num_returns=1, timeout=1.0)
            self.alive()
            self._look(ray, demand)
            for reference in done:
                call = waiting.pop(reference)
                try:
                    answer = ray.get(reference, timeout=ANSWER)
                except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
                    self._check_own_node(ray)
                    deaths[call] += 1
                    if deaths[call] > demand.retries:
                        raise WorkerDied(_death(ray, error, deaths[call]), call) from None
                    left.append(call)
                except _node_losses(ray) as error:
                    losses[call] += 1
                    if losses[call] > NODE_LOSSES:
                        raise ClusterLost(f"a task lost {losses[call]} nodes: {first_line(error)}") from None
                    left.append(call)
                except ray.exceptions.RayTaskError as error:  # before any of our code ran
                    raise ClusterLost(f"a worker cannot run tasks: {first_line(error.cause)}") from None
                except (ray.exceptions.RayError, ConnectionError) as error:
                    raise ClusterLost(first_line(error)) from None
                else:
                    yield answer

    def _look(self, ray: Foreign, demand: Demand) -> None:
        """Raise if this process' node is dead or no node has had room for a task for ``NO_ROOM`` seconds."""
        now = monotonic()
        if now - self._looked < _LOOK:
            return
        self._looked = now
        own = ray.get_runtime_context().get_node_id()
        nodes = ray.nodes()
        if any(each["NodeID"] == own and not each["Alive"] for each in nodes):
            raise ClusterLost("the node that this process belongs to is dead")
        if any(each["Alive"] and demand.slots(each["Resources"]) >= 1 for each in nodes):
            self._had_room = now
        elif now - self._had_room > NO_ROOM:
            raise ClusterLost("no node is left that has room for a task")

    def _check_own_node(self, ray: Foreign) -> None:
        """Raise if this process' node is lost: Ray then reports crashed workers for all tasks."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        own = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        answered = ray.remote(num_cpus=0, max_retries=1, scheduling_strategy=own)(node.node_name).remote()
        self.alive()
        try:
            ray.get(answered, timeout=ANSWER)
        except (ray.exceptions.RayError, ConnectionError):
            raise ClusterLost("the node that this process belongs to runs no more tasks") from None


def _node_losses(ray: Foreign) -> tuple[type[Exception], ...]:
    known = ray.exceptions
    return known.NodeDiedError, known.ObjectLostError, known.GetTimeoutError


def _death(ray: Foreign, error: Exception, times: int) -> str:
    times_said = "once" if times == 1 else f"each of {times} times"
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return f"its process was ended for lack of memory, {times_said}: {first_line(error)}"
    return f"its process ended, {times_said}, by an exit, a crash or a kill"
