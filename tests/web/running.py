"""A server as people start it, and questions to it as any program may put them."""

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import lastiterate

PATIENCE = 60.0  # seconds, on a machine that does other things as well


@dataclass(frozen=True)
class Answer:
    """All of an answer; names of headers are in small letters."""

    status: int
    headers: dict[str, str]
    body: bytes


class Running:
    """``lastiterate explore`` or ``watch`` in a process of its own, on any port that is free."""

    def __init__(self, *command: str, patience: float = PATIENCE) -> None:
        self.patience = patience
        source = str(Path(lastiterate.__file__).parents[1])
        environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lastiterate", *command, "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self.process.stdout is not None
        said = ""
        while not said.endswith("}\n"):
            line = self.process.stdout.readline()
            assert line, "the server ended before it said where it is"
            said += line
        self.url: str = json.loads(said)["url"]
        self.address = f"http://{urlsplit(self.url).netloc}"
        self.port = urlsplit(self.url).port
        self.token = parse_qs(urlsplit(self.url).query)["token"][0] if "?" in self.url else ""

    def ask(self, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> Answer:
        """The path as it is, without anything being made good."""
        with closing(self._connect(path, headers or {}, method)) as connection, connection.getresponse() as response:
            known = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, known, response.read())

    @contextmanager
    def events(self, path: str) -> Iterator[http.client.HTTPResponse]:
        """An answer that does not end by itself."""
        with closing(self._connect(path, {}, "GET")) as connection, connection.getresponse() as response:
            yield response

    def _connect(self, path: str, headers: dict[str, str], method: str) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.patience)
        connection.putrequest(method, path, skip_host="Host" in headers)
        if "Cookie" not in headers:
            connection.putheader("Cookie", f"lastiterate-{self.port}={self.token}")
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection

    def json(self, path: str, **texts: str) -> tuple[int, Any]:
        answer = self.ask(f"{path}?{urlencode(texts)}" if texts else path)
        return answer.status, json.loads(answer.body)

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=PATIENCE)
