"""A server as people start it, and questions to it as any program may put them."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import lastiterate

PATIENCE = 60.0  # seconds, on a machine that does other things as well


class Running:
    """``lastiterate explore`` or ``watch`` in a process of its own, on any port that is free."""

    def __init__(self, *command: str) -> None:
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
        said = "".join(iter(lambda: self.process.stdout.readline().rstrip(), "}")) + "}"  # type: ignore[union-attr]
        self.url: str = json.loads(said)["url"]
        self.address = f"http://{urlsplit(self.url).netloc}"
        self.port = urlsplit(self.url).port

    def ask(self, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> http.client.HTTPResponse:
        """The path as it is, without anything being made good."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.putrequest(method, path, skip_host=bool(headers and "Host" in headers))
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse()

    def json(self, path: str, **texts: str) -> tuple[int, Any]:
        response = self.ask(f"{path}?{urlencode(texts)}" if texts else path)
        return response.status, json.loads(response.read())

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=20)
