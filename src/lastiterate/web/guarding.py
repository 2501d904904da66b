"""Who may ask the server, and what browsers may do with its answers."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

Scope = MutableMapping[str, Any]  # the types of ASGI
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

# Vega evaluates expressions by its interpreter, so that no script but ours ever runs.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
_LONGEST = 8192  # characters of a question


@dataclass(frozen=True)
class Hosts:
    """Under which names the server may be asked: by others, a page elsewhere might have itself led here.

    A name that an attacker owns may point to this machine. A number cannot, nor can this machine's own name.
    """

    port: int
    is_remote: bool

    def allow(self, header: str) -> bool:
        """Whether this Host header is one of ours."""
        name, _, port = header.rpartition(":") if not header.endswith("]") else (header, "", "")
        if not name:
            name, port = header, ""
        if (port or "80") != str(self.port):
            return False
        name = name.lower().rstrip(".")
        if name in ("localhost", "127.0.0.1", "[::1]"):
            return True
        return self.is_remote and (_is_number(name) or name in (socket.gethostname().lower(), socket.getfqdn().lower()))


def is_loopback(host: str) -> bool:
    """Whether only this machine can ask a server that listens there."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Stands before the application: refuses foreign hosts and pages, and puts the policy on every answer."""

    def __init__(self, application: Application, hosts: Hosts) -> None:
        self._application, self._hosts = application, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in _HEADERS}
                message["headers"] = [each for each in message.get("headers", []) if each[0] not in own] + _HEADERS
            await send(message)

        if refusal := self._refusal(scope):
            status, words = refusal
            headers = [(b"content-type", b"text/plain; charset=utf-8")]
            await guarded({"type": "http.response.start", "status": status, "headers": headers})
            await guarded({"type": "http.response.body", "body": words.encode()})
            return
        await self._application(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not self._hosts.allow(hosts[0]):
            return 421, "This server answers only under its own address.\n"
        is_question = not str(scope["path"]).startswith(("/static/", "/summary")) and str(scope["path"]).count("/") > 1
        if is_question and headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
            return 403, "This server answers only its own pages.\n"
        if len(scope["query_string"]) > _LONGEST or len(str(scope["path"])) > _LONGEST:
            return 414, f"A question must be at most {_LONGEST} characters long.\n"
        return None


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
