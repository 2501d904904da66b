"""The server: pages, what they ask, and where it listens."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from lastiterate.extras import MissingExtra
from lastiterate.plot.file import missing_libraries
from lastiterate.plot.page_style import BASE
from lastiterate.web import explorer
from lastiterate.web.answering import answered, json_of
from lastiterate.web.fields import description
from lastiterate.web.guarding import Guard, Hosts, is_loopback
from lastiterate.web.looks import looks
from lastiterate.web.reading import Reader
from lastiterate.web.workers import Task, Workers

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from lastiterate.web.guarding import Application

PORT = 8765
STATIC = Path(__file__).parent / "static"
_MOST_AT_ONCE = 512  # connections


@dataclass(frozen=True)
class Limits:
    """How long questions may take, in seconds."""

    answer: float = 15.0
    lines: float = 30.0
    search: float = 60.0
    audit: float = 300.0


def require_web() -> None:
    """Refuse to start where something is not installed, in one sentence."""
    for name in ("starlette", "uvicorn"):
        try:
            __import__(name)
        except ImportError:
            raise MissingExtra(f'pages need {name}, which is not installed: pip install "lastiterate[web]"') from None
    if sentence := missing_libraries():
        raise MissingExtra(sentence)


def application(reader: Reader, hosts: Hosts, folder: Path | None = None, limits: Limits = Limits()) -> Application:  # noqa: B008 - it is frozen
    """The whole server. ``folder`` has the stores of audits; None: there are none to watch."""
    from starlette.applications import Starlette
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

    from lastiterate.web.audits import Audits, audit_routes

    loaded = [explorer.__name__, reader.run.__module__]
    answers, lines, searches = (Workers(2, each, loaded) for each in (limits.answer, limits.lines, limits.search))
    audits = None if folder is None else Audits(folder, *(Workers(1, limits.audit, loaded) for _ in range(2)))
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

    routes = [
        Route("/", _page("index.html")),
        Route("/audits", _page("audits.html")),
        Route("/api/description", partial(_description, audits is not None)),
        Route("/api/answer", asking(answers, explorer.answer)),
        *(
            Route(f"/api/lines/{part}", asking(lines, partial(explorer.lines, part=part)))
            for part in get_args(explorer.Part)
        ),
        Route("/api/sentence", asking(searches, explorer.quoted)),
        Route("/api/noise", asking(searches, explorer.noise)),
        Route("/api/plan", asking(searches, explorer.plan)),
        Route("/static/base.css", _base_style),
        Route("/static/vega.js", _scripts),
        Mount("/static", StaticFiles(directory=STATIC)),
        *([] if audits is None else audit_routes(audits)),
    ]
    return Guard(Starlette(routes=routes, lifespan=lifespan), hosts)


def _page(name: str) -> Callable[[Request], Response]:
    def page(request: Request) -> Response:
        from starlette.responses import FileResponse

        return FileResponse(STATIC / name, media_type="text/html")

    return page


def _description(has_audits: bool, request: Request) -> Response:
    return json_of({**description(), "looks": looks(), "has_audits": has_audits})


def _base_style(request: Request) -> Response:
    from starlette.responses import Response

    return Response(BASE, media_type="text/css")


async def _scripts(request: Request) -> Response:
    """Vega, which is bundled once for each version of it; a page works, without pictures, until it is there."""
    from starlette.responses import Response

    from lastiterate.plot.rendering import PictureFailed, scripts

    try:
        content = await asyncio.to_thread(scripts)
    except PictureFailed as failed:
        return Response(f"// {failed}", 503, media_type="text/javascript")
    return Response(content, media_type="text/javascript")


def listen(host: str, port: int | None, allow_remote: bool) -> socket.socket:
    """The socket to serve on: the port that was given, or the usual one, or else any that is free."""
    if not is_loopback(host) and not allow_remote:
        raise ValueError(
            f"--host must be of this machine alone, such as 127.0.0.1, got {host!r}: with --allow-remote everybody who "
            "reaches this machine can read the pages and the audits, and make it compute"
        )
    wanted = [port] if port is not None else [PORT, 0]
    for each in wanted:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), each, type=socket.SOCK_STREAM)[0]
        except (OSError, ValueError):  # no such name, or none that a name can be
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
                raise ValueError(f"--port {each} is taken by another program: choose another one") from None
            if error.errno != errno.EADDRINUSE:
                raise ValueError(f"--host {host} and --port {each} cannot be listened on: {error.strerror}") from None
    raise AssertionError("one of the ports was taken or refused")


def address_of(listening: socket.socket, host: str) -> str:
    """Where to point a browser."""
    shown = "127.0.0.1" if host in ("0.0.0.0", "::", "[::]") else host
    name = f"[{shown.strip('[]')}]" if ":" in shown else shown
    return f"http://{name}:{listening.getsockname()[1]}"


def serve(reader: Reader, listening: socket.socket, folder: Path | None, *, is_remote: bool) -> None:
    """Answer until the process ends."""
    import uvicorn

    hosts = Hosts(listening.getsockname()[1], is_remote)
    config = uvicorn.Config(
        application(reader, hosts, folder),
        log_level="critical",
        access_log=False,
        server_header=False,
        date_header=False,
        http="h11",
        ws="none",
        limit_concurrency=_MOST_AT_ONCE,
        timeout_graceful_shutdown=1,
    )

    class Quiet(uvicorn.Server):
        """Leaves signals to whoever handles them: there is nothing that must be finished."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    Quiet(config).run(sockets=[listening])
