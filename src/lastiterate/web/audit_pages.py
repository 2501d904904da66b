"""Live pages of audits: the stores below a folder, the page of one audit, and server-sent events of changes.

Pages never name a path outside the folder. Links are followed before a path is checked.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING

from lastiterate.auditing.stores.store_file import is_written
from lastiterate.common.types import Fields
from lastiterate.formatting import printable
from lastiterate.web import audit_answers
from lastiterate.web.workers import Broke, TooLong, Workers

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route


# Stores: the files of audits in a folder and below it, and their state on disk.

SUFFIX = ".sqlite"
_MOST = 2000  # most stores that are listed
_NO_UTF8 = re.compile("[\ud800-\udfff]")
_DEEPEST = 6  # most levels of folders that are searched


def find_stores(folder: Path) -> dict[str, Path]:
    """Return the stores by name. A name is the path relative to the folder, with slashes."""
    root = folder.resolve()
    found: dict[str, Path] = {}
    for place, folders, files in os.walk(root):  # os.walk follows no link to a folder
        here = Path(place)
        if len(here.relative_to(root).parts) >= _DEEPEST:
            folders.clear()
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        for file in sorted(files):
            if file.endswith(SUFFIX) and not file.startswith(".") and _is_below(root, here / file):
                found[(here / file).relative_to(root).as_posix()] = here / file
                if len(found) >= _MOST:
                    return found
    return found


def locate(folder: Path, name: str) -> Path | None:
    """Return the path of the store with this name, or None if there is no such store below the folder."""
    parts = name.split("/")
    if not name.endswith(SUFFIX) or "\0" in name or "\\" in name or any(part in ("", ".", "..") for part in parts):
        return None
    root = folder.resolve()
    path = root.joinpath(*parts)
    if "\ufffd" in name:  # browsers send it in place of bytes that are not UTF-8
        alike = [each for key, each in find_stores(folder).items() if _NO_UTF8.sub("\ufffd", key) == name]
        path = alike[0] if len(alike) == 1 else path
    return path if _is_below(root, path) else None


def _stats(path: Path) -> list[os.stat_result | None]:
    found: list[os.stat_result | None] = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        try:
            found.append(file.stat())
        except OSError:
            found.append(None)
    return found


def token_of(path: Path) -> str:
    """Return a token that changes whenever the store changes."""
    marks = ["none" if each is None else f"{each.st_mtime_ns}.{each.st_size}" for each in _stats(path)]
    return "-".join([*marks, "locked" if is_written(path) else "free"])


def changed_at(path: Path) -> float:
    """Return the time of the last write in seconds since 1970, or 0 if there is no file."""
    return max([each.st_mtime for each in _stats(path) if each is not None], default=0.0)


def _is_below(root: Path, path: Path) -> bool:
    try:
        return path.is_file() and path.resolve().is_relative_to(root)
    except (OSError, RuntimeError):
        return False


# Watching: a task that looks for changes in the folder and sends them as events.

_PAUSE = 1.0  # seconds between two looks at the folder
_SHARE = 0.1  # largest share of time spent on reading a store that keeps changing
_BEAT = 15.0  # seconds of silence after which a stream sends a keep-alive comment
_SILENT = 300.0  # seconds without a score after which an audit is "silent", if scores usually come faster
_KEPT = 12  # pages of audits in the cache
_MOST_WATCHERS = 64


@dataclass
class Seen:
    """The last known state of a store."""

    path: Path
    token: str = ""
    fields: Fields = field(default_factory=dict)
    error: str = ""
    next_look: float = 0.0
    reading: asyncio.Task[None] | None = None
    state: object = None  # the state that pages were told
    counts: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=60))


class Audits:
    """The audits below a folder. The folder is searched only while a page is open."""

    def __init__(self, folder: Path, summaries: Workers, details: Workers) -> None:
        self.folder = folder.resolve()
        self.pools = [summaries, details]
        self._summaries, self._details = summaries, details
        self._seen: dict[str, Seen] = {}
        self._news = asyncio.Condition()
        self._version = 0
        self._watchers = 0
        self._looking: asyncio.Task[None] | None = None
        self._pages: OrderedDict[tuple[str, str, int], Fields] = OrderedDict()

    async def events(self) -> AsyncIterator[str]:
        """Yield the list of audits as a server-sent event, whenever the list changes."""
        if self._watchers >= _MOST_WATCHERS:
            yield f"event: refused\ndata: {json.dumps('too many pages are watching this folder')}\n\n"
            return
        self._watchers += 1
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look())
        told = 0
        try:
            while True:
                async with self._news:
                    if told == self._version:
                        with suppress(TimeoutError):
                            await asyncio.wait_for(self._news.wait(), _BEAT)
                if told == self._version:
                    yield ": still here\n\n"
                    continue
                told = self._version
                yield f"data: {json.dumps(self.rows(), allow_nan=False)}\n\n"
        finally:
            self._watchers -= 1

    def rows(self) -> Fields:
        return {"folder": printable(str(self.folder)), "rows": [self._row(name) for name in sorted(self._seen)]}

    async def page(self, name: str, width: int) -> Fields | None:
        """Return the page of one audit, or None if there is no such store."""
        path = locate(self.folder, name)
        if path is None:
            return None
        key = (name, token_of(path), width)
        if key not in self._pages:
            self._pages[key] = await self._details.ask(audit_answers.detail, str(path), name, width)
            while len(self._pages) > _KEPT:
                self._pages.popitem(last=False)
        return {**self._pages[key], **self._state(name, path, self._pages[key]), "token": key[1]}

    async def summary(self, name: str) -> Fields | None:
        """Return the one-page summary for the signer, or None if there is no such store."""
        path = locate(self.folder, name)
        return None if path is None else await self._details.ask(audit_answers.one_page, str(path))

    async def _look(self) -> None:
        while self._watchers:
            with suppress(OSError):  # the folder is gone, or cannot be read now
                await self._look_once()
            await asyncio.sleep(_PAUSE)

    async def _look_once(self) -> None:
        stores = await asyncio.to_thread(find_stores, self.folder)
        gone = [name for name in self._seen if name not in stores]
        for name in gone:
            del self._seen[name]
        new = [name for name in stores if name not in self._seen]
        for name in new:
            self._seen[name] = Seen(stores[name])
        if gone or new or not self._version:
            await self._tell()
        for name, path in stores.items():
            seen, token = self._seen[name], token_of(path)
            state = self._state(name, path, seen.fields)["state"] if seen.fields else None
            if state != seen.state:  # shown at once, however long the next reading of the store takes
                seen.state = state
                await self._tell()
            if token != seen.token and monotonic() >= seen.next_look and (seen.reading is None or seen.reading.done()):
                seen.reading = asyncio.ensure_future(self._read(seen, token))  # a slow store does not delay the others

    async def _read(self, seen: Seen, token: str) -> None:
        began = monotonic()
        try:
            seen.fields, seen.error = await self._summaries.ask(audit_answers.summary, str(seen.path)), ""
            done = seen.fields["done"]
            assert isinstance(done, int)
            seen.counts.append((monotonic(), done))
        except (ValueError, RuntimeError, TooLong, Broke) as trouble:
            seen.error = printable(" ".join(str(trouble).split()))
        seen.token = token
        seen.next_look = monotonic() + (monotonic() - began) / _SHARE
        await self._tell()

    async def _tell(self) -> None:
        async with self._news:
            self._version += 1
            self._news.notify_all()

    def _row(self, name: str) -> Fields:
        seen = self._seen[name]
        shown: Fields = {"name": printable(name), "store": name, "token": seen.token}
        if seen.error:
            return shown | {"error": seen.error, "state": "unreadable", "changed": changed_at(seen.path)}
        if not seen.fields:
            return shown | {"state": "reading", "changed": changed_at(seen.path)}
        return shown | seen.fields | self._state(name, seen.path, seen.fields)

    def _state(self, name: str, path: Path, fields: Fields) -> Fields:
        done, planned = int(fields["done"]), int(fields["planned"])
        changed = changed_at(path)
        gap = float(fields["trial_seconds"]) * int(fields["chunk"])
        left: float | None = None
        if done >= planned:
            state = "finished"
        elif not is_written(path):
            state = "stopped"
        elif time() - changed > max(_SILENT, 10.0 * gap):
            state = "silent"
        else:
            state = "running"
            left = (planned - done) * self._seconds_a_trial(name, float(fields["trial_seconds"]))
        return {"state": state, "changed": changed, "left": left}

    def _seconds_a_trial(self, name: str, stored: float) -> float:
        """Return the observed seconds per trial, including the effect of parallel training, or else ``stored``."""
        counts = self._seen[name].counts if name in self._seen else None
        if counts is not None and len(counts) > 1:
            (began, first), (ended, last) = counts[0], counts[-1]
            if last > first and ended - began > 2.0:
                return (ended - began) / (last - first)
        return stored


def audit_routes(audits: Audits) -> list[Route]:
    """Return the routes of the pages of audits."""
    from starlette import responses
    from starlette.routing import Route

    from lastiterate.plot.audit_charts import LEAST, MOST
    from lastiterate.web.server import answered, json_of

    async def events(request: Request) -> Response:
        return responses.StreamingResponse(audits.events(), media_type="text/event-stream")

    async def one(request: Request) -> Response:
        name, width = request.query_params.get("store", ""), request.query_params.get("width", "446")
        if not width.isascii() or not width.isdigit() or not LEAST <= int(width[:6]) <= MOST:
            return json_of({"error": f"width must be in [{LEAST}, {MOST}], got {width[:20]!a}", "field": "width"}, 422)
        return await answered(request, audits.page(name, int(width))) or missing()

    async def summary(request: Request) -> Response:
        try:
            found = await audits.summary(request.query_params.get("store", ""))
        except (ValueError, RuntimeError) as trouble:
            return responses.Response(str(trouble), 422, media_type="text/plain")
        return missing() if found is None else responses.Response(str(found["html"]), media_type="text/html")

    def missing() -> Response:
        return json_of({"error": "there is no such store in the folder", "field": "store"}, 404)

    return [Route("/api/audits/events", events), Route("/api/audits/one", one), Route("/summary", summary)]
