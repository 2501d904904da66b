"""Processes that compute what pages ask, so that no question keeps the server from answering others.

A question that takes too long, or that nobody waits for any more, ends with its process, and another one takes its
place. Each process ends by itself when the server is gone, however that went.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from lastiterate.common.types import Fields

Task = Callable[..., Fields]
_FORGET_AFTER = 0.3  # seconds: what takes less may as well be finished when nobody waits for it


class TooLong(RuntimeError):
    """A question that took longer than it may; the message is a sentence."""


class Broke(RuntimeError):
    """The process of a question ended, as where there is too little memory; the message is a sentence."""


class Workers:
    """So many processes, each with one question at a time; further ones wait for their turn."""

    def __init__(self, count: int, seconds: float, preloaded: Sequence[str] = ()) -> None:
        """``preloaded`` names modules that every process has from its beginning."""
        self._count, self._seconds = count, seconds
        self._context = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
        if sys.platform != "win32":
            self._context.set_forkserver_preload(list(preloaded))
        self._free: asyncio.Queue[_Worker] = asyncio.Queue()

    def start(self) -> None:
        """Begin the processes, without waiting for them: the first question should find one."""
        for _ in range(self._count):
            worker = _Worker(self._context, self._seconds)
            threading.Thread(target=worker.begin, daemon=True).start()
            self._free.put_nowait(worker)

    def stop(self) -> None:
        """End the processes that are free; others end with the server."""
        while not self._free.empty():
            self._free.get_nowait().end()

    async def ask(self, task: Task, *given: object) -> Fields:
        """What the task says of these values. A ValueError of it is raised here."""
        worker = await self._free.get()
        try:
            return await worker.ask(task, *given)
        finally:
            self._free.put_nowait(worker if worker.is_alive else _Worker(self._context, self._seconds))


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, context: multiprocessing.context.BaseContext, seconds: float) -> None:
        self._context, self._seconds = context, seconds
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._beginning = threading.Lock()
        self.is_alive = True

    async def ask(self, task: Task, *given: object) -> Fields:
        exchange = asyncio.ensure_future(asyncio.to_thread(self._exchange, task, given))
        began = asyncio.get_running_loop().time()
        try:
            done, _ = await asyncio.wait({exchange}, timeout=self._seconds)
        except asyncio.CancelledError:  # nobody waits for it
            await asyncio.wait({exchange}, timeout=max(0.0, _FORGET_AFTER - _since(began)))
            if not exchange.done():
                self.end()
            exchange.add_done_callback(_forget)
            raise
        if not done:
            self.end()
            exchange.add_done_callback(_forget)
            raise TooLong(
                f"this takes longer than the {self._seconds:g} seconds that a page waits: the command line has no limit"
            )
        return exchange.result()

    def _exchange(self, task: Task, given: tuple[object, ...]) -> Fields:
        try:
            pipe = self.begin()
            pipe.send((task, given))
            found, refusal = pipe.recv()
        except (EOFError, OSError):
            self.end()
            raise Broke(
                "the process that computes ended, as where there is too little memory: try another run"
            ) from None
        if refusal is not None:
            raise refusal
        fields: Fields = found
        return fields

    def begin(self) -> Connection:
        """Start the process, if it is not there yet, and give the pipe to it."""
        with self._beginning:
            if self._pipe is None:
                self._pipe, theirs = multiprocessing.Pipe()
                make = self._context.Process  # type: ignore[attr-defined]  # as all contexts have
                self._process = make(target=_serve, args=(theirs, self._seconds), daemon=True)
                self._process.start()
                theirs.close()
            return self._pipe

    def end(self) -> None:
        """End the process, whatever it does."""
        self.is_alive = False
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._pipe is not None:
            with suppress(OSError):
                self._pipe.close()


def _since(began: float) -> float:
    return asyncio.get_running_loop().time() - began


def _forget(exchange: asyncio.Future[Fields]) -> None:
    """An answer, or a failure, that came after all."""
    if not exchange.cancelled():
        exchange.exception()


def _serve(pipe: Connection, seconds: float) -> None:
    """The process: answer until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, whose end closes the pipe
    while True:
        try:
            task, given = pipe.recv()
        except (EOFError, OSError):
            return
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_REAL, seconds + 5.0)  # also where the server was killed meanwhile
        found: Fields | None = None
        refusal: Exception | None = None
        try:
            found = task(*given)
        except (ValueError, ArithmeticError, OSError) as error:
            refusal = ValueError(str(error))
        except MemoryError:
            refusal = ValueError("the run needs more memory than there is: describe it with fewer distinct steps")
        except Exception as error:  # a fault of ours costs one answer, not the process
            refusal = RuntimeError(f"{type(error).__name__}: {error}")
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        with suppress(OSError):
            pipe.send((found, refusal))
