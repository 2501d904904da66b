"""The connection to a Ray cluster: quiet, quick to say that nothing answers, and closed by whoever opened it."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

PATIENCE = 5.0  # seconds until a cluster must have answered

# Read when Ray is imported. It would print the death of a worker, which costs nothing, on stdout; and it would report
# to its makers that it is used.
_SETTINGS = {"RAY_DEDUP_LOGS_SKIP_REGEX": ".", "RAY_USAGE_STATS_ENABLED": "0"}


def import_ray() -> Any:
    """Ray, or a sentence that says how to get it."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise ValueError("engine 'ray' needs Ray, which is not installed: pip install \"lastiterate[ray]\"") from None
    return ray


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connected to a cluster. A connection that the process had before is used and left as it is."""
    ray = import_ray()
    if ray.is_initialized():
        yield
        return
    _connect(ray, address)
    try:
        yield
    finally:
        ray.shutdown()  # which ends the cluster if it was begun here


def _connect(ray: Any, address: str | None) -> None:
    given = address or os.environ.get("RAY_ADDRESS")
    if given is not None and given not in ("auto", "local"):
        check_answer(given)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if given in (None, "local"):
        options["include_dashboard"] = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of forks; Ray's become other programs at once
        try:
            ray.init(address=address, **options)
        except (ConnectionError, ImportError, RuntimeError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(f"address must be of a Ray cluster that runs, got {given!r}: {reason}") from None


def check_answer(address: str) -> None:
    """Refuse an address at which nobody is. Ray itself would try for minutes."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise ValueError(f"address must be HOST:PORT, ray://HOST:PORT, auto or local, got {address!r}")
    try:
        socket.create_connection((host, port), PATIENCE).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(f"address must be of a Ray cluster, but nothing answers at {address!r}: {reason}") from None
