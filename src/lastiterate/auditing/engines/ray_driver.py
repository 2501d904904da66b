"""The driver of a Ray cluster: it connects, compares the nodes' programs, starts tasks, and retries lost tasks."""

import logging
import os
import pickle
import pickletools
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from time import monotonic
from types import FunctionType, MethodType, ModuleType
from urllib.parse import urlsplit

from lastiterate.auditing.engines import worker_fingerprint as node
from lastiterate.auditing.engines.ray_worker import SentTask, import_ray
from lastiterate.auditing.experiments.protocol import Experiment
from lastiterate.auditing.stores.audit_record import Crafted
from lastiterate.auditing.user_code import is_installed, neighbours
from lastiterate.common.errors import BadArgument, ClusterLost
from lastiterate.common.types import Fields, Foreign
from lastiterate.common.validation import told

NODE_LOSSES = 100  # largest number of nodes that one task may lose
NO_ROOM = 60.0  # longest time in seconds during which no node has room for a task
ANSWER = 60.0  # longest time for a node to report its program or to send a result, in seconds
_LOOK = 5.0  # seconds between two checks of the nodes


@dataclass(frozen=True, eq=False)
class Parcel:
    """A pickled task as plain values, which any process can send to the cluster."""

    pickled: bytes  # pickled here, because Ray would unpickle arrays as read-only
    program: Fields  # the ``node.report`` that workers must match, and the folders of the user's modules
    double: bool  # whether JAX uses double precision in this process


@dataclass(frozen=True)
class Demand:
    """The resources of a task, and the number of retries after its process has died."""

    cpus: float
    gpus: float
    retries: int

    def slots(self, have: dict[str, float]) -> int:
        needed = {"CPU": self.cpus, "GPU": self.gpus}
        return int(min((have.get(name, 0.0) / each for name, each in needed.items() if each), default=1.0))


class WorkerDied(RuntimeError):
    """Error for a task whose process died at every attempt. Its arguments are the reason and the task's index."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(eq=False)
class ConnectedDriver:
    """Access to a cluster from a process connected to Ray. ``alive`` is called every second while waiting."""

    alive: Callable[[], None] = lambda: None
    _looked: float = field(default_factory=monotonic, init=False)
    _had_room: float = field(default_factory=monotonic, init=False)

    def resources(self) -> dict[str, float]:
        return dict(import_ray().cluster_resources())

    def reports(self, parcel: Parcel, demand: Demand) -> list[Fields]:
        """Return the ``node.report`` of every node that has room for a task."""
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
        """Call a function of ``ray_worker`` with each tuple of arguments. Yield the answers in any order."""
        ray = import_ray()
        known = ray.exceptions
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
                except (known.WorkerCrashedError, known.OutOfMemoryError) as error:
                    self._check_own_node(ray)
                    deaths[call] += 1
                    if deaths[call] > demand.retries:
                        times = "once" if deaths[call] == 1 else f"each of {deaths[call]} times"
                        why = f"its process ended, {times}, by an exit, a crash or a kill"
                        if isinstance(error, known.OutOfMemoryError):
                            why = f"its process was ended for lack of memory, {times}: {first_line(error)}"
                        raise WorkerDied(why, call) from None
                    left.append(call)
                except (known.NodeDiedError, known.ObjectLostError, known.GetTimeoutError) as error:
                    losses[call] += 1
                    if losses[call] > NODE_LOSSES:
                        raise ClusterLost(f"a task lost {losses[call]} nodes: {first_line(error)}") from None
                    left.append(call)
                except known.RayTaskError as error:  # the task failed before it called this package
                    raise ClusterLost(f"a worker cannot run tasks: {first_line(error.cause)}") from None
                except (known.RayError, ConnectionError) as error:
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
        # If the node of this process is lost, Ray reports a crashed worker for every task.
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        own = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        answered = ray.remote(num_cpus=0, max_retries=1, scheduling_strategy=own)(node.node_name).remote()
        self.alive()
        try:
            ray.get(answered, timeout=ANSWER)
        except (ray.exceptions.RayError, ConnectionError):
            raise ClusterLost("the node that this process belongs to runs no more tasks") from None


PATIENCE = 5.0  # longest time for a cluster to answer, in seconds

# Start of an HTTP/2 connection (RFC 9113, 3.4). Ray's services answer with a frame whose fourth byte is 4.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_IS_SETTINGS = 4


def given_address(address: str | None) -> str | None:
    """Return the address. If there is none, return the environment variable ``RAY_ADDRESS``, or None."""
    return address or os.environ.get("RAY_ADDRESS")


def connect(address: str | None) -> None:
    """Connect this process to a cluster, or start one."""
    ray, given = import_ray(), given_address(address)
    options: Fields = {"log_to_driver": False, "logging_level": logging.ERROR}
    if given in (None, "local"):
        options["include_dashboard"] = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns about forks; Ray's forks are safe because they start other programs
        try:
            ray.init(address=address, **options)
        except (ConnectionError, ImportError, RuntimeError, ValueError) as error:
            reason = first_line(error)
            if isinstance(error, ConnectionError) and "RAY_AUTH_MODE" not in os.environ:
                reason += ". If the cluster needs a token, as Ray's clusters do by default, set RAY_AUTH_MODE=token"
            raise not_running(given, reason) from None
        except ray.exceptions.RayError as error:
            raise ClusterLost(f"it cannot be started or joined: {first_line(error)}") from None


def not_running(address: str | None, reason: str) -> ValueError:
    """Return the error for an address at which no cluster runs."""
    return ValueError(f"address must be the address of a running Ray cluster, got {told(address)}: {reason}")


def check_answer(address: str) -> None:
    """Raise if no Ray service answers at the address. Ray itself would keep trying for minutes."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise BadArgument("address", f"must be HOST:PORT, ray://HOST:PORT, auto or local, got {told(address)}")
    if not _is_ray(address, host, port):
        raise BadArgument("address", f"must be that of a Ray cluster, but another service listens at {address!r}")
    if host in ("localhost", "127.0.0.1", "::1") and not address.startswith("ray://"):
        own = import_ray().util.get_node_ip_address()
        try:
            _is_ray(address, own, port)
        except ValueError:
            what = f"replaces it by {own!r}, where this cluster does not listen"
            raise BadArgument(
                "address",
                f"must be one that other programs can reach, got {told(address)}: Ray {what}. "
                f"Start its head with `ray start --head --node-ip-address={own} --port={port}`",
            ) from None


def _is_ray(address: str, host: str, port: int) -> bool:
    """Return whether a Ray service answers. Raise if nothing does."""
    try:
        with socket.create_connection((host, port), PATIENCE) as asked:
            if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
                return True
            asked.sendall(_HELLO)
            said = asked.recv(9)
    except (TimeoutError, ConnectionResetError):
        said = b""
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadArgument(
            "address", f"must be the address of a Ray cluster, but nothing answers at {address!r}: {reason}"
        ) from None
    return len(said) >= _IS_SETTINGS and said[3] == _IS_SETTINGS


def first_line(error: BaseException) -> str:
    """Return the first line of an error message."""
    return str(error).strip().partition("\n")[0]


# Pickled tasks, with the user's modules and the digests that workers must match.


def pack(experiment: Experiment, crafted: Crafted, chunk_size: int | None, sharers: int) -> Parcel:
    """Pickle an experiment and the arguments of its ``trials``.

    The user's own modules are pickled by value, because other machines do not have them.
    """
    cloudpickle = import_ray().cloudpickle
    things = _unwrapped(list(vars(experiment).values()))
    by_value = {module.__name__: module for module in map(_users_module, things) if module}
    for module in by_value.values():
        cloudpickle.register_pickle_by_value(module)
    try:
        pickled = bytes(cloudpickle.dumps((experiment, crafted, chunk_size, 1, sharers)))
    except (TypeError, pickle.PicklingError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"the trainer must be picklable, to be sent to other processes: {reason}") from None
    finally:
        for module in by_value.values():
            cloudpickle.unregister_pickle_by_value(module)
    jax = sys.modules.get("jax")
    program = _program(pickled, {"__main__", *by_value})
    return Parcel(pickled, program, jax is not None and bool(jax.config.x64_enabled))


def _program(pickled: bytes, by_value: set[str]) -> Fields:
    told = {argument for _, argument, _ in pickletools.genops(pickled) if isinstance(argument, str)}
    files = {name: file for name in told if (file := _users_file(name))}
    sent = {file for name, file in files.items() if name in by_value}
    imported = {_module_name(file): file for known in files.values() for file in neighbours(known) - sent}
    folders = {str(_root(file)) for name, file in {**imported, **files}.items() if name != "__main__"}
    return {
        **_ourselves(),
        "modules": {name: node.digest_of_file(file) for name, file in sorted(imported.items())},
        "folders": sorted(folders),
        "cwd": str(Path.cwd()),
    }


@cache
def _ourselves() -> Fields:
    return node.report([])


def _unwrapped(things: list[object]) -> Iterator[object]:
    """Yield the objects, with each ``functools.partial`` and each bound method replaced by its parts."""
    while things:
        thing = things.pop()
        if isinstance(thing, partial):
            things += [thing.func, *thing.args, *thing.keywords.values()]
        elif isinstance(thing, MethodType):
            things += [thing.__func__, thing.__self__]
        else:
            yield thing


def _users_module(thing: object) -> ModuleType | None:
    written = thing if isinstance(thing, (FunctionType, type)) else type(thing)
    name = written.__module__
    return None if name == "__main__" or is_installed(written) else sys.modules.get(name)


def _users_file(name: str) -> Path | None:
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None or file is None or is_installed(module):
        return None
    return Path(file).resolve() if Path(file).suffix == ".py" and Path(file).is_file() else None


def _module_name(file: Path) -> str:
    """Return the name under which a file is imported from the folder of its outermost package."""
    path = file.parent if file.name == "__init__.py" else file.with_suffix("")
    return ".".join(path.relative_to(_root(file)).parts)


def _root(file: Path) -> Path:
    folder = file.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder
