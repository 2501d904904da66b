"""The web server: routes, JSON responses, access rules, security headers and the listening socket."""

from __future__ import annotations

import asyncio
import errno
import hmac
import ipaddress
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from lastiterate.common.errors import MissingExtra, not_installed
from lastiterate.common.types import Fields
from lastiterate.plot.chart_file import missing_libraries
from lastiterate.plot.page_assets import STATIC as PAGE_STATIC
from lastiterate.web import explorer
from lastiterate.web.audit_answers import looks
from lastiterate.web.form_fields import Reader, blamed_field, description
from lastiterate.web.workers import Broke, Task, TooLong, Workers

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response


# Responses: JSON, or one sentence that says what is wrong.

_LEFT = 499  # status for a client that has disconnected


async def answered(request: Request, question: Awaitable[Fields | None]) -> Response | None:
    """Await the answer to a question and return it as a JSON response, or return None if the answer is None.

    A ValueError (bad input) has status 422 and a sentence. A timeout or a broken worker has status 503, and any other
    RuntimeError has status 500. If the client disconnects, the question is cancelled.
    """
    from starlette.responses import Response

    asked = asyncio.ensure_future(question)
    left = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({asked, left}, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            return Response(status_code=_LEFT)
        found = asked.result()
        return None if found is None else json_of(found)
    except ValueError as refusal:
        sentence = " ".join(str(refusal).split())
        return json_of({"error": sentence, "field": blamed_field(refusal)}, 422)
    except (TooLong, Broke) as trouble:
        return json_of({"error": str(trouble), "field": None}, 503)
    except RuntimeError as fault:
        return json_of({"error": f"internal error: {fault}", "field": None}, 500)
    finally:
        left.cancel()
        asked.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def json_of(fields: Fields, status: int = 200) -> Response:
    """Return a response with this JSON object."""
    from starlette.responses import Response

    return Response(json.dumps(fields, allow_nan=False), status, media_type="application/json")


# Access rules: allowed hosts, allowed request origins, and security headers for browsers.

Scope = MutableMapping[str, Any]  # types of ASGI
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

# Vega's expression interpreter needs no 'unsafe-eval', so the policy allows only our own scripts.
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
TOKEN = b"token="  # begins the token in the query
_LONGEST = 8192  # characters of a query string or a path


@dataclass(frozen=True)
class Hosts:
    """The host names under which the server answers. Other names are refused as a defence against DNS rebinding."""

    port: int
    is_remote: bool

    def allow(self, header: str) -> bool:
        name, _, port = header.rpartition(":") if not header.endswith("]") else (header, "", "")
        if not name:
            name, port = header, ""
        if (port or "80") != str(self.port):
            return False
        name = name.lower().rstrip(".")
        if name in ("localhost", "127.0.0.1", "[::1]"):
            return True
        own = (socket.gethostname().lower(), socket.getfqdn().lower())
        return self.is_remote and (_ip_address(name) is not None or name in own)


def is_loopback(host: str) -> bool:
    """Return whether a server that listens on this host is reachable only from this machine."""
    address = _ip_address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def _ip_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return None


Refusal = tuple[int, str, *tuple[tuple[bytes, bytes], ...]]  # status, sentence and headers of a response


class Guard:
    """ASGI middleware that refuses foreign hosts, foreign origins and users without the token, and adds headers."""

    def __init__(self, application: Application, hosts: Hosts, token: str | None) -> None:
        self._application, self._hosts, self._token = application, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in _HEADERS}
                message["headers"] = [each for each in message.get("headers", []) if each[0] not in own] + _HEADERS
            await send(message)

        if refusal := self._refusal(scope) or self._admission(scope):
            status, words, *more = refusal
            headers = [(b"content-type", b"text/plain; charset=utf-8"), *more]
            await guarded({"type": "http.response.start", "status": status, "headers": headers})
            await guarded({"type": "http.response.body", "body": words.encode()})
            return
        await self._application(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not self._hosts.allow(hosts[0]):
            return 421, "This server answers only under its own address.\n"
        is_page = scope["path"] in ("/", "/audits") or str(scope["path"]).startswith("/static/")
        if not is_page and headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
            return 403, "This server answers only its own pages.\n"
        if len(scope["query_string"]) > _LONGEST or len(str(scope["path"])) > _LONGEST:
            return 414, f"A question must be at most {_LONGEST} characters long.\n"
        return None

    def _admission(self, scope: Scope) -> Refusal | None:
        """Return None if the request has the cookie. A token in the address is removed, after the cookie is set."""
        if self._token is None:
            return None
        token, name = self._token.encode(), f"lastiterate-{self._hosts.port}"
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        cookies = [part.strip() for key, value in headers if key == b"cookie" for part in value.split(b";")]
        is_known = any(hmac.compare_digest(each, name.encode() + b"=" + token) for each in cookies)
        query: list[bytes] = scope["query_string"].split(b"&")
        given = [each for each in query if each.startswith(TOKEN)]
        if not is_known and not any(hmac.compare_digest(each, TOKEN + token) for each in given):
            return 403, "This page needs the token: open the address that lastiterate printed when it started.\n"
        if not given:
            return None
        rest = b"&".join(each for each in query if each not in given)
        place = b"/" + scope["raw_path"].lstrip(b"/") + (b"?" + rest if rest else b"")
        cookie = b"set-cookie", f"{name}={self._token}; HttpOnly; SameSite=Strict; Path=/".encode()
        if dict(headers).get(b"sec-fetch-site", b"none") in (b"none", b"same-origin"):
            return 303, "", (b"location", place), cookie
        return 200, "", (b"refresh", b"0; url=" + place), cookie  # after a redirect browsers would keep the cookie back


PORT = 8765
_STATIC = Path(__file__).with_name("static")
_MOST_AT_ONCE = 512  # concurrent connections


@dataclass(frozen=True)
class Limits:
    """Time limits of questions, in seconds."""

    answer: float = 15.0
    lines: float = 30.0
    search: float = 60.0
    audit: float = 300.0


def require_web() -> None:
    """Raise ``MissingExtra`` with one sentence if a library that the pages need is not installed."""
    for name in ("starlette", "uvicorn"):
        try:
            __import__(name)
        except ImportError:
            raise MissingExtra(not_installed("pages", name, "web", "need")) from None
    if sentence := missing_libraries():
        raise MissingExtra(sentence)


def application(
    reader: Reader,
    hosts: Hosts,
    token: str | None,
    folder: Path | None = None,
    limits: Limits = Limits(),  # noqa: B008 - it is frozen
) -> Application:
    """Return the server as an ASGI application. If ``folder`` is given, it also serves pages of the audits there.

    Every request must have the token, or the cookie that a request with the token receives. If ``token`` is None,
    every request is answered.
    """
    from starlette.applications import Starlette
    from starlette.responses import FileResponse
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

    from lastiterate.web.audit_pages import Audits, audit_routes

    loaded = [explorer.__name__, reader.run.__module__]
    answers, lines, searches = (Workers(2, each, loaded) for each in (limits.answer, limits.lines, limits.search))
    audits = (
        None if folder is None else Audits(folder, Workers(2, limits.audit, loaded), Workers(1, limits.audit, loaded))
    )
    pools = [answers, lines, searches, *([] if audits is None else audits.pools)]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        for pool in pools:
            pool.start()
        yield
        for pool in pools:
            pool.stop()

    def asking(pool: Workers, task: Task) -> Callable[[Request], object]:
        async def endpoint(request: Request) -> Response:
            found = await answered(request, pool.ask(task, reader, dict(request.query_params)))
            return found or json_of({})

        return endpoint

    def file(path: Path, kind: str) -> Callable[[Request], Response]:
        return lambda request: FileResponse(path, media_type=kind)

    def described(request: Request) -> Response:
        told = {"looks": looks(), "baselines": list(explorer.BASELINES), "has_audits": audits is not None}
        return json_of({**description(), **told})

    routes = [
        Route("/", file(_STATIC / "index.html", "text/html")),
        Route("/audits", file(_STATIC / "audits.html", "text/html")),
        Route("/api/description", described),
        Route("/api/answer", asking(answers, explorer.answer)),
        *(
            Route(f"/api/lines/{part}", asking(lines, partial(explorer.lines, part=part)))
            for part in get_args(explorer.Part)
        ),
        Route("/api/sentence", asking(searches, explorer.quoted)),
        Route("/api/noise", asking(searches, explorer.noise)),
        Route("/api/plan", asking(searches, explorer.plan)),
        Route("/static/base.css", file(PAGE_STATIC / "base.css", "text/css")),
        Route("/static/vega.js", _scripts),
        Mount("/static", StaticFiles(directory=_STATIC)),
        *([] if audits is None else audit_routes(audits)),
    ]
    return Guard(Starlette(routes=routes, lifespan=lifespan), hosts, token)


async def _scripts(request: Request) -> Response:
    """Return the Vega script, which is bundled once per version. Pages work without charts until they receive it."""
    from starlette.responses import Response

    from lastiterate.plot.chart_file import PictureFailed, scripts

    try:
        content = await asyncio.to_thread(scripts)
    except PictureFailed as failed:
        return Response(f"// {failed}", 503, media_type="text/javascript")
    return Response(content, media_type="text/javascript")


def listen(host: str, port: int | None, allow_remote: bool) -> socket.socket:
    """Return a listening socket. The default port is ``PORT``, or any free port if ``PORT`` is in use."""
    if not is_loopback(host) and not allow_remote:
        raise ValueError(
            f"--host must be an address of this machine only, such as 127.0.0.1, got {host!r}. With --allow-remote, "
            "everybody who reaches this machine and has the token can read the audits, and nothing is encrypted"
        )
    wanted = [port] if port is not None else [PORT, 0]
    for each in wanted:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), each, type=socket.SOCK_STREAM)[0]
        except (OSError, ValueError):  # an unknown or an invalid name
            raise ValueError(f"--host must be an address or a name of this machine, got {host!r}") from None
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(address)
            listening.listen(128)
            return listening
        except OSError as error:
            listening.close()
            if error.errno == errno.EADDRINUSE and each == wanted[-1]:
                raise ValueError(f"--port {each} is used by another program: choose another port") from None
            if error.errno != errno.EADDRINUSE:
                raise ValueError(f"--host {host} and --port {each} cannot be listened on: {error.strerror}") from None
    raise AssertionError("another program uses one of the ports")


def address_of(listening: socket.socket, host: str, path: str, token: str | None) -> str:
    """Return the URL to open in a browser."""
    shown = "127.0.0.1" if host in ("0.0.0.0", "::", "[::]") else host
    name = f"[{shown.strip('[]')}]" if ":" in shown else shown
    query = "" if token is None else f"?{TOKEN.decode()}{token}"
    return f"http://{name}:{listening.getsockname()[1]}{path}{query}"


# Connections: a client that sends or reads too slowly is disconnected, so that it does not take the place of others.

_SLOWEST = 10.0  # seconds for a request to arrive, or for a client to go on reading
_MOST_WAITING = 256  # connections without a complete request; the oldest of more is closed


def _patient_protocol() -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with time limits for requests that do not arrive and answers that nobody reads."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    waiting: dict[H11Protocol, asyncio.TimerHandle] = {}  # the oldest first

    class Patient(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._go_on()
            else:
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._go_on()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._wait()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._go_on()

        def _wait(self) -> None:
            if self not in waiting and not self.transport.is_closing():
                if len(waiting) >= _MOST_WAITING:
                    next(iter(waiting))._give_up()  # type: ignore[attr-defined]
                waiting[self] = self.loop.call_later(_SLOWEST, self._give_up)

        def _go_on(self) -> None:
            if self in waiting:
                waiting.pop(self).cancel()

        def _give_up(self) -> None:
            self._go_on()
            self.transport.abort()

    return Patient


def serve(reader: Reader, listening: socket.socket, folder: Path | None, token: str | None, *, is_remote: bool) -> None:
    """Serve requests until the process ends."""
    import uvicorn

    hosts = Hosts(listening.getsockname()[1], is_remote)
    config = uvicorn.Config(
        application(reader, hosts, token, folder),
        log_level="critical",
        access_log=False,
        server_header=False,
        date_header=False,
        http=_patient_protocol(),
        ws="none",
        limit_concurrency=_MOST_AT_ONCE,
        timeout_graceful_shutdown=1,
    )

    class Quiet(uvicorn.Server):
        """A server without signal handlers, since it can be stopped at any time."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    Quiet(config).run(sockets=[listening])
