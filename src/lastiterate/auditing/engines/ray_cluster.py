"""The connection to a Ray cluster: import, address check, connect and disconnect."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from typing import Any
from urllib.parse import urlsplit

from lastiterate.common.errors import ClusterLost

PATIENCE = 5.0  # longest time for a cluster to answer, in seconds

# Ray reads these when it is imported. They stop messages on stdout about dead workers, which are harmless, and Ray's
# usage reports.
_SETTINGS = {"RAY_DEDUP_LOGS_SKIP_REGEX": ".", "RAY_USAGE_STATS_ENABLED": "0"}

# Start of an HTTP/2 connection (RFC 9113, 3.4), which Ray's services use: the client sends this preface and its
# settings, and the server answers with its own settings, a frame whose fourth byte is 4.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_IS_SETTINGS = 4


def import_ray() -> Any:
    """Import Ray, or raise an error that says how to install it."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise ValueError("engine 'ray' needs Ray, which is not installed: pip install \"lastiterate[ray]\"") from None
    return ray


def given_address(address: str | None) -> str | None:
    """Return the address, or else that of the environment variable ``RAY_ADDRESS``; None if neither is set."""
    return address or os.environ.get("RAY_ADDRESS")


def connect(address: str | None) -> None:
    """Connect this process to a cluster, or start one."""
    ray, given = import_ray(), given_address(address)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if given in (None, "local"):
        options["include_dashboard"] = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns about forks, but Ray's forks execute other programs at once
        try:
            ray.init(address=address, **options)
        except (ConnectionError, ImportError, RuntimeError, ValueError) as error:
            raise ValueError(
                f"address must be of a Ray cluster that runs, got {given!r}: {first_line(error)}"
            ) from None
        except ray.exceptions.RayError as error:
            raise ClusterLost(f"it cannot be started or joined: {first_line(error)}") from None


def disconnect() -> None:
    """Disconnect from the cluster, which ends the cluster if this process started it."""
    import_ray().shutdown()


def check_answer(address: str) -> None:
    """Raise if nothing answers at the address, or a service that is not Ray. Ray itself would try for minutes."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise ValueError(f"address must be HOST:PORT, ray://HOST:PORT, auto or local, got {address!r}")
    try:
        with socket.create_connection((host, port), PATIENCE) as asked:
            if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
                return
            asked.sendall(_HELLO)
            said = asked.recv(9)
    except (TimeoutError, ConnectionResetError):
        said = b""
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(f"address must be of a Ray cluster, but nothing answers at {address!r}: {reason}") from None
    if len(said) < _IS_SETTINGS or said[3] != _IS_SETTINGS:
        raise ValueError(f"address must be of a Ray cluster, but what listens at {address!r} is none")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; Ray's messages are long."""
    return str(error).strip().partition("\n")[0]
